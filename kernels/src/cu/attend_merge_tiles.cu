// attended[row, head] = the parts of prefill tiles, merged. Grid: (tiles in parts, 128 / 32), four rows of a tile a warp; tiles
// that are whole have been written already. Gated heads find their gates in qkv. For what `attend_prefill_sm90` leaves, so for
// heads of 64, 128 and 256.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define ROWS 128
#define AT_ONCE 4                  // rows of a warp
#define VALUES (HEAD_DIM / WARP)   // of a row, a lane's
#define ON_THE_WAY (16 / VALUES)   // parts of them

extern "C" __global__ void __launch_bounds__(256) attend_merge_tiles(u16 *attended, const float *part_o, const float2 *part_ml,
                                                                     const StepInfo *step, const RunInfo *runs,
                                                                     const TileWork *tiles, const int *merges, const u16 *qkv) {
    // The lists were complete long before the previous kernel.
    if ((int)blockIdx.x >= step->merges) return;
    TileWork work = tiles[merges[blockIdx.x]];
    RunInfo run = runs[work.run];
    int lane = threadIdx.x % WARP, r0 = (blockIdx.y * 8 + threadIdx.x / WARP) * AT_ONCE, parts = work.parts;
    start_next();
    wait_previous();
    // A tile's sums stand side by side. A lane has a part's weights.
    long long row0 = (long long)work.place * ROWS + r0;
    float weight[AT_ONCE], y[AT_ONCE][VALUES] = {};
    float2 ml[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) ml[i] = lane < parts ? part_ml[row0 + lane * ROWS + i] : make_float2(NEG_INF, 0.f);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float f = exp2f(ml[i].x - warp_max(ml[i].x));
        weight[i] = f / warp_sum(f * ml[i].y);
    }
    for (int first = 0; first < parts; first += ON_THE_WAY) {
        float x[ON_THE_WAY][AT_ONCE][VALUES];
#pragma unroll
        for (int s = 0; s < ON_THE_WAY; s++)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const float2 *o = (const float2 *)(part_o + (row0 + (long long)min(first + s, parts - 1) * ROWS + i) * HEAD_DIM + lane * 2);
#pragma unroll
                for (int j = 0; j < VALUES / 2; j++) {
                    float2 v = o[j * WARP];
                    x[s][i][2 * j] = v.x;
                    x[s][i][2 * j + 1] = v.y;
                }
            }
#pragma unroll
        for (int s = 0; s < ON_THE_WAY; s++)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float w = __shfl_sync(FULL, weight[i], first + s);
                if (first + s < parts)
#pragma unroll
                    for (int j = 0; j < VALUES; j++) y[i][j] = fmaf(w, x[s][i][j], y[i][j]);
            }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        int r = r0 + i, token = work.tile * QTOKENS + r / GROUP, head = work.kv_head * GROUP + r % GROUP;
        // Rows behind a tile's tokens, where groups do not divide 128, belong to the next.
        if (r / GROUP >= QTOKENS || token >= run.rows) continue;
        u32 *to = (u32 *)(attended + ((long long)(run.row0 + token) * HEADS + head) * HEAD_DIM + lane * 2);
#if Q_STEP == 2
        const u32 *gate = (const u32 *)(qkv + ((long long)(run.row0 + token) * HEADS_ALL + head * 2 + 1) * HEAD_DIM + lane * 2);
#endif
#pragma unroll
        for (int j = 0; j < VALUES / 2; j++) {
            float low = y[i][2 * j], high = y[i][2 * j + 1];
#if Q_STEP == 2
            low = gated(low, half_lo(gate[j * WARP]));
            high = gated(high, half_hi(gate[j * WARP]));
#endif
            to[j * WARP] = half_pack(low, high);
        }
    }
}
