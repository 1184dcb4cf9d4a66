// out[i] = rms(h[pick[i]]; w), bf16 in and out, f32 inside; `pick` null means i. One block of 256 a row.
// The order of the sum depends on the width alone, so a row is the same in every batch.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) rms_norm(u16 *out, const u16 *h, const u16 *w, const int *pick, int hidden,
                                                       float eps) {
    __shared__ float partial[8];
    wait_previous();
    start_next();
    long long row = pick ? pick[blockIdx.x] : blockIdx.x;
    const U4 *x = (const U4 *)(h + row * hidden);
    float sum = 0.f;
    for (int i = threadIdx.x; i < hidden / 8; i += 256) {
        U4 v = x[i];
        const u32 *p = (const u32 *)&v;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = bf16_lo(p[j]), b = bf16_hi(p[j]);
            sum = fmaf(a, a, sum);
            sum = fmaf(b, b, sum);
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = sum;
    __syncthreads();
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) total += partial[i];
    float scale = rsqrtf(total / hidden + eps);
    U4 *to = (U4 *)(out + (long long)blockIdx.x * hidden);
    for (int i = threadIdx.x; i < hidden / 8; i += 256) {
        U4 v = x[i], g = ((const U4 *)w)[i], y;
        const u32 *p = (const u32 *)&v, *q = (const u32 *)&g;
        u32 *o = (u32 *)&y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[j] = bf16_pack(bf16_lo(p[j]) * scale * bf16_lo(q[j]), bf16_hi(p[j]) * scale * bf16_hi(q[j]));
        to[i] = y;
    }
}
