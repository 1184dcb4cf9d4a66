// attended[row, head] = the splits of `attend_decode`, merged in order. Grid: (runs, heads), HEAD_DIM threads;
// runs of several rows have no splits.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attend_merge(u16 *attended, const float *part_o, const float2 *part_ml,
                                                                    const RunInfo *runs) {
    wait_previous();
    start_next();
    RunInfo run = runs[blockIdx.x];
    if (run.splits == 0) return;
    int head = blockIdx.y, d = threadIdx.x;
    float top = NEG_INF;
    for (int s = 0; s < run.splits; s++) {
        long long item = run.item0 + s * KV_HEADS + head / GROUP;
        top = fmaxf(top, part_ml[item * GROUP + head % GROUP].x);
    }
    float total = 0.f, y = 0.f;
    for (int s = 0; s < run.splits; s++) {
        long long part = (run.item0 + s * KV_HEADS + head / GROUP) * (long long)GROUP + head % GROUP;
        float2 ml = part_ml[part];
        float f = exp2f(ml.x - top);
        total += f * ml.y;
        y += f * part_o[part * HEAD_DIM + d];
    }
    attended[((long long)run.row0 * HEADS + head) * HEAD_DIM + d] = f32_to_bf16(y / total);
}
