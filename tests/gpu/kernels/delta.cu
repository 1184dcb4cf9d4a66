// The gated delta rule's kernels alone: checked against a plain recurrence in double precision, then timed. For work on
// the kernels themselves; whole models are checked by the program beside this folder.
//
//   nvcc -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a -DKEY_HEADS=16 -DVALUE_HEADS=32 -DKEY_DIM=128 -DVALUE_DIM=128 -DTILED=0 -DGATE_SIGMOID=0 \
//        -I kernels/src/cu tests/gpu/kernels/delta.cu -o delta && ./delta
//
// -DSTATE16=1: states in bf16. NO_CHECK in the environment: times alone. Rings and states hold noise where a sequence starts, outputs are poisoned, and each case
// prints the relative error of outputs and states, and the time of a layer's kernels. Single rows together are equal to the
// bit to each alone.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#define MIX (CHANNELS + VALUE_HEADS * (VALUE_DIM + 2))  // here beta and alpha stand behind z
#include "prelude.cuh"
namespace step {
#include "delta_step.cu"
}
#undef PIECE
#include "delta_conv.cu"
#undef ROWS
#undef LANE
namespace chunk {
#include "delta_chunk.cu"
}
#undef ROW
#undef PLACES
namespace scan {
#include "delta_scan.cu"
}
#include "delta_out.cu"
#include "harness.cuh"

const int SEATS = 130, ROWS_MAX = 16384, STEP_SHARED = sizeof(step::Shared);
const float EPS = 1e-6f;
std::mt19937 random_bits(3);
float normal() { return std::normal_distribution<float>()(random_bits); }

