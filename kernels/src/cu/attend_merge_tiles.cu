// attended[row, head] = the parts of prefill tiles, merged in order. Grid: (tiles with their parts, 128 / 32), four rows of a
// tile a warp; tiles that are whole have been written already. Gated heads find their gates in qkv. For what
// `attend_prefill_sm90` leaves, so for heads of 64, 128 and 256.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define ROWS 128
#define AT_ONCE 4                 // rows of a warp
#define VALUES (HEAD_DIM / WARP)  // of a row, a lane's

extern "C" __global__ void __launch_bounds__(256) attend_merge_tiles(u16 *attended, const float *part_o, const float2 *part_ml,
                                                                     const StepInfo *step, const RunInfo *runs,
                                                                     const TileWork *tiles, const u16 *qkv) {
    wait_previous();
    start_next();
    if (blockIdx.x >= step->tiles) return;
    TileWork work = tiles[blockIdx.x];
    // A tile's sums stand side by side; its first part merges them.
    if (work.part != 0 || work.parts < 2) return;
    RunInfo run = runs[work.run];
    int lane = threadIdx.x % WARP, r0 = (blockIdx.y * 8 + threadIdx.x / WARP) * AT_ONCE;
    long long row0 = (long long)work.place * ROWS + r0;
    float top[AT_ONCE], total[AT_ONCE] = {}, y[AT_ONCE][VALUES] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) top[i] = NEG_INF;
    for (int s = 0; s < work.parts; s++)
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) top[i] = fmaxf(top[i], part_ml[row0 + s * ROWS + i].x);
    for (int s = 0; s < work.parts; s++)
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            long long row = row0 + s * ROWS + i;
            float2 ml = part_ml[row];
            const float2 *o = (const float2 *)(part_o + row * HEAD_DIM + lane * VALUES);
            float f = exp2f(ml.x - top[i]);
            total[i] += f * ml.y;
#pragma unroll
            for (int j = 0; j < VALUES / 2; j++) {
                float2 x = o[j];
                y[i][2 * j] += f * x.x;
                y[i][2 * j + 1] += f * x.y;
            }
        }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        int r = r0 + i, token = work.tile * QTOKENS + r / GROUP, head = work.kv_head * GROUP + r % GROUP;
        // Rows behind a tile's tokens, where groups do not divide 128, belong to the next.
        if (r / GROUP >= QTOKENS || token >= run.rows) continue;
        u32 *to = (u32 *)(attended + ((long long)(run.row0 + token) * HEADS + head) * HEAD_DIM + lane * VALUES);
#if Q_STEP == 2
        const u32 *gate = (const u32 *)(qkv + ((long long)(run.row0 + token) * HEADS_ALL + head * 2 + 1) * HEAD_DIM + lane * VALUES);
#endif
#pragma unroll
        for (int j = 0; j < VALUES / 2; j++) {
            float low = y[i][2 * j] / total[i], high = y[i][2 * j + 1] / total[i];
#if Q_STEP == 2
            low = gated(low, half_lo(gate[j]));
            high = gated(high, half_hi(gate[j]));
#endif
            to[j] = half_pack(low, high);
        }
    }
}
