// Hopper's prefill attention alone: checked against a plain f32 kernel, then timed. For work on the kernel itself; whole
// models are checked by the program beside this folder.
//
//   nvcc -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a -DHEADS=32 -DKV_HEADS=8 -DHEAD_DIM=128 -DQTOKENS=32 \
//        -I kernels/src/cu tests/gpu/kernels/attend_prefill.cu -lcuda -o attend && ./attend
//
// QTOKENS is 128 / (HEADS / KV_HEADS); gated heads: -DQ_STEP=2. -DSTAGES=n and other build flags of the kernel go the same way. Outputs are
// poisoned, pages lie in random order, and each case prints its splits, relative error, time and rate; with SUSTAIN=2 in the
// environment also what it takes when it runs for two seconds, and what it draws. ONLY=text: the cases whose names have it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "attend_prefill_sm90.cu"
#include "attend_merge_tiles.cu"
#include "harness.cuh"

const int TABLE_WIDTH = 1700, SEATS = 9, PAGES = 1800, ROWS_MAX = 28672, SAMPLES = 384, REPEATS = 9;

// One block of 256 a sampled (row, head); `scores` [samples][keys_max].
__global__ void reference(float *out, float *scores, const int2 *samples, const int *row_seat, const int *row_position,
                          const u16 *qkv, const u16 *kv, const int *page_table, int keys_max, float scale_log2) {
    __shared__ float shared_values[256];
    int row = samples[blockIdx.x].x, head = samples[blockIdx.x].y, keys = row_position[row] + 1;
    const int *pages = page_table + (long long)row_seat[row] * TABLE_WIDTH;
    const u16 *q = qkv + ((long long)row * HEADS_ALL + HEAD_SLOT(head)) * HEAD_DIM;
    float *score = scores + (long long)blockIdx.x * keys_max, top = NEG_INF, total = 0.f;
    auto tile = [&](int key) { return kv + ((long long)pages[key / PAGE] * KV_HEADS + head / GROUP) * 2 * PAGE * HEAD_DIM; };
    for (int key = threadIdx.x; key < keys; key += 256) {
        float x = 0.f;
        for (int d = 0; d < HEAD_DIM; d++) x += half_to_f32(q[d]) * half_to_f32(tile(key)[key % PAGE * HEAD_DIM + d]);
        score[key] = x * scale_log2;
        top = fmaxf(top, score[key]);
    }
    shared_values[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < 256; i++) top = fmaxf(top, shared_values[i]);
    __syncthreads();
    for (int key = threadIdx.x; key < keys; key += 256) total += score[key] = exp2f(score[key] - top);
    shared_values[threadIdx.x] = total;
    __syncthreads();
    total = 0.f;
    for (int i = 0; i < 256; i++) total += shared_values[i];
    if (threadIdx.x >= HEAD_DIM) return;
    float y = 0.f;
    for (int key = 0; key < keys; key++)
        y += score[key] * half_to_f32(tile(key)[PAGE * HEAD_DIM + threadIdx.x * PAGE + key % PAGE]);
    y /= total;
    if (Q_STEP == 2) y = gated(y, half_to_f32(q[HEAD_DIM + threadIdx.x]));
    out[(long long)blockIdx.x * HEAD_DIM + threadIdx.x] = y;
}

struct Case {
    const char *name;
    std::vector<std::pair<int, int>> runs;  // rows, and the prefix before them
    // Of the first run's tiles, as `split_prompts` of backend-cuda has them.
    int splits = 1, more = 0, more_splits = 2, firsts = 0, first_keys = 0;
    bool in_parts() const { return firsts + splits + more > 1; }
};

// What all cases share on the device.
struct Bench {
    u16 *qkv, *kv, *out;
    float *part_o;
    float2 *part_ml;
    CUtensorMap *maps;
    int multiprocessors;
    std::mt19937 random{7};
};

struct Layout {
    std::vector<RunInfo> runs;
    std::vector<TileWork> tiles;
    std::vector<int> merges;
    std::vector<int> table, row_seat, row_position;
    double operations = 0;
    int keys_max = 0;
};