u16 bf16_of(float x) {
    u32 b;
    memcpy(&b, &x, 4);
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
float f32_of(u16 x) {
    u32 b = (u32)x << 16;
    float f;
    memcpy(&f, &b, 4);
    return f;
}
double value_of(float x) { return x; }
double value_of(u16 x) { return f32_of(x); }
template <class T> std::vector<T> from_device(const T *p, size_t n) {
    std::vector<T> v(n);
    CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

struct Model {
    std::vector<float> taps, decay, bias, norm;
    float *d_taps, *d_decay, *d_bias, *d_norm;
    Model() : taps(CHANNELS * 4), decay(VALUE_HEADS), bias(VALUE_HEADS), norm(VALUE_DIM) {
        for (auto &x : taps) x = normal() * 0.5f;
        for (auto &x : decay) x = -std::exp(normal() * 0.7f);
        for (auto &x : bias) x = normal() - 2.f;
        for (auto &x : norm) x = 1.f + 0.1f * normal();
        d_taps = on_device(taps), d_decay = on_device(decay), d_bias = on_device(bias), d_norm = on_device(norm);
    }
};

// One head of one sequence in double precision, from the sequence's start.
struct Reference {
    std::vector<double> s = std::vector<double>(VALUE_DIM * KEY_DIM), y = std::vector<double>(VALUE_DIM);
    void token(const Model &m, const std::vector<u16> &mix, size_t t, int head) {
        int kh = KEY_HEAD(head);
        auto conv = [&](int ch) {
            double c = 0;
            for (int back = 0; back < 4; back++)
                if ((int)t >= back) c += m.taps[ch * 4 + 3 - back] * f32_of(mix[(t - back) * MIX + ch]);
            return c / (1 + std::exp(-c));
        };
        std::vector<double> q(KEY_DIM), k(KEY_DIM);
        double qq = 0, kk = 0;
        for (int i = 0; i < KEY_DIM; i++) {
            q[i] = conv(kh * KEY_DIM + i), k[i] = conv((KEY_HEADS + kh) * KEY_DIM + i);
            qq += q[i] * q[i], kk += k[i] * k[i];
        }
        for (int i = 0; i < KEY_DIM; i++) q[i] /= std::sqrt(qq + 1e-6) * std::sqrt((double)KEY_DIM), k[i] /= std::sqrt(kk + 1e-6);
        const u16 *row = &mix[t * MIX + CHANNELS];
        double beta = 1 / (1 + std::exp(-(double)f32_of(row[VALUE_HEADS * VALUE_DIM + head])));
        double kept = std::exp(m.decay[head] * std::log1p(std::exp(f32_of(row[VALUE_HEADS * (VALUE_DIM + 1) + head]) + m.bias[head])));
        double squares = 0;
        for (int v = 0; v < VALUE_DIM; v++) {
            double sk = 0, o = 0;
            for (int i = 0; i < KEY_DIM; i++) sk += kept * s[v * KEY_DIM + i] * k[i];
            double d = beta * (conv(2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + v) - sk);
            for (int i = 0; i < KEY_DIM; i++) {
                s[v * KEY_DIM + i] = kept * s[v * KEY_DIM + i] + d * k[i];
                o += s[v * KEY_DIM + i] * q[i];
            }
            y[v] = o, squares += o * o;
        }
        double scale = 1 / std::sqrt(squares / VALUE_DIM + EPS);
        for (int v = 0; v < VALUE_DIM; v++) {
            double z = f32_of(row[head * VALUE_DIM + v]);
            y[v] *= scale * m.norm[v] * z / (1 + std::exp(-z));
        }
    }
};

struct Bench {
    Model m;
    StateValue *states;
    Deferred *deferred;
    int written[SEATS] = {};  // each seat's length when its matrices were
    float *chunk_g;
    u16 *rings, *mix, *conv, *attended, *chunk_u, *chunk_w, *chunk_p;
    Bench() {
        size_t state = (size_t)VALUE_HEADS * VALUE_DIM * KEY_DIM, chunks = ROWS_MAX / 64 + SEATS;
        CHECK(cudaMalloc(&states, SEATS * state * sizeof(StateValue)));
        CHECK(cudaMalloc(&deferred, SEATS * VALUE_HEADS * sizeof(Deferred)));
        CHECK(cudaMemset(deferred, 0x3e, SEATS * VALUE_HEADS * sizeof(Deferred)));
        CHECK(cudaMalloc(&rings, SEATS * 4ull * CHANNELS * 2));
        CHECK(cudaMalloc(&mix, (size_t)ROWS_MAX * MIX * 2));
        CHECK(cudaMalloc(&conv, (size_t)ROWS_MAX * CHANNELS * 2));
        CHECK(cudaMalloc(&attended, (size_t)ROWS_MAX * VALUE_HEADS * VALUE_DIM * 2));
        CHECK(cudaMalloc(&chunk_u, chunks * VALUE_HEADS * 64 * VALUE_DIM * 2));
        CHECK(cudaMalloc(&chunk_w, chunks * VALUE_HEADS * 64 * KEY_DIM * 2));
        CHECK(cudaMalloc(&chunk_p, chunks * VALUE_HEADS * 64 * 64 * 2));
        CHECK(cudaMalloc(&chunk_g, chunks * VALUE_HEADS * 64 * 4));
        CHECK(cudaMemset(states, 0x45, SEATS * state * sizeof(StateValue)));
        CHECK(cudaMemset(rings, 0x45, SEATS * 4ull * CHANNELS * 2));
    }
    // Runs of (seat, start, rows); `rows_mix` in row order. Gives the milliseconds of one layer.
    float step(const std::vector<std::array<int, 3>> &runs, const std::vector<u16> &rows_mix, int repeats) {
        std::vector<RunInfo> infos;
        std::vector<int> seat, position;
        int row0 = 0, chunks = 0;
        bool singles = false;
        for (auto &r : runs) {
            RunInfo info = {};
            info.seat = r[0], info.rows = r[2], info.row0 = row0, info.end = r[1] + r[2];
            int &seat_written = written[r[0]];
            if (r[1] == 0) seat_written = 0;
            info.deferred = r[1] - seat_written, info.folds = r[2] == 1 && (r[1] == 0 || info.end % WRITE_EVERY == 0);
            if (r[2] > 1 || info.folds) seat_written = info.end;
            infos.push_back(info);
            for (int i = 0; i < r[2]; i++) seat.push_back(r[0]), position.push_back(r[1] + i);
            row0 += r[2];
            chunks += r[2] > 1 ? (r[2] + 63) / 64 : 0;
            singles |= r[2] == 1;
        }
        StepInfo info = {};
        info.runs = runs.size(), info.rows = row0;
        auto *d_runs = on_device(infos);
        auto *d_seat = on_device(seat), *d_position = on_device(position);
        auto *d_step = on_device(std::vector<StepInfo>{info});
        CHECK(cudaMemcpy(mix, rows_mix.data(), rows_mix.size() * 2, cudaMemcpyHostToDevice));
        CHECK(cudaMemset(attended, 0xff, (size_t)row0 * VALUE_HEADS * VALUE_DIM * 2));
        CHECK(cudaMemset(conv, 0xff, (size_t)row0 * CHANNELS * 2));
        CHECK(cudaFuncSetAttribute(step::delta_step, cudaFuncAttributeMaxDynamicSharedMemorySize, STEP_SHARED));
        CHECK(cudaFuncSetAttribute(chunk::delta_chunk, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(chunk::Shared)));
        CHECK(cudaFuncSetAttribute(scan::delta_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(scan::Shared)));
        float best = 1e9, parts[4] = {};
        for (int i = 0; i < repeats; i++) {
            cudaEvent_t e[6];
            for (auto &x : e) cudaEventCreate(&x);
            cudaEventRecord(e[0]);
            if (singles)
                step::delta_step<<<runs.size() * VALUE_HEADS, 256, STEP_SHARED>>>(attended, mix, MIX, mix + CHANNELS + VALUE_HEADS * VALUE_DIM, MIX, states, deferred, rings, m.d_taps, m.d_decay, m.d_bias, m.d_norm, d_runs, EPS);
            cudaEventRecord(e[1]);
            if (chunks) {
                delta_conv<<<dim3((row0 + 15) / 16, (CHANNELS / KEY_DIM + 3) / 4), 128>>>(conv, mix, MIX, rings, m.d_taps, d_seat, d_position, row0);
                cudaEventRecord(e[2]);
                chunk::delta_chunk<<<dim3(chunks, VALUE_HEADS), 128, sizeof(chunk::Shared)>>>(chunk_u, chunk_w, chunk_p, chunk_g, conv, mix + CHANNELS + VALUE_HEADS * VALUE_DIM, MIX, m.d_decay, m.d_bias, d_step, d_runs);
                cudaEventRecord(e[3]);
                scan::delta_scan<<<dim3(runs.size(), VALUE_HEADS * SPLITS), 128, sizeof(scan::Shared)>>>(conv, chunk_u, chunk_w, chunk_p, chunk_g, states, deferred, d_runs, nullptr, 0);
                cudaEventRecord(e[4]);
                delta_out<<<dim3(row0, (VALUE_HEADS + 3) / 4), 128>>>(attended, conv, mix, MIX, rings, m.d_norm, d_seat, d_position, row0, EPS, nullptr, 0, d_step, d_runs);
            }
            cudaEventRecord(e[5]);
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaGetLastError());
            float ms;
            cudaEventElapsedTime(&ms, e[0], e[5]);
            if (ms < best) {
                best = ms;
                if (chunks)
                    for (int j = 0; j < 4; j++) cudaEventElapsedTime(&parts[j], e[j + 1], e[j + 2]);
            }
        }
        if (repeats > 1 && chunks) printf("      conv %.1f chunk %.1f scan %.1f out %.1f us\n", parts[0] * 1e3, parts[1] * 1e3, parts[2] * 1e3, parts[3] * 1e3);
        return best;
    }
};

std::vector<u16> sequence(int tokens) {
    std::vector<u16> mix((size_t)tokens * MIX);
    for (auto &x : mix) x = bf16_of(normal());
    return mix;
}

int failures = 0;
void verdict(const char *what, double error, double bound) {
    bool ok = error < bound && std::isfinite(error);
    failures += !ok;
    printf("%s  %-44s %.5f (bound %.4f)\n", ok ? "ok  " : "FAIL", what, error, bound);
}

// A sequence cut into runs: outputs of some heads, and the end's state.
void check(Bench &b, const char *name, std::vector<int> cuts) {
    int total = 0;
    for (int c : cuts) total += c;
    auto mix = sequence(total), other = sequence(64);
    std::vector<u16> out;
    int at = 0;
    for (int c : cuts) {
        std::vector<u16> rows(mix.begin() + (size_t)at * MIX, mix.begin() + (size_t)(at + c) * MIX);
        // Another seat's rows stand before and behind.
        std::vector<u16> all(other.begin(), other.begin() + 37 * MIX);
        all.insert(all.end(), rows.begin(), rows.end());
        all.insert(all.end(), other.begin(), other.begin() + MIX);
        b.step({{1, 0, 37}, {5, at, c}, {7, 0, 1}}, all, 1);
        auto got = from_device(b.attended + 37 * VALUE_HEADS * VALUE_DIM, (size_t)c * VALUE_HEADS * VALUE_DIM);
        out.insert(out.end(), got.begin(), got.end());
        at += c;
    }
    size_t head_state = VALUE_DIM * KEY_DIM;
    int missing = total - b.written[5];
    double worst_o = 0, worst_s = 0;
    for (int head : {0, VALUE_HEADS / 2 + 1 < VALUE_HEADS ? VALUE_HEADS / 2 + 1 : 0, VALUE_HEADS - 1}) {
        Reference r;
        double error = 0, size = 0;
        auto state_error = [&](StateValue *from, int place) {
            auto got = from_device(from + ((size_t)place * VALUE_HEADS + head) * head_state, head_state);
            auto lacks = from_device(b.deferred + place * VALUE_HEADS + head, 1)[0];
            double e = 0, n = 0;
            for (size_t i = 0; i < head_state; i++) {
                double s = value_of(got[i]);
                for (int j = 0; j < missing; j++)
                    s = lacks.kept[j] * s + (double)lacks.updates[j].d[i / KEY_DIM] * lacks.updates[j].k[i % KEY_DIM];
                double d = s - r.s[i];
                e += d * d, n += r.s[i] * r.s[i];
            }
            return std::sqrt(e / n);
        };
        for (int t = 0; t < total; t++) {
            r.token(b.m, mix, t, head);
            for (int v = 0; v < VALUE_DIM; v++) {
                double got = f32_of(out[((size_t)t * VALUE_HEADS + head) * VALUE_DIM + v]), d = got - r.y[v];
                error += d * d, size += r.y[v] * r.y[v];
            }
        }
        worst_o = std::max(worst_o, std::sqrt(error / size));
        worst_s = std::max(worst_s, state_error(b.states, 5));
    }
    char text[99];
    // States in 16 bits are rounded after each token.
    const double bound = sizeof(StateValue) == 2 ? 0.04 : 0.01;
    snprintf(text, 99, "%s: outputs", name), verdict(text, worst_o, bound);
    snprintf(text, 99, "%s: state", name), verdict(text, worst_s, bound);
}

__global__ void fill_states(StateValue *to, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        u32 x = (u32)i * 2654435761u;
        x = (x ^ x >> 15) * 0x85ebca6bu;
        to[i] = to_state((float)(x >> 8) / 16777216.f - 0.5f);
    }
}

