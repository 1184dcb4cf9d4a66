// codes[row, i] = e4m3(silu(gate_up[row, i]) * gate_up[row, ffn + i] / scale): the activation in front of an FP8 product.
// One block of 256 a row. With `weight_scales`, gate_up are sums of codes: times scales[row] weight_scales[column] first.
// Build flag: GROUPS, as in quantize.cu; `ffn` is a multiple of 128.
#include "prelude.cuh"

__device__ __forceinline__ float activated8(float (&y)[8], const U4 &gate, const U4 &up, const float2 *gate_scales,
                                            const float2 *up_scales, float row_scale) {
    const u32 *p = (const u32 *)&gate, *q = (const u32 *)&up;
    float most = 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 s = make_float2(1.f, 1.f), t = s;
        if (gate_scales) {
            s = gate_scales[j];
            t = up_scales[j];
        }
        float lo = half_lo(p[j]) * row_scale * s.x, hi = half_hi(p[j]) * row_scale * s.y;
        y[2 * j] = lo / (1.f + __expf(-lo)) * (half_lo(q[j]) * row_scale * t.x);
        y[2 * j + 1] = hi / (1.f + __expf(-hi)) * (half_hi(q[j]) * row_scale * t.y);
        most = fmaxf(most, fmaxf(fabsf(y[2 * j]), fabsf(y[2 * j + 1])));
    }
    return most;
}

extern "C" __global__ void __launch_bounds__(256) silu_mul_fp8(u8 *codes, float *scales, int stride, const u16 *gate_up,
                                                           const float *weight_scales, int ffn) {
    __shared__ float partial[8];
    wait_previous();
    start_next();
    long long row = blockIdx.x;
    const U4 *gate = (const U4 *)(gate_up + row * 2 * ffn), *up = (const U4 *)(gate_up + row * 2 * ffn + ffn);
    U2 *to = (U2 *)(codes + row * ffn);
    const float2 *gate_scales = (const float2 *)weight_scales, *up_scales = (const float2 *)(weight_scales + ffn);
    float y[8], inverse = 0.f, row_scale = weight_scales ? scales[row] : 1.f;
    auto activate = [&](int i) {
        return activated8(y, gate[i], up[i], weight_scales ? gate_scales + 4 * i : 0, up_scales + 4 * i, row_scale);
    };
    if (!GROUPS) {
        float most = 0.f;
        for (int i = threadIdx.x; i < ffn / 8; i += 256) most = fmaxf(most, activate(i));
        inverse = e4m3_scale(block_max(most, partial), threadIdx.x == 0 ? &scales[row] : 0);
    }
    // Computed again rather than kept: the row is still in the first cache.
    for (int i = threadIdx.x; i < ffn / 8; i += 256) {
        float most = activate(i);
        if (GROUPS) inverse = e4m3_scale(group_max(most), i % 16 == 0 ? &scales[(long long)(i / 16) * stride + row] : 0);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] *= inverse;
        to[i] = e4m3_pack8(y);
    }
}
