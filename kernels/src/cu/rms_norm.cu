// out[i] = rms(h[pick[i]]; w), bf16 in and out, f32 inside; `pick` null means i. One block of 256 a row.
// The order of the sum depends on the width alone, so a row is the same in every batch. `eights`: the rows are wanted in eights.
#include "prelude.cuh"

// Build flag: F16 = 1: the rows are wanted as f16, whatever the model's type is.
#if F16
#define OUT_PACK f16_pack
#else
#define OUT_PACK half_pack
#endif

#define KEPT 4  // chunks of 8 that a thread keeps: widths up to 8,192 are read once

extern "C" __global__ void __launch_bounds__(256) rms_norm(u16 *out, const u16 *h, const u16 *w, const int *pick, int hidden,
                                                       float eps, int eights) {
    __shared__ float partial[8];
    int chunks = hidden / 8;
    U4 x[KEPT], g[KEPT];
    // The weight does not depend on the previous kernel.
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (threadIdx.x + 256 * j < chunks) g[j] = load16(w + 8 * (threadIdx.x + 256 * j));
    start_next();
    wait_previous();
    long long row = pick ? pick[blockIdx.x] : blockIdx.x;
    const u16 *from = h + row * hidden;
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (threadIdx.x + 256 * j < chunks) x[j] = load16(from + 8 * (threadIdx.x + 256 * j));
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (threadIdx.x + 256 * j < chunks) add_squares(sum, x[j]);
    for (int i = threadIdx.x + 256 * KEPT; i < chunks; i += 256) add_squares(sum, load16(from + 8 * i));
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = sum;
    __syncthreads();
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) total += partial[i];
    float scale = rsqrtf(total / hidden + eps);
    auto store = [&](int i, U4 v, U4 g) {
        U4 y;
        const u32 *p = (const u32 *)&v, *q = (const u32 *)&g;
        u32 *o = (u32 *)&y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[j] = OUT_PACK(half_lo(p[j]) * scale * half_lo(q[j]), half_hi(p[j]) * scale * half_hi(q[j]));
        *(U4 *)(out + row_place(blockIdx.x, 8 * i, hidden, eights)) = y;
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (threadIdx.x + 256 * j < chunks) store(threadIdx.x + 256 * j, x[j], g[j]);
    for (int i = threadIdx.x + 256 * KEPT; i < chunks; i += 256) store(i, load16(from + 8 * i), load16(w + 8 * i));
}
