// y = W x for few rows of x: each weight is read once for all of them.
//
// Shapes: x [m, k] bf16, W [n, k] bf16 row-major, out [m, n]. Weights are the A operand of the matrix instruction, so
// every token is a column of its own and its result is bitwise the same for every m. A quad's thread reads 16 bytes,
// eight consecutive k of a row, and feeds them as two k16 steps; x is read in the same order, so no shuffle is needed.
// Eight warps share one tile of weight rows and divide k in chunks of 128; partial sums meet in shared memory and are
// added in warp order.
//
// Build flags: NT = n8 tiles of tokens (m <= 8 NT). MODE = 0 store bf16, 1 add to the residual, 2 silu(gate) * up,
// 3 store f32.
#include "prelude.cuh"

#define WARPS 8
#define CHUNK 128
#define BLOCKS (CHUNK / 32)
// MODE 2: tile 0 is 16 rows of gate, tile 1 the same rows of up.
#define A_TILES (MODE == 2 ? 2 : 1)
#define COLUMN (A_TILES * 16 + 1)  // padded against bank conflicts

extern "C" __global__ void __launch_bounds__(WARPS * 32) few_rows(void *out, const u16 *x, const u16 *w, const u16 *w2, int m,
                                                                  int n, int k) {
    extern __shared__ float partial[];  // [WARPS][NT * 8][COLUMN]
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int g = lane / 4, t = lane % 4;
    int n0 = blockIdx.x * 16, last = n - 1 - n0;
    const u16 *rows[2 * A_TILES];
#pragma unroll
    for (int i = 0; i < A_TILES; i++) {
        const u16 *tile = (i == 0 ? w : w2) + (long long)n0 * k + t * 8;
        rows[2 * i] = tile + (long long)min(g, last) * k;
        rows[2 * i + 1] = tile + (long long)min(g + 8, last) * k;
    }
    float acc[A_TILES][NT][4];
#pragma unroll
    for (int i = 0; i < A_TILES; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[i][j][c] = 0.f;

    U4 a[BLOCKS][2 * A_TILES], b[BLOCKS][NT];
    auto load_weights = [&](int block, int at) {
        if (at < k) {
#pragma unroll
            for (int i = 0; i < 2 * A_TILES; i++) a[block][i] = load_stream(rows[i] + at);
        }
    };
    auto load_x = [&](int block, int at) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int token = j * 8 + g;
            b[block][j] = U4{0, 0, 0, 0};
            if (at < k && token < m) b[block][j] = load16(x + (long long)token * k + at + t * 8);
        }
    };
    // Weights do not depend on the previous kernel: the first chunk is on its way before we wait for it.
    int chunk = warp * CHUNK;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) load_weights(i, chunk + i * 32);
    start_next();
    wait_previous();
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) load_x(i, chunk + i * 32);
    for (; chunk < k; chunk += WARPS * CHUNK) {
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            int at = chunk + block * 32;
            if (at < k) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    U4 v = b[block][j];
#pragma unroll
                    for (int i = 0; i < A_TILES; i++) {
                        U4 top = a[block][2 * i], low = a[block][2 * i + 1];
                        mma(acc[i][j], top.x, low.x, top.y, low.y, v.x, v.y);
                        mma(acc[i][j], top.z, low.z, top.w, low.w, v.z, v.w);
                    }
                }
            }
            // A block's registers are free once it is multiplied: its successor is requested at once.
            load_weights(block, at + WARPS * CHUNK);
            load_x(block, at + WARPS * CHUNK);
        }
    }
    float *mine = partial + warp * NT * 8 * COLUMN;
#pragma unroll
    for (int i = 0; i < A_TILES; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) mine[(j * 8 + t * 2 + c % 2) * COLUMN + i * 16 + g + c / 2 * 8] = acc[i][j][c];
    __syncthreads();
    for (int i = threadIdx.x; i < m * 16; i += WARPS * 32) {
        int row = i % 16, token = i / 16;
        if (n0 + row >= n) continue;
        float y = 0.f, up = 0.f;
#pragma unroll
        for (int p = 0; p < WARPS; p++) {
            y += partial[(p * NT * 8 + token) * COLUMN + row];
            if (MODE == 2) up += partial[(p * NT * 8 + token) * COLUMN + row + 16];
        }
        long long at = (long long)token * n + n0 + row;
        if (MODE == 0) ((u16 *)out)[at] = f32_to_half(y);
        if (MODE == 1) ((u16 *)out)[at] = f32_to_half(half_to_f32(((u16 *)out)[at]) + y);
        if (MODE == 2) ((u16 *)out)[at] = f32_to_half(y / (1.f + __expf(-y)) * up);
        if (MODE == 3) ((float *)out)[at] = y;
    }
}
