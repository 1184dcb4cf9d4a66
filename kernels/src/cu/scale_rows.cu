// x[row, c] *= row_scales[row] * weight_scales[c]: sums of codes to values, 16-bit in place. Grid: (n / 2048, rows), 256 threads.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) scale_rows(u16 *x, const float *row_scales, const float *weight_scales, int n) {
    wait_previous();
    start_next();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n / 8) return;
    U4 *at = (U4 *)(x + (long long)blockIdx.y * n) + i;
    U4 v = *at;
    u32 *p = (u32 *)&v;
    float row_scale = row_scales[blockIdx.y];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 s = ((const float2 *)weight_scales)[4 * i + j];
        p[j] = half_pack(half_lo(p[j]) * row_scale * s.x, half_hi(p[j]) * row_scale * s.y);
    }
    *at = v;
}
