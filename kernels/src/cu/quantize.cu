// codes[r, c] = e4m3(x[r, c] / scale): rows of activations or weights to FP8, 16-bit in, one block of 256 a row.
//
// Build flag: GROUPS = 0: one scale a row, scales[r]; GROUPS = 1: one for each 128 columns, scales[c / 128][r] with
// `stride` rows. A scale is the largest magnitude over 448.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) quantize(u8 *codes, float *scales, int stride, const u16 *x, int cols) {
    __shared__ float partial[8];
    wait_previous();
    start_next();
    long long row = blockIdx.x;
    const U4 *from = (const U4 *)(x + row * cols);
    U2 *to = (U2 *)(codes + row * cols);
    float inverse = 0.f;
    if (!GROUPS) {
        float most = 0.f;
        for (int i = threadIdx.x; i < cols / 8; i += 256) most = fmaxf(most, largest8(from[i]));
        most = block_max(most, partial);
        inverse = e4m3_scale(most, threadIdx.x == 0 ? &scales[row] : 0);
    }
    for (int i = threadIdx.x; i < cols / 8; i += 256) {
        U4 v = from[i];
        if (GROUPS) {
            float most = group_max(largest8(v));
            inverse = e4m3_scale(most, i % 16 == 0 ? &scales[(long long)(i / 16) * stride + row] : 0);
        }
        float y[8];
        const u32 *p = (const u32 *)&v;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            y[2 * j] = half_lo(p[j]) * inverse;
            y[2 * j + 1] = half_hi(p[j]) * inverse;
        }
        to[i] = e4m3_pack8(y);
    }
}
