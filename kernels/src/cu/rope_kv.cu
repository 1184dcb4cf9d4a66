// Per head: rms of q and k where the family has it, rotary embedding of both, k and v into the layer's pages.
//
// qkv [rows, (HEADS + 2 KV_HEADS) HEAD_DIM] bf16, q is rewritten in place. A page of one head is K [64, HEAD_DIM]
// followed by V transposed [HEAD_DIM, 64]: both attention products then read 16 consecutive bytes a thread.
// One warp a (row, head).
#include "prelude.cuh"

#define PAIRS (HEAD_DIM / 64)

extern "C" __global__ void __launch_bounds__(256) rope_kv(u16 *qkv, u16 *kv, const u16 *q_norm, const u16 *k_norm,
                                                         const float2 *rotation, const int *row_seat, const int *row_position,
                                                         const int *page_table, int table_width, int rows, float eps) {
    wait_previous();
    start_next();
    int unit = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int heads = HEADS + 2 * KV_HEADS;
    int row = unit / heads, head = unit % heads;
    if (row >= rows) return;
    u16 *x = qkv + ((long long)row * heads + head) * HEAD_DIM;
    float lo[PAIRS], hi[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        lo[p] = bf16_to_f32(x[lane * PAIRS + p]);
        hi[p] = bf16_to_f32(x[lane * PAIRS + p + HEAD_DIM / 2]);
    }
    int position = row_position[row];
    int page = page_table[(long long)row_seat[row] * table_width + position / PAGE];
    bool is_v = head >= HEADS + KV_HEADS;
    const u16 *w = head < HEADS ? q_norm : k_norm;
    if (!is_v && w) {
        float sum = 0.f;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) sum += lo[p] * lo[p] + hi[p] * hi[p];
        float scale = rsqrtf(warp_sum(sum) / HEAD_DIM + eps);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            lo[p] *= scale * bf16_to_f32(w[lane * PAIRS + p]);
            hi[p] *= scale * bf16_to_f32(w[lane * PAIRS + p + HEAD_DIM / 2]);
        }
    }
    if (!is_v) {
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            float2 r = rotation[(long long)position * (HEAD_DIM / 2) + lane * PAIRS + p];
            float a = lo[p], b = hi[p];
            lo[p] = a * r.x - b * r.y;
            hi[p] = b * r.x + a * r.y;
        }
    }
    int kv_head = (head - HEADS) % KV_HEADS, slot = position % PAGE;
    u16 *tile = kv + ((long long)page * KV_HEADS + kv_head) * 2 * PAGE * HEAD_DIM;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = lane * PAIRS + p;
        u16 a = f32_to_bf16(lo[p]), b = f32_to_bf16(hi[p]);
        if (head < HEADS) {
            x[j] = a;
            x[j + HEAD_DIM / 2] = b;
        } else if (!is_v) {
            tile[slot * HEAD_DIM + j] = a;
            tile[slot * HEAD_DIM + j + HEAD_DIM / 2] = b;
        } else {
            tile[PAGE * HEAD_DIM + j * PAGE + slot] = a;
            tile[PAGE * HEAD_DIM + (j + HEAD_DIM / 2) * PAGE + slot] = b;
        }
    }
}
