// The delta rule over the chunks of a run, one after the other, for SPLIT columns of a value head's state:
//
//   V' = U - W S;  O = e^G Q S + P V';  S = e^(G_last) S + (e^(G_last - G) K)^T V'
//
// with what `delta_chunk` made, S as [KEY_DIM, VALUE_DIM] here. O takes the place of v in conv, in 16 bits. The state
// is kept in f32 registers, and read and written as [VALUE_DIM, KEY_DIM] in `states`, whose type STATE16 says, after the
// updates that `deferred` holds; at position 0 it counts as zero. What `saves` name is written there on the way.
// Grid: (runs, VALUE_HEADS * SPLITS), 128 threads; runs of one row are none of its business.
#include "prelude.cuh"

#define SPLIT 32
#define SPLITS (VALUE_DIM / SPLIT)
#ifndef STAGES
#define STAGES 2  // chunks in shared memory; 1 where it is small
#endif
#define ROW (KEY_DIM + 8)
#define PLACES 72
#define COLUMNS (SPLIT + 8)
#define ROW_TILES (KEY_DIM / 64)  // of 16 keys, a warp

struct Stage {
    u16 w[64 * ROW], q[64 * ROW], k[64 * ROW], p[64 * PLACES], u[64 * COLUMNS];
    float g[64];
};
struct Shared {
    Stage stage[STAGES];
    u16 state[KEY_DIM * COLUMNS];  // S in 16 bits
    u16 values[64 * COLUMNS];      // V', then e^(G_last - G) V'
    u16 faded[64 * COLUMNS];
};

// A lane's part of S: keys of ROW_TILES tiles of 16, lane / 4 (+ 8) of each; columns 8 n + lane % 4 * 2 (+ 1).
typedef float State[ROW_TILES][SPLIT / 8][4];

template <class Use> __device__ __forceinline__ void each(State &state, Use use) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < SPLIT / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                use(state[m][n][e], (warp * ROW_TILES + m) * 16 + lane / 4 + e / 2 * 8, n * 8 + lane % 4 * 2 + e % 2);
}

