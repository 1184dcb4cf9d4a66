// codes[i] = e4m3(rms(h[pick[i]]; w) / scale): the norm in front of an FP8 product of many rows. One block of 256 a row.
//
// With `raw`, the product before left its sums of codes there: h[row, c] += raw[row, c] row_scales[row] weight_scales[c]
// comes first. Build flag: OUT = 0: codes with one scale a row, in `row_scales`; 1: codes with one for each 128 columns,
// scales[c / 128][row] with `stride` rows; 2: 16-bit values in `out` instead. `hidden` is a multiple of 128, `pick` null
// means i.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) rms_norm_fp8(void *out, float *row_scales, int stride, u16 *h, const u16 *w,
                                                           const int *pick, const u16 *raw, const float *weight_scales,
                                                           int hidden, float eps) {
    __shared__ float partial[8];
    wait_previous();
    start_next();
    long long row = pick ? pick[blockIdx.x] : blockIdx.x;
    U4 *x = (U4 *)(h + row * hidden);
    const U4 *weight = (const U4 *)w, *sums = (const U4 *)(raw + row * hidden);
    float row_scale = raw ? row_scales[row] : 0.f, sum = 0.f, most = 0.f;
    for (int i = threadIdx.x; i < hidden / 8; i += 256) {
        U4 v = x[i], g = weight[i];
        u32 *p = (u32 *)&v;
        const u32 *q = (const u32 *)&g;
        if (raw) {
            U4 r = sums[i];
            const u32 *y = (const u32 *)&r;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 s = ((const float2 *)weight_scales)[4 * i + j];
                p[j] = half_pack(half_lo(p[j]) + half_lo(y[j]) * row_scale * s.x, half_hi(p[j]) + half_hi(y[j]) * row_scale * s.y);
            }
            x[i] = v;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = half_lo(p[j]), b = half_hi(p[j]);
            sum = fmaf(a, a, sum);
            sum = fmaf(b, b, sum);
            most = fmaxf(most, fmaxf(fabsf(a * half_lo(q[j])), fabsf(b * half_hi(q[j]))));
        }
    }
    sum = block_sum256(sum, partial);  // behind it every thread has read the row's scale
    float scale = rsqrtf(sum / hidden + eps), inverse = 0.f;
    if (OUT == 0) inverse = e4m3_scale(block_max(most, partial) * scale, threadIdx.x == 0 ? &row_scales[blockIdx.x] : 0);
    for (int i = threadIdx.x; i < hidden / 8; i += 256) {
        U4 v = x[i], g = weight[i];
        const u32 *p = (const u32 *)&v, *q = (const u32 *)&g;
        float y[8];
        most = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            y[2 * j] = half_lo(p[j]) * scale * half_lo(q[j]);
            y[2 * j + 1] = half_hi(p[j]) * scale * half_hi(q[j]);
            most = fmaxf(most, fmaxf(fabsf(y[2 * j]), fabsf(y[2 * j + 1])));
        }
        if (OUT == 2) {
            U4 *to = (U4 *)((u16 *)out + (long long)blockIdx.x * hidden);
            to[i] = U4{half_pack(y[0], y[1]), half_pack(y[2], y[3]), half_pack(y[4], y[5]), half_pack(y[6], y[7])};
            continue;
        }
        if (OUT == 1) inverse = e4m3_scale(group_max(most), i % 16 == 0 ? &row_scales[(long long)(i / 16) * stride + blockIdx.x] : 0);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] *= inverse;
        ((U2 *)((u8 *)out + (long long)blockIdx.x * hidden))[i] = e4m3_pack8(y);
    }
}
