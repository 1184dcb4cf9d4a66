// The few-rows product of GGUF's block formats alone: checked against f64 sums of its values, then timed. For work on the
// kernel itself; whole models are checked by the program beside this folder.
//
//   nvcc -std=c++17 -O1 tests/gpu/kernels/few_rows_packed.cu -o packed
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -cubin -DTYPE0=5 -DTYPE1=7 -DNT=1 -DMODE=0 -DDEPTH=2 -DWARPS=16 \
//        -DBLOCKS=1 -DNEAR=1 -DONE=0 -DINTEGER=0 -DEIGHTS=0 -DTAIL=0 kernels/src/cu/few_rows_packed.cu -o 5-7-1-0-2-16-1-1-0-0-0.cubin
//   ./packed *.cubin
//
// A file's name tells its flags in this order. Formats count as in packed.cuh. A line of times is one product as a decode
// step runs it: behind others, on weights that no cache holds, for 1 and 8 (NT = 2: 9 and 16; NEAR: 1 and 2) rows; 4.2 TB/s
// are 100 %.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#define CHECK(x)                                                                          \
    do {                                                                                  \
        int rc = (int)(x);                                                                \
        if (rc != 0) {                                                                    \
            printf("FAIL line %d: %s gave %d %s\n", __LINE__, #x, rc, cudaGetErrorString((cudaError_t)rc)); \
            exit(2);                                                                      \
        }                                                                                 \
    } while (0)

enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, FORMATS };
const char *NAMES[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"};
const int SIZES[] = {2304, 2560, 2816, 3072, 4352, 2304, 2816, 3360, 2304, 2208};
const int PLANES[] = {0, 0, 1, 1, 0, 0, 1, 2, 0, 0};
const int IQ4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

std::mt19937_64 random_bits(1);
int upto(int n) { return (int)(random_bits() % n); }

float f16_value(uint16_t h) {
    int e = h >> 10 & 31, f = h & 1023;
    float v = e ? ldexpf(1024 + f, e - 25) : ldexpf(f, -24);
    return h >> 15 ? -v : v;
}
uint16_t bf16(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
float bf16_value(uint16_t h) {
    uint32_t b = (uint32_t)h << 16;
    float x;
    memcpy(&x, &b, 4);
    return x;
}

// Fills a unit with random weights, and `values[16][256]` with what they are in f32.
void fill_unit(int type, uint8_t *unit, float *values, int left) {
    memset(unit, 0, SIZES[type]);
    int planes_at = type == Q8_0 ? 4096 : 2048, scales_at = planes_at + 512 * PLANES[type];
    bool k_min = type == Q4_K || type == Q5_K, mins = type == Q4_1 || type == Q5_1, table = type == IQ4_NL || type == IQ4_XS;
    for (int row = 0; row < 16; row++) {
        auto tiny = [] { return (uint16_t)(0x1400 + upto(0x800)); };
        float scale[16], minimum[8] = {};
        uint8_t *at = unit + scales_at + row * (mins ? 32 : type == IQ4_XS ? 8 : 16);
        if (k_min) {
            uint16_t d = tiny(), dmin = tiny();
            memcpy(at, &d, 2);
            memcpy(at + 2, &dmin, 2);
            uint8_t *s = at + 4;
            for (int j = 0; j < 8; j++) {
                int sc = upto(64), m = upto(64);
                scale[2 * j] = scale[2 * j + 1] = f16_value(d) * sc;
                minimum[j] = f16_value(dmin) * m;
                if (j < 4) {
                    s[j] |= sc;
                    s[j + 4] |= m;
                } else {
                    s[j + 4] |= (sc & 15) | (m & 15) << 4;
                    s[j - 4] |= sc >> 4 << 6;
                    s[j] |= m >> 4 << 6;
                }
            }
        } else if (type == Q6_K || type == IQ4_XS) {
            uint16_t d = tiny();
            memcpy(unit + scales_at + 16 * (type == Q6_K ? 16 : 8) + row * 2, &d, 2);
            for (int j = 0; j < 16; j++) {
                int raw = type == Q6_K ? upto(256) : upto(64);
                if (type == Q6_K) at[j] = raw, scale[j] = f16_value(d) * (int8_t)raw;
                else if (j % 2 == 0) at[j / 2] = raw, scale[j] = scale[j + 1] = f16_value(d) * (raw - 32);
            }
        } else {
            for (int j = 0; j < 8; j++) {
                uint16_t d = tiny(), m = (uint16_t)(tiny() | upto(2) << 15);
                if (j * 32 >= left) d = m = 0;
                memcpy(at + 2 * j, &d, 2);
                if (mins) memcpy(at + 16 + 2 * j, &m, 2);
                scale[2 * j] = scale[2 * j + 1] = f16_value(d);
                minimum[j] = mins ? -f16_value(m) : 0.f;
            }
        }
        for (int k = 0; k < 256; k++) {
            int j = k / 32, l = k % 32, bits = type == Q8_0 ? 8 : 4 + PLANES[type];
            int code = upto(1 << bits);
            // Which lane has it, and at the place of which of its pairs.
            int t = type == Q6_K ? l % 16 / 4 : l / 8, pair = type == Q6_K ? l / 16 + l % 4 / 2 * 2 : l % 8 / 2, odd = l % 2;
            int lane = row % 8 * 4 + t;
            int n = row / 8 * 4 + pair;
            if (type == Q8_0) {
                unit[(j * 32 + lane) * 16 + n / 2 * 4 + n % 2 + 2 * odd] = (uint8_t)code;
            } else {
                uint32_t word;
                uint8_t *to = unit + ((j / 2 * 32 + lane) * 2 + j % 2) * 8 + row / 8 * 4;
                memcpy(&word, to, 4);
                uint32_t bit = table ? (8 * pair + 4 * odd + 7) % 32 : (4 * pair + 16 * odd + (type == Q6_K ? 2 : 0)) % 32;
                word |= (uint64_t)(code & 15) << bit | (bit > 28 ? (uint32_t)(code & 15) >> (32 - bit) : 0);
                memcpy(to, &word, 4);
                if (PLANES[type]) {
                    int width = PLANES[type], per = width == 1 ? 2 : 1;
                    int w = j / per, b = width * (j % per * 4 + row / 8 * 2 + pair % 2) + pair / 2 * 8 + 16 * odd;
                    uint8_t *plane = unit + planes_at + (w / 4 * 32 + lane) * 16 + w % 4 * 4;
                    memcpy(&word, plane, 4);
                    word |= (uint32_t)(code >> 4 ^ (type == Q6_K ? 2 : 0)) << b;
                    memcpy(plane, &word, 4);
                }
            }
            int q = type == Q8_0 ? (int8_t)code : table ? IQ4[code] : type == Q4_0 ? code - 8 : type == Q5_0 ? code - 16 : type == Q6_K ? code - 32 : code;
            float product = scale[k / 16] * q;
            values[row * 256 + k] = product - minimum[j];
        }
    }
}

struct Part {
    const uint8_t *units;
    int end, rows, column, kind;
};
struct Parts {
    Part part[4];
};

struct Variant {
    int type[2], nt, mode, depth, warps, blocks, near, one, integer, eights;
    int rows_max() const { return one ? 1 : near ? 2 : 8 * nt; }
};

struct Matrix {
    std::vector<uint8_t> units;
    std::vector<float> values;  // [rows][k]
};
// Rows beyond `n` are there in the unit, and random: the kernel must not use them. k beyond `k` have zeros for scales.
Matrix random_matrix(int type, int n, int k) {
    int tiles = (n + 15) / 16, across = (k + 255) / 256;
    Matrix m{std::vector<uint8_t>((size_t)tiles * across * SIZES[type]), std::vector<float>((size_t)n * k)};
    std::vector<float> values(16 * 256);
    for (int tile = 0; tile < tiles; tile++)
        for (int unit = 0; unit < across; unit++) {
            fill_unit(type, &m.units[((size_t)tile * across + unit) * SIZES[type]], values.data(), k - unit * 256);
            for (int r = 0; r < 16 && tile * 16 + r < n; r++)
                for (int c = 0; c < 256 && unit * 256 + c < k; c++)
                    m.values[(size_t)(tile * 16 + r) * k + unit * 256 + c] = values[r * 256 + c];
        }
    return m;
}

template <typename T> T *on_device(const std::vector<T> &v) {
    T *p;
    CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

int multiprocessors;

struct Launch {
    cudaKernel_t kernel;
    Variant v;
    cudaStream_t stream;
    int blocks;  // 0: as many as the card holds
    size_t shared(int m, int k) const {
        int slot = std::max(SIZES[v.type[0]], SIZES[v.type[1]]), units = (k + 255) / 256;
        bool table = std::max(v.type[0], v.type[1]) >= IQ4_NL;
        size_t rings = (table ? 32768 : 0) + v.warps * (v.depth * slot + (v.integer ? 64 : 1024) + (v.depth * 8 + 15) / 16 * 16);
        int words = (v.type[0] != Q6_K || v.type[1] != Q6_K) + (v.type[0] == Q6_K || v.type[1] == Q6_K);
        if (v.integer) return rings + m * units * (512 * words + 48) + (v.near == 2 ? k * 2 : 0);
        return rings + (v.near ? m * ((k * 2 + 127) / 128 * 128 + 64) + units * 4 * ((m + 1) / 2) * 16 : 0);
    }
    bool fits(int m, int k) const { return shared(m, k) <= 227 * 1024; }
    // Blocks that share their tiles, so that all have about as many.
    int cluster(int tiles) const {
        int best = 1;
        auto turns = [&](int c) {
            int sets = multiprocessors * v.blocks / c;
            return (double)((tiles + sets - 1) / sets) / c;
        };
        for (int c : {2, 4, 8})
            if (turns(c) < turns(best) && (c == 2 || tiles * c <= 96)) best = c;
        return best;
    }
    void run(void *out, const uint16_t *x, const Parts &parts, int m, int n, int k, const uint16_t *norm) const {
        cudaLaunchAttribute attributes[2]{};
        attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[0].val.programmaticStreamSerializationAllowed = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        cudaLaunchConfig_t config{};
        int tiles = parts.part[3].end, share = blocks ? 1 : cluster(tiles);
        config.gridDim = dim3(std::min(tiles * share, blocks ? blocks : multiprocessors * v.blocks / share * share));
        config.blockDim = dim3(v.warps * 32);
        config.dynamicSmemBytes = shared(m, k);
        config.stream = stream;
        attributes[1].val.clusterDim.x = share, attributes[1].val.clusterDim.y = 1, attributes[1].val.clusterDim.z = 1;
        config.attrs = attributes;
        config.numAttrs = share > 1 ? 2 : 1;
        Parts copy = parts;
        float eps = 1e-6f;
        int eights = 0;  // of x near, or of what gate and up leave
        void *args[] = {&out, &x, &copy, &m, &n, &k, &norm, &eps, &eights};
        CHECK(cudaLaunchKernelExC(&config, (const void *)kernel, args));
    }
};

bool check(const Launch &l, int k) {
    const int counts[] = {560, 280};
    bool two = l.v.type[0] != l.v.type[1], silu = l.v.mode == 2, f32 = l.v.mode == 3, add = l.v.mode == 1;
    std::vector<Matrix> matrices;
    Parts parts{};
    int n = 0, end = 0;
    for (int p = 0; p < 4; p++) {
        if (p == 0 || (p == 1 && two)) {
            matrices.push_back(random_matrix(l.v.type[p], counts[p], k));
            end += (counts[p] + 15) / 16;
            int rows = silu ? counts[p] / 2 : counts[p];
            parts.part[p] = Part{on_device(matrices.back().units), end, rows, n, p};
            n += rows;
        } else {
            parts.part[p] = Part{nullptr, end, 0, 0, 0};
        }
    }
    double worst = 0;
    int unwritten = 0;
    std::vector<std::vector<uint8_t>> first;
    for (int m : {1, 2, 3, 8, 9, 16}) {
        if (m > l.v.rows_max() || !l.fits(m, k)) continue;
        std::mt19937 local(7);
        std::normal_distribution<float> normal;
        std::vector<uint16_t> x((size_t)m * k), before((size_t)m * n);
        for (auto &v : x) v = bf16(normal(local) + 0.3f);
        for (auto &v : before) v = bf16(normal(local));
        size_t width = f32 ? 4 : 2;
        std::vector<uint8_t> out((size_t)m * n * width, 0xff);
        if (add) memcpy(out.data(), before.data(), out.size());
        auto *d_out = on_device(out);
        std::vector<uint16_t> laid((size_t)(m + 7) / 8 * 8 * k);
        for (int token = 0; token < m; token++)
            for (int c = 0; c < k; c++)
                laid[l.v.eights ? (size_t)(token / 8 * 8) * k + c / 32 * 256 + token % 8 * 32 + c % 32 : (size_t)token * k + c] = x[(size_t)token * k + c];
        auto *d_x = on_device(laid);
        std::vector<uint16_t> weight(k);
        std::mt19937 other(8);
        for (auto &v : weight) v = bf16(normal(other));
        auto *d_norm = on_device(weight);
        l.run(d_out, d_x, parts, m, n, k, d_norm);
        CHECK(cudaStreamSynchronize(l.stream));
        CHECK(cudaMemcpy(out.data(), d_out, out.size(), cudaMemcpyDeviceToHost));
        for (int token = 0; l.v.near == 2 && token < m; token++) {
            double squares = 0;
            for (int c = 0; c < k; c++) squares += pow(bf16_value(x[(size_t)token * k + c]), 2);
            for (int c = 0; c < k; c++) {
                auto &value = x[(size_t)token * k + c];
                value = bf16(bf16_value(value) / sqrt(squares / k + 1e-6) * bf16_value(weight[c]));
            }
        }
        double error = 0, norm = 0;
        for (int token = 0; token < m; token++)
            for (size_t p = 0; p < matrices.size(); p++)
                for (int r = 0; r < parts.part[p].rows; r++) {
                    auto dot = [&](int row) {
                        double y = 0;
                        for (int c = 0; c < k; c++) y += (double)matrices[p].values[(size_t)row * k + c] * bf16_value(x[(size_t)token * k + c]);
                        return y;
                    };
                    size_t at = (size_t)token * n + parts.part[p].column + r;
                    double wanted;
                    if (silu) {
                        double gate = dot(r / 8 * 16 + r % 8), up = dot(r / 8 * 16 + r % 8 + 8);
                        wanted = gate / (1 + exp(-gate)) * up;
                    } else {
                        wanted = dot(r) + (add ? bf16_value(before[at]) : 0);
                    }
                    float found;
                    if (f32) memcpy(&found, &out[at * 4], 4);
                    else found = bf16_value((uint16_t)(out[at * 2] | out[at * 2 + 1] << 8));
                    if (std::isnan(found)) unwritten++;
                    else error += (found - wanted) * (found - wanted), norm += wanted * wanted;
                }
        worst = std::max(worst, sqrt(error / norm));
        first.push_back(std::vector<uint8_t>(out.begin(), out.begin() + n * width));
        CHECK(cudaFree(d_out));
        CHECK(cudaFree(d_x));
        CHECK(cudaFree(d_norm));
    }
    // The first token's sums are the same whatever stands beside it.
    bool same = true;
    for (auto &row : first) same = same && row == first[0];
    // Roundings of the norm are not those of the kernel.
    bool passed = worst < (l.v.near == 2 ? 4e-3 : f32 ? 2e-5 : 2.5e-3) && unwritten == 0 && (same || add);
    printf("%s %s+%s NT %d MODE %d k %d: relative error %.2e, unwritten %d, %s\n", passed ? "ok  " : "FAIL", NAMES[l.v.type[0]], NAMES[l.v.type[1]],
           l.v.nt, l.v.mode, k, worst, unwritten, same ? "rows equal" : "rows differ");
    return passed;
}

void time(const Launch &l, int n, int k) {
    int type = l.v.type[0], across = (k + 255) / 256, tiles = n / 16;
    size_t bytes = (size_t)tiles * across * SIZES[type];
    int copies = (int)std::max<size_t>(2, (400u << 20) / bytes + 1), runs = std::max(copies, 24);
    Matrix small = random_matrix(type, 32, k);
    uint8_t *w;
    CHECK(cudaMalloc(&w, bytes * copies));
    size_t filled = small.units.size();
    CHECK(cudaMemcpy(w, small.units.data(), filled, cudaMemcpyHostToDevice));
    for (; filled < bytes * copies; filled *= 2)
        CHECK(cudaMemcpy(w + filled, w, std::min(filled, bytes * copies - filled), cudaMemcpyDeviceToDevice));
    uint16_t *x;
    void *out;
    CHECK(cudaMalloc(&x, 16 * k * 2));
    CHECK(cudaMalloc(&out, (size_t)16 * n * 4));
    std::vector<uint16_t> values(16 * k);
    for (auto &v : values) v = bf16(upto(2001) / 1000.f - 1);
    CHECK(cudaMemcpy(x, values.data(), values.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(out, 0, (size_t)16 * n * 4));
    int outputs = l.v.mode == 2 ? n / 2 : n;
    printf("%-7s nt %d mode %d depth %d warps %2d x %d near %d integer %d eights %d %6d x %5d:", NAMES[type], l.v.nt, l.v.mode, l.v.depth, l.v.warps,
           l.v.blocks, l.v.near, l.v.integer, l.v.eights, n, k);
    for (int m : {l.v.near ? 1 : 8 * (l.v.nt - 1) + 1, l.v.rows_max()}) {
        if (!l.fits(m, k)) continue;
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        CHECK(cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < runs; i++) {
            Parts parts{};
            for (int p = 0; p < 4; p++) parts.part[p] = Part{w + (size_t)(i % copies) * bytes, tiles, outputs, 0, 0};
            l.run(out, x, parts, m, outputs, k, x);
        }
        CHECK(cudaStreamEndCapture(l.stream, &graph));
        CHECK(cudaGraphInstantiate(&ready, graph, 0));
        cudaEvent_t begin, ended;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&ended));
        std::vector<float> times;
        for (int i = 0; i < 5; i++) {
            float ms;
            CHECK(cudaEventRecord(begin, l.stream));
            CHECK(cudaGraphLaunch(ready, l.stream));
            CHECK(cudaEventRecord(ended, l.stream));
            CHECK(cudaEventSynchronize(ended));
            CHECK(cudaEventElapsedTime(&ms, begin, ended));
            times.push_back(ms);
        }
        std::sort(times.begin(), times.end());
        double us = times[1] * 1e3 / runs;
        printf("  m %2d %7.2f us %4.2f TB/s %3.0f %%", m, us, bytes / us / 1e6, bytes / us / 1e6 / 4.2 * 100);
        CHECK(cudaGraphExecDestroy(ready));
        CHECK(cudaGraphDestroy(graph));
    }
    printf("\n");
    CHECK(cudaFree(w));
    CHECK(cudaFree(x));
    CHECK(cudaFree(out));
}

int main(int count, char **files) {
    setbuf(stdout, nullptr);
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    int failed = 0;
    for (int i = 1; i < count; i++) {
        const char *name = strrchr(files[i], '/') ? strrchr(files[i], '/') + 1 : files[i];
        Launch l{};
        Variant &v = l.v;
        if (sscanf(name, "%d-%d-%d-%d-%d-%d-%d-%d-%d-%d-%d", &v.type[0], &v.type[1], &v.nt, &v.mode, &v.depth, &v.warps, &v.blocks, &v.near, &v.one,
                   &v.integer, &v.eights) != 11) {
            printf("FAIL %s: not named by its flags\n", name);
            return 2;
        }
        printf("%s\n", name);
        cudaLibrary_t library;
        CHECK(cudaLibraryLoadFromFile(&library, files[i], nullptr, nullptr, 0, nullptr, nullptr, 0));
        CHECK(cudaLibraryGetKernel(&l.kernel, library, "few_rows_packed"));
        CHECK(cudaFuncSetAttribute((const void *)l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
        CHECK(cudaStreamCreate(&l.stream));
        bool wide = v.type[0] == Q4_K || (v.type[0] >= Q5_K && v.type[0] != IQ4_NL);
        // One block: warps have whole tiles. Many: several warps share each.
        for (l.blocks = 2; !getenv("NO_CHECK") && l.blocks-- > 0;) failed += !check(l, wide ? 1280 : 1120);
        l.blocks = 0;
        if (v.mode == 3) failed += !check(l, 5120);
        if (v.type[0] != v.type[1] || getenv("NO_TIME")) continue;
        if (v.mode == 2) {
            time(l, 24576, 4096);
            time(l, 34816, 5120);
        } else if (v.mode == 0) {
            time(l, 4096, 4096);
            time(l, 12288, 4096);
            time(l, 5120, 6144);
            time(l, 16384, 5120);
            time(l, 4096, 12288);
            time(l, 5120, 17408);
            if (v.type[0] == Q6_K) time(l, 151936, 4096);
        }
    }
    printf("%d failed\n", failed);
    return failed > 0;
}
