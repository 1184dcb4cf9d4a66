// Attention of one query token per seat: split over keys, grouped heads share one read of K and V.
//
// A work item is (run, kv head, SPLIT keys, place of its sums); a persistent grid takes items in order. Each of 4 warps handles 32 keys with
// tensor cores: the group's query heads are the rows of the tile. Key order inside a warp is permuted so that scores leave
// the first product in the layout the second one wants: column c of n-tile j is key 8 (c / 2) + 2 j + c % 2.
// The split length is fixed, so a row's result does not depend on the batch. Splits meet in `attend_merge`.
//
// Build flags: ROPE = 1: the rows come as the product left them; norm and rotation of the group's queries happen here, and
// whoever has the last split also does the new key and value and writes them into the page (see rope_kv.cu). IN_SHARED = 1:
// registers do not hold a warp's keys and values beside its sums, which wait in shared memory, each thread's fragments in
// places of its own.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define STEPS (HEAD_DIM / 32)
#define TILES (HEAD_DIM / 8)

#ifndef IN_SHARED
#define IN_SHARED 0
#endif

#define WARPS 4
#define AT_ONCE (HEAD_DIM <= 128 || IN_SHARED)  // values are asked for beside the keys
#define PITCH (HEAD_DIM + 8)  // padded against bank conflicts
// Heads that a warp prepares: of the group's queries, then the new key and value.
#define UNITS ((GROUP + 2 + WARPS - 1) / WARPS)

// Fragments of a warp's 32 keys: of K for n-tile j and step s, of V for tile i.
#if IN_SHARED
struct Keys {
    U4 *own;  // this thread's, a warp's width apart
    __device__ __forceinline__ Keys(u8 *shared) { own = (U4 *)shared + threadIdx.x / WARP * (4 * STEPS + TILES) * WARP + threadIdx.x % WARP; }
    __device__ __forceinline__ U4 &k(int j, int s) { return own[(j * STEPS + s) * WARP]; }
    __device__ __forceinline__ U4 &v(int i) { return own[(4 * STEPS + i) * WARP]; }
    __device__ __forceinline__ void request(U4 &to, const u16 *from) { copy_async16(shared_address(&to), from); }
};
// Keys arrive before values.
#define ARRIVED(values) copy_async_wait<(values) ? 0 : 1>()
#define REQUESTED() copy_async_commit()
#else
struct Keys {
    U4 k_[4][STEPS], v_[TILES];
    __device__ __forceinline__ Keys(u8 *) {}
    __device__ __forceinline__ U4 &k(int j, int s) { return k_[j][s]; }
    __device__ __forceinline__ U4 &v(int i) { return v_[i]; }
    __device__ __forceinline__ void request(U4 &to, const u16 *from) { to = load_stream(from); }
};
#define ARRIVED(values)
#define REQUESTED()
#endif

__device__ __forceinline__ void request_values(Keys &keys, const u16 *tile, int key0, int g, int t) {
    const u16 *v = tile + PAGE * HEAD_DIM + key0 % PAGE;
#pragma unroll
    for (int i = 0; i < TILES; i++) keys.request(keys.v(i), v + (8 * i + g) * PAGE + 8 * t);
    REQUESTED();
}

