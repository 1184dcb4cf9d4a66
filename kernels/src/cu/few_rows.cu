// y = W x for few rows of x: each weight is read once for all of them.
//
// Shapes: x [m, k] bf16, W [n, k] bf16 row-major, out [m, n]. Weights are the A operand of the matrix instruction, so
// every token is a column of its own and its result is bitwise the same for every m. A quad's thread reads 16 bytes,
// eight consecutive k of a row, and feeds them as two k16 steps; x is read in the same order, so no shuffle is needed.
// Eight warps share one tile of 32 weight rows and divide k in chunks of 128; partial sums meet in shared memory and
// are added in warp order.
//
// Build flags: NT = n8 tiles of tokens (m <= 8 NT), MODE = 0 store bf16, 1 add to the residual, 2 silu(gate) * up,
// 3 store f32.
#include "prelude.cuh"

#define WARPS 8
#define CHUNK 128
#define BLOCKS (CHUNK / 32)

extern "C" __global__ void __launch_bounds__(WARPS * 32) few_rows(void *out, const u16 *x, const u16 *w, const u16 *w2, int m,
                                                                  int n, int k) {
    extern __shared__ float partial[];  // [WARPS][NT * 8][33]: columns padded against bank conflicts
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int g = lane / 4, t = lane % 4;
    // MODE 2: tile 0 is 16 rows of gate, tile 1 the same rows of up.
    int rows_per_tile = MODE == 2 ? 16 : 32;
    int n0 = blockIdx.x * rows_per_tile;
    const u16 *tile0 = w + (long long)n0 * k;
    const u16 *tile1 = MODE == 2 ? w2 + (long long)n0 * k : w + (long long)(n0 + 16) * k;
    int last0 = n - 1 - n0, last1 = MODE == 2 ? last0 : last0 - 16;
    const u16 *a0 = tile0 + (long long)min(g, last0) * k + t * 8;
    const u16 *a1 = tile0 + (long long)min(g + 8, last0) * k + t * 8;
    const u16 *a2 = tile1 + (long long)min(g, last1) * k + t * 8;
    const u16 *a3 = tile1 + (long long)min(g + 8, last1) * k + t * 8;
    float acc[2][NT][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[i][j][c] = 0.f;

    // Weights do not depend on the previous kernel: the first chunk is on its way before we wait for it.
    U4 a[BLOCKS][4];
    int chunk = warp * CHUNK;
    auto load_block = [&](int b, int at) {
        if (at < k) {
            a[b][0] = load_stream(a0 + at);
            a[b][1] = load_stream(a1 + at);
            a[b][2] = load_stream(a2 + at);
            a[b][3] = load_stream(a3 + at);
        }
    };
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) load_block(b, chunk + b * 32);
    wait_previous();
    start_next();
    for (; chunk < k; chunk += WARPS * CHUNK) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            int at = chunk + b * 32;
            if (at < k) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    int token = j * 8 + g;
                    U4 v = {0, 0, 0, 0};
                    if (token < m) v = load16(x + (long long)token * k + at + t * 8);
                    mma(acc[0][j], a[b][0].x, a[b][1].x, a[b][0].y, a[b][1].y, v.x, v.y);
                    mma(acc[0][j], a[b][0].z, a[b][1].z, a[b][0].w, a[b][1].w, v.z, v.w);
                    mma(acc[1][j], a[b][2].x, a[b][3].x, a[b][2].y, a[b][3].y, v.x, v.y);
                    mma(acc[1][j], a[b][2].z, a[b][3].z, a[b][2].w, a[b][3].w, v.z, v.w);
                }
            }
            // A block's registers are free once it is multiplied: its successor is requested at once.
            load_block(b, at + WARPS * CHUNK);
        }
    }
    float *mine = partial + warp * NT * 8 * 33;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            mine[(j * 8 + t * 2) * 33 + i * 16 + g] = acc[i][j][0];
            mine[(j * 8 + t * 2 + 1) * 33 + i * 16 + g] = acc[i][j][1];
            mine[(j * 8 + t * 2) * 33 + i * 16 + g + 8] = acc[i][j][2];
            mine[(j * 8 + t * 2 + 1) * 33 + i * 16 + g + 8] = acc[i][j][3];
        }
    __syncthreads();
    for (int i = threadIdx.x; i < m * rows_per_tile; i += WARPS * 32) {
        int row = i % rows_per_tile, token = i / rows_per_tile;
        if (n0 + row >= n) continue;
        float y = 0.f, up = 0.f;
#pragma unroll
        for (int p = 0; p < WARPS; p++) {
            y += partial[(p * NT * 8 + token) * 33 + row];
            if (MODE == 2) up += partial[(p * NT * 8 + token) * 33 + row + 16];
        }
        long long at = (long long)token * n + n0 + row;
        if (MODE == 0) ((u16 *)out)[at] = f32_to_bf16(y);
        if (MODE == 1) ((u16 *)out)[at] = f32_to_bf16(bf16_to_f32(((u16 *)out)[at]) + y);
        if (MODE == 2) ((u16 *)out)[at] = f32_to_bf16(y / (1.f + __expf(-y)) * up);
        if (MODE == 3) ((float *)out)[at] = y;
    }
}
