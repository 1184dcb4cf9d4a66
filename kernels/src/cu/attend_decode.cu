// Attention of one query token per seat: split over keys, grouped heads share one read of K and V.
//
// A work item is (run, kv head, SPLIT keys); a persistent grid takes items in order. Each of 4 warps handles 32 keys with
// tensor cores: the group's query heads are the rows of the tile. Key order inside a warp is permuted so that scores leave
// the first product in the layout the second one wants: column c of n-tile j is key 8 (c / 2) + 2 j + c % 2.
// The split length is fixed, so a row's result does not depend on the batch. Splits meet in `attend_merge`.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define STEPS (HEAD_DIM / 32)
#define TILES (HEAD_DIM / 8)

extern "C" __global__ void __launch_bounds__(128) attend_decode(float *part_o, float2 *part_ml, const u16 *qkv, const u16 *kv,
                                                                const StepInfo *step, const RunInfo *runs,
                                                                const int4 *items, const int *page_table, int table_width,
                                                                float scale_log2) {
    __shared__ float sums[4][GROUP][HEAD_DIM];
    __shared__ float2 ml[4][GROUP];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    wait_previous();
    start_next();
    for (int item = blockIdx.x; item < step->decode_items; item += gridDim.x) {
        int4 work = items[item];
        RunInfo run = runs[work.x];
        int key0 = work.z * SPLIT + warp * 32;
        bool live = key0 < run.end;
        const u16 *q = qkv + ((long long)run.row0 * (HEADS + 2 * KV_HEADS) + work.y * GROUP) * HEAD_DIM;
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
            int page = page_table[(long long)run.seat * table_width + key0 / PAGE];
            const u16 *tile = kv + ((long long)page * KV_HEADS + work.y) * 2 * PAGE * HEAD_DIM;
            const u16 *keys = tile + (key0 % PAGE) * HEAD_DIM, *values = tile + PAGE * HEAD_DIM + key0 % PAGE;
            U4 k[4][STEPS];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    k[j][s] = load_stream(keys + (8 * (g / 2) + 2 * j + g % 2) * HEAD_DIM + 32 * s + 8 * t);
            // Values do not wait for scores: everything this warp reads is requested at once.
            U4 v[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++) v[i] = load_stream(values + (8 * i + g) * PAGE + 8 * t);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                U4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
                if (g < GROUP) a = load16(q + g * HEAD_DIM + 32 * s + 8 * t);
                if (g + 8 < GROUP) b = load16(q + (g + 8) * HEAD_DIM + 32 * s + 8 * t);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma(score[j], a.x, b.x, a.y, b.y, k[j][s].x, k[j][s].y);
                    mma(score[j], a.z, b.z, a.w, b.w, k[j][s].z, k[j][s].w);
                }
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
                p[j][0] = bf16_pack(e0, e1);
                p[j][1] = bf16_pack(e2, e3);
            }
            sum0 += __shfl_xor_sync(FULL, sum0, 1);
            sum0 += __shfl_xor_sync(FULL, sum0, 2);
            sum1 += __shfl_xor_sync(FULL, sum1, 1);
            sum1 += __shfl_xor_sync(FULL, sum1, 2);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                mma(o[i], p[0][0], p[0][1], p[1][0], p[1][1], v[i].x, v[i].y);
                mma(o[i], p[2][0], p[2][1], p[3][0], p[3][1], v[i].z, v[i].w);
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
            part_o[((long long)item * GROUP + row) * HEAD_DIM + d] = y;
            if (d == 0) part_ml[(long long)item * GROUP + row] = make_float2(top, total);
        }
    }
}