// The new token's key and value, which the fragments were loaded without; `at`: its place among the warp's keys.
__device__ __forceinline__ void insert_key(Keys &keys, const u16 *key, int at, int g, int t) {
    if (g != 2 * (at / 8) + at % 2) return;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        U4 fresh = load16(key + 32 * s + 8 * t);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (at % 8 / 2 == j) keys.k(j, s) = fresh;
    }
}
__device__ __forceinline__ void insert_value(Keys &keys, const u16 *value, int at, int g, int t) {
    if (t != at / 8) return;
    u32 keep[4];
#pragma unroll
    for (int w = 0; w < 4; w++) keep[w] = at % 8 / 2 == w ? (at % 2 ? 0x0000ffffu : 0xffff0000u) : FULL;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        u32 both = value[8 * i + g] * 0x10001u;
        U4 v = keys.v(i);
        keys.v(i) = U4{v.x & keep[0] | both & ~keep[0], v.y & keep[1] | both & ~keep[1], v.z & keep[2] | both & ~keep[2],
                       v.w & keep[3] | both & ~keep[3]};
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
    attend_decode(float *part_o, float2 *part_ml, const u16 *qkv, u16 *kv, const StepInfo *step, const RunInfo *runs,
                  const int4 *items, const int *page_table, int table_width, float scale_log2, const u16 *q_norm,
                  const u16 *k_norm, const float2 *rotation, float eps) {
    extern __shared__ __align__(16) u8 fragments[];  // with IN_SHARED
    __shared__ float sums[WARPS][GROUP][HEAD_DIM];
    __shared__ float2 ml[WARPS][GROUP];
#if ROPE
    __shared__ __align__(16) u16 fresh[GROUP + 2][PITCH];  // rotated queries, the new key, the new value
#endif
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#if ROPE
    // The lists and the pages' earlier keys were complete two kernels ago: they are read before the wait.
    if (blockIdx.x >= step->decode_items) wait_previous();
#else
    wait_previous();
    start_next();
#endif
    for (int item = blockIdx.x; item < step->decode_items; item += gridDim.x) {
        int4 work = items[item];
        RunInfo run = runs[work.x];
        int key0 = work.z * SPLIT + warp * 32;
        bool live = key0 < run.end;
        Keys keys(fragments);
        int page = page_table[(long long)run.seat * table_width + (live ? key0 : 0) / PAGE];
        const u16 *tile = kv + ((long long)page * KV_HEADS + work.y) * 2 * PAGE * HEAD_DIM;
        if (live) {
            const u16 *k = tile + (key0 % PAGE) * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    keys.request(keys.k(j, s), k + (8 * (g / 2) + 2 * j + g % 2) * HEAD_DIM + 32 * s + 8 * t);
            REQUESTED();
            // Values do not wait for scores: everything this warp reads is requested at once, where there is room.
            if (AT_ONCE) request_values(keys, tile, key0, g, t);
        }
        const u16 *row = qkv + (long long)run.row0 * HEADS_ALL * HEAD_DIM;
#if ROPE
        int newest = run.end - 1, last_page = page_table[(long long)run.seat * table_width + newest / PAGE];
        bool writes = work.z == newest / SPLIT, holds_newest = false;
        bool holds = lane * PAIRS < HEAD_DIM / 2;
        int j0 = holds ? lane * PAIRS : 0;
        float2 turn[PAIRS];
        float q_lo[PAIRS], q_hi[PAIRS], k_lo[PAIRS], k_hi[PAIRS];  // weights of the norms
        load_turn(turn, rotation, newest, j0);
        if (q_norm) {
            load_pairs(q_lo, q_norm + j0);
            load_pairs(q_hi, q_norm + j0 + HEAD_DIM / 2);
            load_pairs(k_lo, k_norm + j0);
            load_pairs(k_hi, k_norm + j0 + HEAD_DIM / 2);
        }
        if (item == blockIdx.x) {
            wait_previous();
            start_next();
        }
        float lo[UNITS][PAIRS], hi[UNITS][PAIRS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int head = u * WARPS + warp;
            head = head < GROUP ? work.y * GROUP + head : HEADS + min(head - GROUP, 1) * KV_HEADS + work.y;
            load_pairs(lo[u], row + HEAD_SLOT(head) * HEAD_DIM + j0);
            load_pairs(hi[u], row + HEAD_SLOT(head) * HEAD_DIM + j0 + HEAD_DIM / 2);
        }
        __syncthreads();  // the previous item's products have read `fresh`
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int unit = u * WARPS + warp;
            if (unit >= GROUP + (writes ? 2 : 0)) break;
            if (unit < GROUP + 1) {
                if (q_norm && unit < GROUP) norm_head(lo[u], hi[u], q_lo, q_hi, holds, eps);
                if (q_norm && unit == GROUP) norm_head(lo[u], hi[u], k_lo, k_hi, holds, eps);
                rotate_head(lo[u], hi[u], turn);
            }
            if (!holds) continue;
            store_pairs(&fresh[unit][j0], lo[u]);
            store_pairs(&fresh[unit][j0 + HEAD_DIM / 2], hi[u]);
        }
        __syncthreads();
        if (writes) {
            u16 *to = kv + ((long long)last_page * KV_HEADS + work.y) * 2 * PAGE * HEAD_DIM;
            for (int d = threadIdx.x; d < HEAD_DIM; d += WARPS * WARP) {
                to[newest % PAGE * HEAD_DIM + d] = fresh[GROUP][d];
                to[PAGE * HEAD_DIM + d * PAGE + newest % PAGE] = fresh[GROUP + 1][d];
            }
            holds_newest = live && newest < key0 + 32;
            if (holds_newest) {
                ARRIVED(false);
                insert_key(keys, fresh[GROUP], newest - key0, g, t);
            }
            if (holds_newest && AT_ONCE && !IN_SHARED) insert_value(keys, fresh[GROUP + 1], newest - key0, g, t);
        }
#endif
        float score[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) score[j][c] = 0.f;
        float o[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[i][c] = 0.f;
        float max0 = NEG_INF, max1 = NEG_INF, sum0 = 0.f, sum1 = 0.f;
        if (live) {
            ARRIVED(false);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                U4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
#if ROPE
                if (g < GROUP) a = load16(&fresh[g][32 * s + 8 * t]);
                if (g + 8 < GROUP) b = load16(&fresh[(g + 8) % GROUP][32 * s + 8 * t]);
#else
                const u16 *q = row + work.y * GROUP * Q_STEP * HEAD_DIM + 32 * s + 8 * t;
                if (g < GROUP) a = load16(q + g * Q_STEP * HEAD_DIM);
                if (g + 8 < GROUP) b = load16(q + (g + 8) * Q_STEP * HEAD_DIM);
#endif
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    U4 k = keys.k(j, s);
                    mma(score[j], a.x, b.x, a.y, b.y, k.x, k.y);
                    mma(score[j], a.z, b.z, a.w, b.w, k.z, k.w);
                }
            }
            if (!AT_ONCE) request_values(keys, tile, key0, g, t);
            if (!AT_ONCE || IN_SHARED) {
                ARRIVED(true);
#if ROPE
                if (holds_newest) insert_value(keys, fresh[GROUP + 1], newest - key0, g, t);
#endif
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    bool seen = key0 + 8 * t + 2 * j + (c & 1) < run.end;
                    score[j][c] = seen ? score[j][c] * scale_log2 : NEG_INF;
                    if (c < 2) max0 = fmaxf(max0, score[j][c]);
                    else max1 = fmaxf(max1, score[j][c]);
                }
            max0 = fmaxf(max0, __shfl_xor_sync(FULL, max0, 1));
            max0 = fmaxf(max0, __shfl_xor_sync(FULL, max0, 2));
            max1 = fmaxf(max1, __shfl_xor_sync(FULL, max1, 1));
            max1 = fmaxf(max1, __shfl_xor_sync(FULL, max1, 2));
            u32 p[4][2];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float e0 = exp2f(score[j][0] - max0), e1 = exp2f(score[j][1] - max0);
                float e2 = exp2f(score[j][2] - max1), e3 = exp2f(score[j][3] - max1);
                sum0 += e0 + e1;
                sum1 += e2 + e3;
                p[j][0] = half_pack(e0, e1);
                p[j][1] = half_pack(e2, e3);
            }
            sum0 += __shfl_xor_sync(FULL, sum0, 1);
            sum0 += __shfl_xor_sync(FULL, sum0, 2);
            sum1 += __shfl_xor_sync(FULL, sum1, 1);
            sum1 += __shfl_xor_sync(FULL, sum1, 2);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                U4 v = keys.v(i);
                mma(o[i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
                mma(o[i], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
            }
        }
        __syncthreads();  // the previous item's merge has read `sums`
        if (g < GROUP) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                sums[warp][g][8 * i + 2 * t] = o[i][0];
                sums[warp][g][8 * i + 2 * t + 1] = o[i][1];
            }
            if (t == 0) ml[warp][g] = make_float2(max0, sum0);
        }
        if (g + 8 < GROUP) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                sums[warp][(g + 8) % GROUP][8 * i + 2 * t] = o[i][2];
                sums[warp][(g + 8) % GROUP][8 * i + 2 * t + 1] = o[i][3];
            }
            if (t == 0) ml[warp][(g + 8) % GROUP] = make_float2(max1, sum1);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += 128) {
            int row = i / HEAD_DIM, d = i % HEAD_DIM;
            float top = fmaxf(fmaxf(ml[0][row].x, ml[1][row].x), fmaxf(ml[2][row].x, ml[3][row].x));
            float total = 0.f, y = 0.f;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                float f = ml[w][row].x == NEG_INF ? 0.f : exp2f(ml[w][row].x - top);
                total += f * ml[w][row].y;
                y += f * sums[w][row][d];
            }
            part_o[((long long)work.w * GROUP + row) * HEAD_DIM + d] = y;
            if (d == 0) part_ml[(long long)work.w * GROUP + row] = make_float2(top, total);
        }
    }
}
