// attended[row, head] = the splits of prefill tiles, merged in order. Grid: (tiles with their splits, 128 / 8), a row of a
// tile a warp; tiles that are whole have been written already. Gated heads find their gates in qkv.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define ROWS 128

extern "C" __global__ void __launch_bounds__(256) attend_merge_tiles(u16 *attended, const float *part_o, const float2 *part_ml,
                                                                     const StepInfo *step, const RunInfo *runs,
                                                                     const TileWork *tiles, const u16 *qkv) {
    wait_previous();
    start_next();
    if (blockIdx.x >= step->tiles) return;
    TileWork work = tiles[blockIdx.x];
    RunInfo run = runs[work.run];
    int r = blockIdx.y * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP, token = work.tile * QTOKENS + r / GROUP;
    // A tile's sums stand side by side; its first part merges them.
    if (work.part != 0 || work.parts < 2 || r / GROUP >= QTOKENS || token >= run.rows) return;
    long long row = (long long)work.place * ROWS + r;
    float top = NEG_INF, total = 0.f;
    for (int s = 0; s < work.parts; s++) top = fmaxf(top, part_ml[row + s * ROWS].x);
    float y[HEAD_DIM / WARP];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / WARP; i++) y[i] = 0.f;
    for (int s = 0; s < work.parts; s++) {
        float2 ml = part_ml[row + s * ROWS];
        const float *o = part_o + (row + s * ROWS) * HEAD_DIM + lane;
        float f = exp2f(ml.x - top);
        total += f * ml.y;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / WARP; i++) y[i] += f * o[i * WARP];
    }
    u16 *to = attended + ((long long)(run.row0 + token) * HEADS + work.kv_head * GROUP + r % GROUP) * HEAD_DIM + lane;
#if Q_STEP == 2
    const u16 *gate = qkv + ((long long)(run.row0 + token) * HEADS_ALL + (work.kv_head * GROUP + r % GROUP) * 2 + 1) * HEAD_DIM + lane;
#endif
#pragma unroll
    for (int i = 0; i < HEAD_DIM / WARP; i++) {
        float x = y[i] / total;
#if Q_STEP == 2
        x = gated(x, half_to_f32(gate[i * WARP]));
#endif
        to[i * WARP] = f32_to_half(x);
    }
}