// The lists that `begin_step` would make.
Layout lay_out(Bench &bench, const Case &c) {
    Layout l;
    l.table.resize(SEATS * TABLE_WIDTH);
    std::vector<int> pages(PAGES);
    for (int i = 0; i < PAGES; i++) pages[i] = i;
    std::shuffle(pages.begin(), pages.end(), bench.random);
    int next_page = 0;
    for (int seat = 0; seat < (int)c.runs.size(); seat++) {
        auto [rows, start] = c.runs[seat];
        for (int p = 0; p * PAGE < start + rows; p++) l.table[seat * TABLE_WIDTH + p] = pages[next_page++ % PAGES];
        Case of = seat ? Case{} : c;
        int item0 = l.tiles.size(), count = (rows + QTOKENS - 1) / QTOKENS, all = count * KV_HEADS, few = all - of.more;
        l.runs.push_back({seat, rows, (int)l.row_seat.size(), 0, -1, start + rows, item0, of.splits, 0, 0, of.more, (u8)of.firsts,
                          (u8)of.more_splits, (u16)of.first_keys});
        auto add = [&](int part, int i) {
            int parts = of.firsts + (i < few ? of.splits : of.more_splits);
            int place = item0 + i * (of.firsts + of.splits) + std::max(i - few, 0) * (of.more_splits - of.splits) + part;
            int head = of.in_parts() ? i / count : i % KV_HEADS, tile = of.in_parts() ? i % count : i / KV_HEADS;
            if (part == 0 && parts > 1) l.merges.push_back(l.tiles.size());
            l.tiles.push_back({(u16)seat, (u16)head, (u16)part, (u16)parts, count - 1 - tile, place});
        };
        for (int part = 0; part < of.firsts; part++)
            for (int i = 0; i < all; i++) add(part, i);
        for (int part = 0; part < of.splits; part++)
            for (int i = 0; i < few; i++) add(of.firsts + part, i);
        for (int part = 0; part < of.more_splits; part++)
            for (int i = few; i < all; i++) add(of.firsts + part, i);
        for (int j = 0; j < rows; j++) {
            l.row_seat.push_back(seat);
            l.row_position.push_back(start + j);
            l.operations += 4.0 * HEADS * HEAD_DIM * (start + j + 1);
        }
        l.keys_max = std::max(l.keys_max, start + rows);
    }
    return l;
}

