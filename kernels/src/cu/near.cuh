// Rows of the residual stream that a product norms itself, in shared memory: every block of it, so few rows only.
#include "prelude.cuh"

#define PIECES 5      // of 256 values that a warp has on the way at once
#define NORM_WARPS 8  // that norm a row, as rms_norm has them

// What normed rows are in shared memory.
#ifndef NORMED_PACK
#define NORMED_PACK half_pack
#endif

// Where this thread's eight values of a piece lie in a row.
__device__ __forceinline__ int piece_place(int i) { return ((threadIdx.x / WARP % NORM_WARPS + i * NORM_WARPS) * WARP + threadIdx.x % WARP) * 8; }

// SHARE_ROW = 1: a row alone has all warps, each of which sums as if it were one of the first.
#ifndef SHARE_ROW
#define SHARE_ROW 0
#endif

// Whether this warp puts a piece of its row.
__device__ __forceinline__ bool puts_piece(int m, int i) {
    constexpr int SHARERS = WARPS / NORM_WARPS;
    return !SHARE_ROW || m > 1 || i % SHARERS == threadIdx.x / WARP / NORM_WARPS;
}

// Norms `m` rows of up to PIECES NORM_WARPS 256 values, their squares added as rms_norm does. `partial` has m places.
// `weight(piece)` gives eight of the norm's values; `put(token, place, values)` stores eight of a row, also those of its last
// 256 that are none. A barrier is left to the caller.
template <class Weight, class Put>
__device__ __forceinline__ void norm_rows(const u16 *x, int m, int k, float eps, float (*partial)[NORM_WARPS], Weight weight, Put put) {
    int warp = threadIdx.x / WARP;
    for (int first = 0; first < m; first += WARPS / NORM_WARPS) {
        int token = SHARE_ROW && m == 1 ? 0 : first + warp / NORM_WARPS;
        U4 row[PIECES];
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            row[i] = token < m && piece_place(i) < k ? load16(x + (long long)token * k + piece_place(i)) : U4{};
#pragma unroll
        for (int i = 0; i < PIECES; i++) add_squares(sum, row[i]);
        sum = warp_sum(sum);
        if (token < m && threadIdx.x % WARP == 0) partial[token][warp % NORM_WARPS] = sum;
        __syncthreads();
        if (token >= m) continue;
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < NORM_WARPS; i++) total += partial[token][i];
        float scale = rsqrtf(total / k + eps);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            // Lanes stay together: a row's last 256 may be fewer.
            if (piece_place(i) / 256 * 256 >= k || !puts_piece(m, i)) continue;
            U4 g = weight(i), y;
            const u32 *p = (const u32 *)&row[i], *q = (const u32 *)&g;
            u32 *o = (u32 *)&y;
#pragma unroll
            for (int j = 0; j < 4; j++) o[j] = NORMED_PACK(half_lo(p[j]) * scale * half_lo(q[j]), half_hi(p[j]) * scale * half_hi(q[j]));
            put(token, piece_place(i), y);
        }
    }
}