__global__ void fill_floats(float *to, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        to[i] = (float)((u32)i * 2654435761u >> 8) / 16777216.f - 0.5f;
}

// More (run, head) than blocks, and each run alone.
void together(Bench &b) {
    const int rows = 128;
    const size_t state = (size_t)VALUE_HEADS * VALUE_DIM * KEY_DIM, width = VALUE_HEADS * VALUE_DIM;
    auto mix = sequence(rows);
    std::vector<std::array<int, 3>> runs;
    for (int i = 0; i < rows; i++) runs.push_back({i, 100 + i, 1});
    auto begin = [&]() {
        fill_states<<<1024, 256>>>(b.states, SEATS * state);
        fill_floats<<<1024, 256>>>((float *)b.deferred, SEATS * VALUE_HEADS * sizeof(Deferred) / 4);
        for (int i = 0; i < rows; i++) b.written[i] = (100 + i) / WRITE_EVERY * WRITE_EVERY;
        CHECK(cudaMemset(b.rings, 0x3e, SEATS * 4ull * CHANNELS * 2));
    };
    begin();
    b.step(runs, mix, 1);
    auto out = from_device(b.attended, rows * width);
    int differ = 0;
    for (int row : {0, 1, 63, 127}) {
        auto after = from_device(b.states + row * state, state);
        auto lacks = from_device(b.deferred + row * VALUE_HEADS, VALUE_HEADS);
        begin();
        b.step({runs[row]}, std::vector<u16>(mix.begin() + (size_t)row * MIX, mix.begin() + (size_t)(row + 1) * MIX), 1);
        auto alone = from_device(b.attended, width);
        auto alone_after = from_device(b.states + row * state, state);
        differ += memcmp(&out[row * width], alone.data(), width * 2) != 0;
        auto alone_lacks = from_device(b.deferred + row * VALUE_HEADS, VALUE_HEADS);
        differ += memcmp(after.data(), alone_after.data(), state * sizeof(StateValue)) != 0;
        differ += memcmp(lacks.data(), alone_lacks.data(), VALUE_HEADS * sizeof(Deferred)) != 0;
        begin();
        b.step(runs, mix, 1);
    }
    verdict("single rows together and alone", differ, 0.5);
}

