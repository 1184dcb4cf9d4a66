// y = W x for the few outputs that the delta rule's gates are, and few rows of x: beside FP8 weights, whose product they
// cannot join.
//
// Shapes: x [m, k] f16, W [n, k] in the model's 16-bit type, out [m, n]; m <= 16, k a multiple of 8. A block of 128 threads
// has one output for all rows: its weights are on their way before the rows are there, and a row's sum has the same order
// for every m.
#include "prelude.cuh"

#define WARPS 4
#define THREADS (WARPS * WARP)
#define ROWS_MAX 16
#define KEPT 8  // pieces of eight that a thread has on the way at once

extern "C" __global__ void __launch_bounds__(THREADS) delta_gates(u16 *out, const u16 *x, const u16 *w, int m, int n, int k) {
    __shared__ float partial[ROWS_MAX][WARPS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u16 *row = w + (long long)blockIdx.x * k;
    U4 kept[KEPT];
    auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            int at = (first + i * THREADS + threadIdx.x) * 8;
            kept[i] = at < k ? load_stream(row + at) : U4{};
        }
    };
    load(0);
    start_next();
    wait_previous();
    float sums[ROWS_MAX] = {};
    for (int first = 0; first * 8 < k; first += KEPT * THREADS) {
        if (first > 0) load(first);
#pragma unroll
        for (int token = 0; token < ROWS_MAX; token++) {
            if (token >= m) continue;
#pragma unroll
            for (int i = 0; i < KEPT; i++) {
                int at = (first + i * THREADS + threadIdx.x) * 8;
                U4 v = at < k ? load16(x + (long long)token * k + at) : U4{};
                const u32 *a = (const u32 *)&kept[i], *b = (const u32 *)&v;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sums[token] = fmaf(half_lo(a[j]), f16_to_f32(b[j]), sums[token]);
                    sums[token] = fmaf(half_hi(a[j]), f16_to_f32(b[j] >> 16), sums[token]);
                }
            }
        }
    }
#pragma unroll
    for (int token = 0; token < ROWS_MAX; token++) {
        if (token >= m) continue;
        float sum = warp_sum(sums[token]);
        if (lane == 0) partial[token][warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < m) {
        float y = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) y += partial[threadIdx.x][i];
        out[(long long)threadIdx.x * n + blockIdx.x] = f32_to_half(y);
    }
}
