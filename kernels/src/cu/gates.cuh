// The gates of the delta rule, an output a block: beside FP8 weights, whose product they cannot join.
//
// y = W x, x [m, k] f16, W [n, k] in the model's 16-bit type; k a multiple of 8. All GATE_WARPS warps of a block share a row
// of weights; the warps' sums are added in their order: the same for every number of rows, and wherever it is computed.
#include "prelude.cuh"

#define GATE_WARPS 16

struct Gates {
    u16 *out;
    const u16 *w;
    int n;
};

// This thread's part of a sum.
__device__ __forceinline__ float gate_sum(const u16 *weights, const u16 *row, int k) {
    float sum = 0.f;
    for (int at = threadIdx.x * 8; at < k; at += GATE_WARPS * WARP * 8) {
        U4 u = load16(weights + at), v = load16(row + at);
        const u32 *a = (const u32 *)&u, *b = (const u32 *)&v;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum = fmaf(half_lo(a[j]), f16_to_f32(b[j]), sum);
            sum = fmaf(half_hi(a[j]), f16_to_f32(b[j] >> 16), sum);
        }
    }
    return sum;
}

// `partial` [m][GATE_WARPS] has the warps' sums; a barrier lies between.
__device__ __forceinline__ void write_gates(const Gates &gates, const float (*partial)[GATE_WARPS], int m) {
    if (blockIdx.x >= gates.n || threadIdx.x >= m) return;
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < GATE_WARPS; i++) y += partial[threadIdx.x][i];
    gates.out[(long long)threadIdx.x * gates.n + blockIdx.x] = f32_to_half(y);
}