extern "C" __global__ void __launch_bounds__(128) delta_scan(u16 *conv, const u16 *chunk_u, const u16 *chunk_w,
                                                             const u16 *chunk_p, const float *chunk_g, StateValue *states,
                                                             const Deferred *deferred, const RunInfo *runs,
                                                             const StateSave *saves, int saves_total) {
    extern __shared__ __align__(16) u8 bytes[];
    Shared &s = *(Shared *)bytes;
    RunInfo run = runs[blockIdx.x];
    int head = blockIdx.y / SPLITS, key_head = KEY_HEAD(head), column0 = blockIdx.y % SPLITS * SPLIT;
    int t = threadIdx.x, lane = t % WARP, warp = t / WARP, chunks = (run.rows + 63) / 64;
    int first = !recurs(run) ? chunks_before(runs, blockIdx.x) : 0, start = run.end - run.rows;
    wait_previous();
    start_next();
    if (recurs(run)) return;
    auto fetch = [&](int chunk) {
        Stage &to = s.stage[chunk % STAGES];
        long long item = (long long)(first + chunk) * VALUE_HEADS + head;
        int rows = min(64, run.rows - chunk * 64);
        const u16 *row0 = conv + (long long)(run.row0 + chunk * 64) * CHANNELS;
        for (int i = t; i < 64 * (KEY_DIM / 8); i += 128) {
            int row = i / (KEY_DIM / 8), at = i % (KEY_DIM / 8) * 8;
            // Rows behind the run's last belong to others; their products are zero or unread.
            long long from = (long long)min(row, rows - 1) * CHANNELS + key_head * KEY_DIM + at;
            copy_async16(shared_address(to.w + row * ROW + at), chunk_w + (item * 64 + row) * KEY_DIM + at);
            copy_async16(shared_address(to.q + row * ROW + at), row0 + from);
            copy_async16(shared_address(to.k + row * ROW + at), row0 + from + KEY_HEADS * KEY_DIM);
        }
        for (int i = t; i < 64 * 8; i += 128)
            copy_async16(shared_address(to.p + i / 8 * PLACES + i % 8 * 8), chunk_p + item * 64 * 64 + i * 8);
        for (int i = t; i < 64 * (SPLIT / 8); i += 128) {
            int row = i / (SPLIT / 8), at = i % (SPLIT / 8) * 8;
            copy_async16(shared_address(to.u + row * COLUMNS + at), chunk_u + (item * 64 + row) * VALUE_DIM + column0 + at);
        }
        if (t < 16) copy_async16(shared_address(to.g + t * 4), chunk_g + item * 64 + t * 4);
        copy_async_commit();
    };
    fetch(0);
    State state;
    auto place = [&](int number) { return states + (((long long)number * VALUE_HEADS + head) * VALUE_DIM + column0) * KEY_DIM; };
    StateValue *home = place(run.seat);
    int save = 0;
    while (save < saves_total && saves[save].run < blockIdx.x) save++;
    each(state, [&](float &x, int key, int column) { x = start > 0 ? from_state(home[column * KEY_DIM + key]) : 0.f; });
    // What single rows before this run left out.
    const Deferred &lacks = deferred[run.seat * VALUE_HEADS + head];
    for (int i = 0; i < run.deferred; i++) {
        const Update &update = lacks.updates[i];
        float kept = lacks.kept[i];
        each(state, [&](float &x, int key, int column) { x = kept * x + update.d[column0 + column] * update.k[key]; });
    }
    u32 shared_state = shared_address(s.state), shared_values = shared_address(s.values), shared_faded = shared_address(s.faded);
    for (int chunk = 0; chunk < chunks; chunk++) {
        Stage &now = s.stage[chunk % STAGES];
        each(state, [&](float &x, int key, int column) {
            if (column % 2 == 0) *(u32 *)(s.state + key * COLUMNS + column) = half_pack(x, (&x)[1]);
        });
        copy_async_wait<0>();
        __syncthreads();
        if (STAGES > 1 && chunk + 1 < chunks) fetch(chunk + 1);
        int row = warp * 16, i0 = row + lane / 4;
        float g_last = now.g[63];
        // W S and Q S, 16 tokens a warp.
        float ws[SPLIT / 8][4] = {}, o[SPLIT / 8][4] = {};
#pragma unroll
        for (int d = 0; d < KEY_DIM; d += 16) {
            u32 w[4], q[4];
            load_matrix4(w, shared_address(now.w) + ((row + lane % 16) * ROW + d + lane / 16 * 8) * 2);
            load_matrix4(q, shared_address(now.q) + ((row + lane % 16) * ROW + d + lane / 16 * 8) * 2);
#pragma unroll
            for (int n = 0; n < SPLIT / 8; n += 2) {
                u32 b[4];
                load_matrix4_turned(b, shared_state + ((d + lane % 16) * COLUMNS + n * 8 + lane / 16 * 8) * 2);
                mma(ws[n], w[0], w[1], w[2], w[3], b[0], b[1]);
                mma(ws[n + 1], w[0], w[1], w[2], w[3], b[2], b[3]);
                mma(o[n], q[0], q[1], q[2], q[3], b[0], b[1]);
                mma(o[n + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
            }
        }
        float e_lo = __expf(now.g[i0]), e_hi = __expf(now.g[i0 + 8]);
        float f_lo = __expf(g_last - now.g[i0]), f_hi = __expf(g_last - now.g[i0 + 8]);
#pragma unroll
        for (int n = 0; n < SPLIT / 8; n++) {
            int column = n * 8 + lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                int at = (i0 + e / 2 * 8) * COLUMNS + column;
                u32 u = *(const u32 *)(now.u + at);
                float lo = half_lo(u) - ws[n][e], hi = half_hi(u) - ws[n][e + 1], f = e ? f_hi : f_lo;
                *(u32 *)(s.values + at) = half_pack(lo, hi);
                *(u32 *)(s.faded + at) = half_pack(f * lo, f * hi);
                o[n][e] *= e ? e_hi : e_lo;
                o[n][e + 1] *= e ? e_hi : e_lo;
            }
        }
        __syncthreads();
        // O += P V'
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            u32 p[4];
            load_matrix4(p, shared_address(now.p) + ((row + lane % 16) * PLACES + j + lane / 16 * 8) * 2);
#pragma unroll
            for (int n = 0; n < SPLIT / 8; n += 2) {
                u32 b[4];
                load_matrix4_turned(b, shared_values + ((j + lane % 16) * COLUMNS + n * 8 + lane / 16 * 8) * 2);
                mma(o[n], p[0], p[1], p[2], p[3], b[0], b[1]);
                mma(o[n + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
            }
        }
        // S = e^(G_last) S + K^T (faded V'); the state is not read again before the next barrier.
        float kept = __expf(g_last);
        each(state, [&](float &x, int, int) { x *= kept; });
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            u32 b[SPLIT / 16][4];
#pragma unroll
            for (int n = 0; n < SPLIT / 16; n++)
                load_matrix4_turned(b[n], shared_faded + ((j + lane % 16) * COLUMNS + n * 16 + lane / 16 * 8) * 2);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                u32 k[4];
                int key = (warp * ROW_TILES + m) * 16;
                // K turned: its rows are tokens, the product's rows are keys.
                load_matrix4_turned(k, shared_address(now.k) + ((j + lane / 16 * 8 + lane % 8) * ROW + key + lane / 8 % 2 * 8) * 2);
#pragma unroll
                for (int n = 0; n < SPLIT / 8; n++)
                    mma(state[m][n], k[0], k[1], k[2], k[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
        int rows = min(64, run.rows - chunk * 64);
        u16 *out = conv + (long long)(run.row0 + chunk * 64) * CHANNELS + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column0;
#pragma unroll
        for (int n = 0; n < SPLIT / 8; n++) {
            int column = n * 8 + lane % 4 * 2;
            if (i0 < rows) *(u32 *)(out + (long long)i0 * CHANNELS + column) = half_pack(o[n][0], o[n][1]);
            if (i0 + 8 < rows) *(u32 *)(out + (long long)(i0 + 8) * CHANNELS + column) = half_pack(o[n][2], o[n][3]);
        }
        if (STAGES == 1 && chunk + 1 < chunks) {
            __syncthreads();
            fetch(chunk + 1);
        }
        if (save < saves_total && saves[save].run == blockIdx.x && saves[save].at == start + (chunk + 1) * 64) {
            StateValue *to = place(saves[save].to);
            each(state, [&](float &x, int key, int column) { to[column * KEY_DIM + key] = to_state(x); });
            save++;
        }
    }
    each(state, [&](float &x, int key, int column) { home[column * KEY_DIM + key] = to_state(x); });
}
