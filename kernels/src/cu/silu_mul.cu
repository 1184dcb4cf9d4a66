// act[row, i] = silu(gate_up[row, i]) * gate_up[row, ffn + i]; bf16. For products that went through the library,
// or whose gate and up are apart. `eights`: act's rows are wanted in eights.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) silu_mul(u16 *act, const u16 *gate_up, int ffn, int eights) {
    wait_previous();
    start_next();
    const U4 *gate = (const U4 *)(gate_up + (long long)blockIdx.y * 2 * ffn);
    const U4 *up = (const U4 *)(gate_up + (long long)blockIdx.y * 2 * ffn + ffn);
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= ffn / 8) return;
    U4 a = gate[i], b = up[i], y;
    const u32 *p = (const u32 *)&a, *q = (const u32 *)&b;
    u32 *o = (u32 *)&y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float lo = half_lo(p[j]), hi = half_hi(p[j]);
        o[j] = half_pack(lo / (1.f + __expf(-lo)) * half_lo(q[j]), hi / (1.f + __expf(-hi)) * half_hi(q[j]));
    }
    *(U4 *)(act + row_place(blockIdx.y, 8 * i, ffn, eights)) = y;
}
