// RMSNorm of q and k where the family has it, rotary embedding of both, k and v into the layer's pages.
//
// qkv [rows, HEADS_ALL HEAD_DIM] bf16, q is rewritten in place. A page of one head is K [64, HEAD_DIM]
// followed by V transposed [HEAD_DIM, 64]: both attention products then read 16 consecutive bytes a thread.
// The first blocks give each warp UNIT heads of a row. `v_tiles` > 0: further blocks, one a (64 rows, KV head), turn
// values through shared memory, so that neighbouring rows of a run are written side by side; 0: each value by itself.
#include "prelude.cuh"

#define UNIT 4
#define V_ROWS 64
#define V_PITCH (HEAD_DIM / 2 + 1)  // words of a row in shared memory; odd against bank conflicts

__device__ __forceinline__ u16 *page_tile(u16 *kv, const int *page_table, int table_width, int seat, int position, int kv_head) {
    int page = page_table[(long long)seat * table_width + position / PAGE];
    return kv + ((long long)page * KV_HEADS + kv_head) * 2 * PAGE * HEAD_DIM;
}

__device__ __forceinline__ void turn_values(const u16 *qkv, u16 *kv, const int *row_seat, const int *row_position, const int *page_table,
                            int table_width, int rows, int row0, int kv_head) {
    __shared__ u32 turned[V_ROWS * V_PITCH];
    const int chunks = HEAD_DIM / 8;
    for (int i = threadIdx.x; i < V_ROWS * chunks; i += 256) {
        int r = i / chunks, c = i % chunks;
        if (row0 + r >= rows) break;
        U4 x = load16(qkv + ((long long)(row0 + r) * HEADS_ALL + Q_SLOTS + KV_HEADS + kv_head) * HEAD_DIM + 8 * c);
        u32 *to = turned + r * V_PITCH + 4 * c;
        to[0] = x.x;
        to[1] = x.y;
        to[2] = x.z;
        to[3] = x.w;
    }
    __syncthreads();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < V_ROWS / WARP; half++) {
        int r = half * WARP + lane, row = row0 + r;
        if (row >= rows) return;
        int position = row_position[row];
        u16 *to = page_tile(kv, page_table, table_width, row_seat[row], position, kv_head) + PAGE * HEAD_DIM + position % PAGE;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            int pair = warp * (HEAD_DIM / 16) + i;
            u32 x = turned[r * V_PITCH + pair];
            to[2 * pair * PAGE] = (u16)x;
            to[(2 * pair + 1) * PAGE] = (u16)(x >> 16);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) rope_kv(u16 *qkv, u16 *kv, const u16 *q_norm, const u16 *k_norm,
                                                         const float2 *rotation, const int *row_seat, const int *row_position,
                                                         const int *page_table, int table_width, int rows, int v_tiles, float eps) {
    start_next();
    int heads = HEADS + (v_tiles > 0 ? 1 : 2) * KV_HEADS, units = (heads + UNIT - 1) / UNIT;
    int warps_at = (rows * units + 7) / 8;  // blocks of the first kind
    if ((int)blockIdx.x >= warps_at) {
        int tile = blockIdx.x - warps_at;
        wait_previous();
        turn_values(qkv, kv, row_seat, row_position, page_table, table_width, rows, tile / KV_HEADS * V_ROWS, tile % KV_HEADS);
        return;
    }
    int unit = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int row = unit / units, head0 = unit % units * UNIT;
    if (row >= rows) return;
    // Places and turns do not depend on the previous kernel.
    bool live = lane * PAIRS < HEAD_DIM / 2;
    int j0 = live ? lane * PAIRS : 0;
    u16 *x = qkv + (long long)row * HEADS_ALL * HEAD_DIM + j0;
    float lo[UNIT][PAIRS], hi[UNIT][PAIRS];
    float2 turn[PAIRS];
    int position = row_position[row], seat = row_seat[row];
    load_turn(turn, rotation, position, j0);
    wait_previous();
#pragma unroll
    for (int u = 0; u < UNIT; u++)
        if (head0 + u < heads) {
            load_pairs(lo[u], x + HEAD_SLOT(head0 + u) * HEAD_DIM);
            load_pairs(hi[u], x + HEAD_SLOT(head0 + u) * HEAD_DIM + HEAD_DIM / 2);
        }
#pragma unroll
    for (int u = 0; u < UNIT; u++) {
        int head = head0 + u;
        if (head >= heads) return;
        u16 *tile = head < HEADS ? 0 : page_tile(kv, page_table, table_width, seat, position, (head - HEADS) % KV_HEADS);
        if (head >= HEADS + KV_HEADS) {
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                u16 *to = tile + PAGE * HEAD_DIM + (j0 + p) * PAGE + position % PAGE;
                if (live) to[0] = f32_to_half(lo[u][p]);
                if (live) to[HEAD_DIM / 2 * PAGE] = f32_to_half(hi[u][p]);
            }
            continue;
        }
        const u16 *w = head < HEADS ? q_norm : k_norm;
        if (w) {
            float w_lo[PAIRS], w_hi[PAIRS];
            load_pairs(w_lo, w + j0);
            load_pairs(w_hi, w + j0 + HEAD_DIM / 2);
            norm_head(lo[u], hi[u], w_lo, w_hi, live, eps);
        }
        rotate_head(lo[u], hi[u], turn);
        u16 *to = head < HEADS ? x + HEAD_SLOT(head) * HEAD_DIM : tile + position % PAGE * HEAD_DIM + j0;
        if (live) {
            store_pairs(to, lo[u]);
            store_pairs(to + HEAD_DIM / 2, hi[u]);
        }
    }
}