int main() {
    Bench b;
    printf("shared memory: chunk %zu, scan %zu\n", sizeof(chunk::Shared), sizeof(scan::Shared));
    if (!getenv("NO_CHECK")) {
        check(b, "one by one", std::vector<int>(70, 1));
        check(b, "one chunk", {64});
        check(b, "part of a chunk", {23, 1, 1});
        check(b, "five tokens, twice", {2, 3});
        check(b, "chunks behind single rows", {5, 1, 1, 70, 1, 3, 1});
        check(b, "many chunks", {700});
        check(b, "many runs", {64, 192, 128, 100, 1, 1, 1});
        together(b);
    }
    for (int rows : {1, 8, 32, 128}) {
        float of[WRITE_EVERY], mean = 0.f;
        for (int behind = 0; behind < WRITE_EVERY; behind++) {
            std::vector<std::array<int, 3>> runs;
            for (int i = 0; i < rows; i++) b.written[i] = 96, runs.push_back({i, 96 + behind, 1});
            of[behind] = b.step(runs, sequence(rows), 20);
            mean += of[behind] / WRITE_EVERY;
        }
        double bytes = rows * (1.0 + 1.0 / WRITE_EVERY) * VALUE_HEADS * VALUE_DIM * KEY_DIM * sizeof(StateValue);
        printf("time  %4d single rows %6.1f us, %.1f to %.1f, %.2f TB/s of state\n", rows, mean * 1e3, of[0] * 1e3, of[WRITE_EVERY - 1] * 1e3, bytes / mean / 1e9);
    }
    for (int rows : {300, 1024, 8000, 16000}) {
        float ms = b.step({{3, 0, rows}}, sequence(rows), 5);
        printf("time  %5d rows of one prompt %30.1f us\n", rows, ms * 1e3);
    }
    {
        std::vector<std::array<int, 3>> runs;
        for (int i = 0; i < 8; i++) runs.push_back({i, 0, 1000});
        printf("time  8 prompts of 1000 %35.1f us\n", b.step(runs, sequence(8000), 5) * 1e3);
    }
    printf("%d failed\n", failures);
    return failures != 0;
}
