// y = W x for few rows of x and FP8 weights: each weight is read once for all rows.
//
// Shapes: x [m, k] f16 (or the model's 16-bit type, see X), W [n, k] e4m3 row-major, out [m, n]; n is a multiple of 16. As
// in few_rows.cu weights are the A operand of the matrix instruction and every token is a column of its own, so its result
// is bitwise the same for every m; codes become f16 exactly, with one instruction a pair on cards that have it. A quad's
// thread reads 16 bytes, 16 consecutive k of a row, and feeds them as four k16 steps; x is read in the same order. WARPS
// warps share a tile of 16 weight rows and take turns at 64 k; partial sums meet in shared memory and are added in warp
// order. 16 warps in two blocks keep more loads on the way than eight in three, and fit 64 registers a thread.
//
// A block works through the tiles blockIdx.x, + gridDim.x, ...; each thread copies what it will multiply to a ring of its
// own, DEPTH steps ahead and across tiles, so the memory always has enough to do and nothing waits for a neighbour.
//
// Build flags: NT = n8 tiles of tokens (m <= 8 NT). MODE = 0 store 16 bits, 1 add to the residual, 2 silu(gate) * up as
// f16 times ACT_SCALE: of a tile 8 rows are gate, and 8 the same rows of up. SCALES = 0: scales[n]; 1: scales[n / 16][k / 128],
// the products of a turn are then summed apart and scaled before they join the others. X = 0: x is f16; 1: the model's type,
// made f16 here; 2: f16 times ACT_SCALE; 3: the residual stream, of which every block norms up to two rows to f16 in its
// shared memory. DEPTH, WARPS.
//
// With X = 3 a block also makes an output of `gates`, which cannot be part of an FP8 product (gates.cuh).
#define NORMED_PACK f16_pack
#include "near.cuh"
#include "gates.cuh"

#define THREADS (WARPS * WARP)
#define WIDTH 16  // k of one 16-byte read
#define STEP 64   // k of a quad's read, and of a warp's turn
#define GROUP 128 // k that share a scale
#define TILE 16
#define OUTPUTS (MODE == 2 ? TILE / 2 : TILE)  // of a tile
#define NEAR (X == 3)
#define NEAR_ROWS_MAX 2
// Steps of x in registers: one ahead where there is room for it.
#define X_STEPS (NT == 1 ? 2 : 1)
#define COLUMN (TILE + 1)  // padded against bank conflicts
#define SLOT (2 * THREADS * 16)