bool run(Bench &bench, const Case &c) {
    Layout l = lay_out(bench, c);
    int rows = l.row_seat.size();
    const float scale = 1.4426950408889634f / sqrtf(HEAD_DIM);
    StepInfo step = {};
    step.runs = l.runs.size();
    step.rows = rows;
    step.tiles = l.tiles.size();
    step.merges = l.merges.size();
    std::vector<int2> samples(SAMPLES);
    // The last rows always, others at random.
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = {i < std::min(rows, 64) ? rows - 1 - i : (int)(bench.random() % rows), (int)(bench.random() % HEADS)};
    StepInfo *d_step = on_device(std::vector<StepInfo>{step});
    RunInfo *d_runs = on_device(l.runs);
    TileWork *d_tiles = on_device(l.tiles);
    l.merges.resize(l.merges.size() + 3);  // blocks without a tile
    int *d_merges = on_device(l.merges), *d_table = on_device(l.table), *d_seat = on_device(l.row_seat), *d_position = on_device(l.row_position);
    int2 *d_samples = on_device(samples);
    float *scores = allocate<float>((size_t)SAMPLES * l.keys_max), *d_wanted = allocate<float>(SAMPLES * HEAD_DIM);
    reference<<<SAMPLES, 256>>>(d_wanted, scores, d_samples, d_seat, d_position, bench.qkv, bench.kv, d_table, l.keys_max, scale);

    const int shared = BARRIERS_AT + 8 * (4 * STAGES + 2) + sizeof(Tile);
    CHECK(cudaFuncSetAttribute(attend_prefill_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int turn = 0;
    auto launch = [&]() {
        attend_prefill_sm90<<<bench.multiprocessors, THREADS, shared>>>(bench.out, (const u8 *)bench.maps, bench.qkv, d_step, d_runs, d_tiles,
                                                                        d_table, TABLE_WIDTH, turn++, scale, bench.part_o, bench.part_ml);
        if (c.in_parts())
            attend_merge_tiles<<<dim3(l.merges.size(), ROWS / 32), 256>>>(bench.out, bench.part_o, bench.part_ml, d_step, d_runs, d_tiles,
                                                                           d_merges, bench.qkv);
    };
    CHECK(cudaMemset(bench.out, 0xff, (size_t)ROWS_MAX * HEADS * HEAD_DIM * 2));
    launch();
    CHECK(cudaDeviceSynchronize());
    std::vector<u16> found((size_t)(rows + 64) * HEADS * HEAD_DIM);
    std::vector<float> wanted(SAMPLES * HEAD_DIM);
    CHECK(cudaMemcpy(found.data(), bench.out, found.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(wanted.data(), d_wanted, wanted.size() * 4, cudaMemcpyDeviceToHost));
    size_t unwritten = 0, beyond = 0, end = (size_t)rows * HEADS * HEAD_DIM;
    for (size_t i = 0; i < found.size(); i++) (i < end ? unwritten : beyond) += (found[i] == 0xffff) == (i < end);
    double error = 0, norm = 0;
    for (int i = 0; i < SAMPLES; i++)
        for (int d = 0; d < HEAD_DIM; d++) {
            u32 bits = (u32)found[((size_t)samples[i].x * HEADS + samples[i].y) * HEAD_DIM + d] << 16;
            float x;
            memcpy(&x, &bits, 4);
            double y = wanted[i * HEAD_DIM + d];
            error += (x - y) * (x - y);
            norm += y * y;
        }
    if (const char *seconds = getenv("SUSTAIN")) Sustained().run(c.name, atof(seconds), l.operations, launch);
    std::vector<float> times;
    cudaEvent_t begin, ended;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&ended));
    for (int i = 0; i < REPEATS; i++) {
        float ms;
        CHECK(cudaEventRecord(begin));
        launch();
        CHECK(cudaEventRecord(ended));
        CHECK(cudaEventSynchronize(ended));
        CHECK(cudaEventElapsedTime(&ms, begin, ended));
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    double relative = sqrt(error / norm), ms = times[REPEATS / 2];
    // NaN compares false.
    bool passed = relative < 6e-3 && unwritten == 0 && beyond == 0;
    printf("%s %-20s %zu items, relative error %.2e, unwritten %zu, beyond %zu, %.4f ms, %.0f TFLOP/s\n", passed ? "ok  " : "FAIL", c.name, l.tiles.size(),
           relative, unwritten, beyond, ms, l.operations / ms / 1e9);
    for (void *p : {(void *)d_step, (void *)d_runs, (void *)d_tiles, (void *)d_merges, (void *)d_table, (void *)d_seat, (void *)d_position,
                    (void *)d_samples, (void *)scores, (void *)d_wanted})
        CHECK(cudaFree(p));
    return passed;
}

int main() {
    setbuf(stdout, nullptr);
    Bench bench;
    CHECK(cudaDeviceGetAttribute(&bench.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    const cuuint64_t heads = HEADS_ALL, dim = HEAD_DIM, tiles = (cuuint64_t)PAGES * KV_HEADS;
    size_t qkv_count = ROWS_MAX * heads * dim, kv_count = tiles * 2 * PAGE * dim;
    bench.qkv = allocate<u16>(qkv_count);
    bench.kv = allocate<u16>(kv_count);
    bench.out = allocate<u16>((size_t)ROWS_MAX * HEADS * HEAD_DIM);
    size_t parts = 6 * (size_t)bench.multiprocessors * ROWS;
    bench.part_o = allocate<float>(parts * HEAD_DIM);
    bench.part_ml = allocate<float2>(parts);
    CHECK(cudaMemset(bench.part_o, 0xff, parts * HEAD_DIM * 4));
    fill<<<2048, 256>>>(bench.qkv, qkv_count, 1, 1.6f);
    fill<<<2048, 256>>>(bench.kv, kv_count, 2, 1.f);
    bench.maps = on_device(std::vector<CUtensorMap>{
        tensor_map(bench.qkv, {dim, HEADS, ROWS_MAX}, {Q_STEP * dim * 2, heads * dim * 2}, {64, GROUP, QTOKENS}),
        tensor_map(bench.kv, {dim, tiles * 2 * PAGE}, {dim * 2}, {64, PAGE}),
        tensor_map(bench.kv, {PAGE, tiles * 2 * dim}, {PAGE * 2}, {PAGE, HEAD_DIM}),
    });
    std::vector<std::pair<int, int>> eight(8, {1000, 0});
    const std::vector<Case> cases = {
        {"ragged", {{5, 0}, {64, 70}, {130, 333}, {257, 1000}, {33, 63}, {2, 127}, {300, 128}}},
        {"8,000", {{8000, 0}}},
        {"8,192 at 19,808", {{8192, 19808}}},
        {"2,048 at 25,952", {{2048, 25952}}},
        {"1,024 at 100,000", {{1024, 100000}}},
        {"8 of 1,000", eight},
        {"256 at 100,000", {{256, 100000}}, 2},
        {"256 at 100,000 u", {{256, 100000}}, 1, 0, 1, 2, 380},
        {"304 at 50,000", {{304, 50000}}, 6, 48, 7},
        {"304 at 50,000 u", {{304, 50000}}, 1, 28, 5, 1, 244},
        {"384 at 100,000", {{384, 100000}}, 5, 48, 6},
        {"192 at 96,000", {{192, 96000}}, 5, 24, 6},
        {"192 at 96,000 u", {{192, 96000}}, 1, 12, 3, 2, 274},
        {"250 at 50,000", {{250, 50000}}, 2},
        {"480 at 36,000", {{480, 36000}}, 3, 36, 4},
        {"480 at 36,000 u", {{480, 36000}}, 1, 0, 1, 1, 257},
        {"576 at 30,000", {{576, 30000}}, 4, 84, 5},
        {"576 at 30,000 u", {{576, 30000}}, 1, 12, 11},
        {"160 at 4,500", {{160, 4500}}, 2},
        {"deep and shallow", {{200, 60000}, {40, 0}, {70, 500}, {33, 4100}, {2, 9000}}, 4, 40, 5},
        {"28,000", {{28000, 0}}},
    };
    int failed = 0;
    const char *only = getenv("ONLY");
    int asked = 0;
    for (const Case &c : cases)
        if (!only || strstr(c.name, only)) failed += !run(bench, c), asked++;
    printf("%d passed, %d failed\n", asked - failed, failed);
    return failed > 0;
}
