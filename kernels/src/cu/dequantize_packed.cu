// Weights in GGUF's block formats (packed.cuh) to 16 bits, rounded once from what GGUF computes in f32.
//
// EMBED = 0: out[row, k] of `tiles` tiles, for products of many rows; rows 0 to 7 of tile i go to row `stride` i on, rows 8
// to 15 to row `stride` i + `low` on, and rows that are not there are left out: `rows` of the first and of the second half.
// One warp a unit. EMBED = 1: out[i, k] = row tokens[i] of the matrix; one block a row.
// Build flags: TYPE0, EMBED.
#include "packed.cuh"

// A lane's eight values of a group: `to` has room for the first four, and for the others behind.
__device__ __forceinline__ void store_group(u16 *to, const u32 (&pairs)[4], const float *scales) {
    typedef Format<TYPE0> F;
    u32 y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float scale = scales[F::HALVES ? i / 2 : 0], lo = half_lo(pairs[i]), hi = half_hi(pairs[i]);
        if (F::MINS) {
            // GGUF rounds the product before it subtracts.
            lo = __fsub_rn(__fmul_rn(scale, lo - BASE), scales[1]);
            hi = __fsub_rn(__fmul_rn(scale, hi - BASE), scales[1]);
        } else {
            lo = __fmul_rn(scale, lo);
            hi = __fmul_rn(scale, hi);
        }
        y[i] = half_pack(lo, hi);
    }
    *(U2 *)to = U2{y[0], y[1]};
    *(U2 *)(to + (F::HALVES ? 16 : 4)) = U2{y[2], y[3]};
}

#if EMBED
extern "C" __global__ void __launch_bounds__(256) dequantize_packed(u16 *out, const u8 *units, const u32 *tokens, int k) {
#else
extern "C" __global__ void __launch_bounds__(256) dequantize_packed(u16 *out, const u8 *units, int tiles, int rows, int stride, int low,
                                                                    int k) {
#endif
    typedef Format<TYPE0> F;
    __shared__ u32 table[F::TABLE ? 256 * WARP : 1];
    if (F::TABLE) {
        fill_table(table);
        __syncthreads();
    }
    wait_previous();
    start_next();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, across = (k + UNIT_K - 1) / UNIT_K;
    // Rows g and g + 8 of a unit; null: not wanted.
    auto store = [&](u16 *top, u16 *low, const u8 *unit, int left) {
        constexpr int PER_ENTRY = 4 / F::PER_GROUP;
        float scales[2][4];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            if (group * GROUP_K >= left) break;
            if (group % PER_ENTRY == 0)
#pragma unroll
                for (int i = 0; i < 2; i++) load_scales<TYPE0>(scales[i], unit, g + 8 * i, group / 4, group % 4);
            u32 pairs[2][4];
            load_codes<TYPE0>(pairs, unit, (const u8 *)table, group, lane);
            if (top) store_group(top + group * GROUP_K, pairs[0], scales[0] + group % PER_ENTRY * F::PER_GROUP);
            if (low) store_group(low + group * GROUP_K, pairs[1], scales[1] + group % PER_ENTRY * F::PER_GROUP);
        }
    };
#if EMBED
    u32 token = tokens[blockIdx.x], row = token % TILE;
    if (row % 8 != g) return;
    for (int i = warp; i < across; i += 8) {
        u16 *to = out + (long long)blockIdx.x * k + i * UNIT_K + (F::HALVES ? 4 : 8) * t;
        store(row < 8 ? to : nullptr, row < 8 ? nullptr : to, units + ((long long)(token / TILE) * across + i) * F::SIZE, k - i * UNIT_K);
    }
#else
    long long unit = (long long)blockIdx.x * 8 + warp;
    if (unit >= (long long)tiles * across) return;
    int i = (int)(unit % across), row = (int)(unit / across) * stride + g;
    u16 *to = out + (long long)row * k + i * UNIT_K + (F::HALVES ? 4 : 8) * t;
    // In a plain tile the second half's rows are the next eight, else they are the same ones of another matrix.
    bool both = row + (stride == TILE ? 8 : 0) < rows;
    store(row < rows ? to : nullptr, both ? to + (long long)low * k : nullptr, units + unit * F::SIZE, k - i * UNIT_K);
#endif
}