// Eight values of x as f16. The register has the model's type where nobody made f16 of it before.
__device__ __forceinline__ U4 load_row(const u16 *from) {
    U4 v = load16(from);
#if X == 1 && !defined(TL_F16)
    v.x = f16_pack(half_lo(v.x), half_hi(v.x));
    v.y = f16_pack(half_lo(v.y), half_hi(v.y));
    v.z = f16_pack(half_lo(v.z), half_hi(v.z));
    v.w = f16_pack(half_lo(v.w), half_hi(v.w));
#endif
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    few_rows_fp8(void *out, const u16 *x, const u8 *w, const u8 *w2, const float *scales, const float *scales2, int m, int n, int k,
                 const u16 *norm, float eps, const __grid_constant__ Gates gates) {
    // [DEPTH][2][THREADS] of 16 bytes, sums [WARPS][m][COLUMN]; with NEAR normed rows, the norm's weight and a gate's
    extern __shared__ __align__(16) u8 shared[];
    float *partial = (float *)(shared + DEPTH * SLOT);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int tiles = n / OUTPUTS, steps = (k + WARPS * STEP - 1) / (WARPS * STEP);
    u8 *ring = shared + threadIdx.x * 16;
    // Where in a row this thread's values of a step begin.
    auto place = [&](int step) { return (step * WARPS + warp) * STEP + t * WIDTH; };
#if NEAR
    __shared__ float squares[NEAR_ROWS_MAX][NORM_WARPS], gate_sums[NEAR_ROWS_MAX][GATE_WARPS];
    int row_values = (k + 63) / 64 * 64 + 8;  // rows lie in other banks
    u16 *near = (u16 *)(partial + (WARPS * m * COLUMN + 3) / 4 * 4), *weight = near + m * row_values, *gate = weight + k;
    for (int i = threadIdx.x * 8; i < k; i += THREADS * 8) {
        copy_async16(shared_address(weight + i), norm + i);
        if (blockIdx.x < gates.n) copy_async16(shared_address(gate + i), gates.w + (long long)blockIdx.x * k + i);
    }
    copy_async_commit();
#endif

    int next_tile = blockIdx.x, next_step = 0, next_slot = 0;
    const u8 *row;  // row g of the tile
    long long low = MODE == 2 ? w2 - w : 8 * (long long)k;  // from there to the row that the matrix instruction has as g + 8
    auto aim = [&]() { row = w + (long long)(next_tile * OUTPUTS + g) * k; };
    auto request = [&]() {
        if (next_tile < tiles) {
            int at = place(next_step);
            u8 *to = ring + next_slot * SLOT;
            // Beyond the row there are zeros: x has zeros there too, and nothing times them may be NaN.
            if (at < k) {
                copy_stream16(to, row + at);
                copy_stream16(to + THREADS * 16, row + at + low);
            } else {
                *(U4 *)to = *(U4 *)(to + THREADS * 16) = U4{0, 0, 0, 0};
            }
            if (++next_step == steps) {
                next_step = 0;
                next_tile += gridDim.x;
                aim();
            }
        }
        if (++next_slot == DEPTH) next_slot = 0;
        copy_async_commit();
    };
    aim();
    // Weights do not depend on the previous kernel: the first are on their way before we wait for it.
#pragma unroll
    for (int i = 0; i < DEPTH; i++) request();
    start_next();
    wait_previous();
#if NEAR
    copy_async_wait<DEPTH>();
    __syncthreads();
    norm_rows(x, m, k, eps, squares, [&](int i) { return piece_place(i) < k ? load16(weight + piece_place(i)) : U4{}; },
              [&](int token, int at, const U4 &v) {
                  if (at < k) *(U4 *)(near + token * row_values + at) = v;
              });
    __syncthreads();
    if (blockIdx.x < gates.n)
        for (int token = 0; token < m; token++) {
            float sum = warp_sum(gate_sum(gate, near + token * row_values, k));
            if (lane == 0) gate_sums[token][warp] = sum;
        }
#endif

    int slot = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float acc[NT][4], part[NT][4], scale[2];  // scale: of the rows g and g + 8
        U4 b[X_STEPS][NT][WIDTH / 8];
        auto load_x = [&](int buffer, int step) {
            int at = place(step);
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int h = 0; h < WIDTH / 8; h++) {
                    b[buffer][j][h] = U4{0, 0, 0, 0};
#if NEAR
                    // Columns without a token repeat the last: nobody reads what comes of them.
                    if (at < k) b[buffer][j][h] = load16(near + min(g, m - 1) * row_values + at + h * 8);
#else
                    if (at < k && j * 8 + g < m) b[buffer][j][h] = load_row(x + (long long)(j * 8 + g) * k + at + h * 8);
#endif
                }
        };
        auto load_scale = [&](int step) {
            if (!SCALES) return;
            int groups = (k + GROUP - 1) / GROUP, group = (step * WARPS + warp) * STEP / GROUP, first = tile * OUTPUTS / TILE * groups;
            scale[0] = group < groups ? scales[first + group] : 0.f;
            scale[1] = MODE != 2 ? scale[0] : group < groups ? scales2[first + group] : 0.f;
        };
        auto clear = [&](float (&sums)[NT][4]) {
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[j][c] = 0.f;
        };
        clear(acc);
        if (X_STEPS == 2) load_x(0, 0);
        if (X_STEPS == 2) load_scale(0);
        for (int pair = 0; pair < steps; pair += 2) {
#pragma unroll
            for (int o = 0; o < 2; o++) {
                int step = pair + o;
                if (step == steps) break;
                if (X_STEPS == 1) load_x(0, step);
                else if (step + 1 < steps) load_x(1 - o, step + 1);
                if (X_STEPS == 1) load_scale(step);
                float of[2] = {scale[0], scale[1]};
                if (X_STEPS == 2) load_scale(step + 1);
                if (SCALES) clear(part);
                copy_async_wait<DEPTH - 1>();
                const u8 *from = ring + slot * SLOT;
                U4 top = load16(from), below = load16(from + THREADS * 16);
                const u32 *p = (const u32 *)&top, *q = (const u32 *)&below;
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    u32 a0 = e4m3_f16(p[h], 0), a1 = e4m3_f16(q[h], 0), a2 = e4m3_f16(p[h], 1), a3 = e4m3_f16(q[h], 1);
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        const u32 *v = (const u32 *)&b[X_STEPS == 1 ? 0 : o][j][h / 2];
                        mma_f16(SCALES ? part[j] : acc[j], a0, a1, a2, a3, v[h % 2 * 2], v[h % 2 * 2 + 1]);
                    }
                }
                if (++slot == DEPTH) slot = 0;
                request();
                if (SCALES)
#pragma unroll
                    for (int j = 0; j < NT; j++)
#pragma unroll
                        for (int c = 0; c < 4; c++) acc[j][c] = fmaf(of[c / 2], part[j][c], acc[j][c]);
            }
        }
        __syncthreads();  // the previous tile's sums have been read
        float *mine = partial + warp * m * COLUMN;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int token = j * 8 + t * 2 + c % 2;
                if (token < m) mine[token * COLUMN + g + c / 2 * 8] = acc[j][c];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < m * OUTPUTS; i += THREADS) {
            int column = tile * OUTPUTS + i % OUTPUTS, token = i / OUTPUTS;
            float y = 0.f, up = 0.f;
#pragma unroll
            for (int p = 0; p < WARPS; p++) {
                y += partial[(p * m + token) * COLUMN + i % OUTPUTS];
                if (MODE == 2) up += partial[(p * m + token) * COLUMN + i % OUTPUTS + OUTPUTS];
            }
            float unit = E4M3_F16_UNIT * (X == 2 ? 1.f / ACT_SCALE : 1.f);
            y *= SCALES ? unit : unit * scales[column];
            if (MODE == 2) up *= SCALES ? unit : unit * scales2[column];
            long long at = (long long)token * n + column;
            if (MODE == 0) ((u16 *)out)[at] = f32_to_half(y);
            if (MODE == 1) ((u16 *)out)[at] = f32_to_half(half_to_f32(((u16 *)out)[at]) + y);
            if (MODE == 2) ((u16 *)out)[at] = (u16)f16_pack(y / (1.f + __expf(-y)) * up * ACT_SCALE, 0.f);
        }
    }
#if NEAR
    write_gates(gates, gate_sums, m);
#endif
    copy_async_wait<0>();
}
