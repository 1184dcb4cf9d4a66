// attended[row, head] = the splits of `attend_decode`, merged in order. Grid: (runs, heads), HEAD_DIM threads;
// runs of several rows are none of its business. Gated heads (Q_STEP 2) are multiplied with the sigmoid of their gate in
// `qkv`.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define KEPT 4

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attend_merge(u16 *attended, const float *part_o, const float2 *part_ml,
                                                                    const RunInfo *runs, const u16 *qkv) {
    // The runs were complete long before the previous kernel.
    RunInfo run = runs[blockIdx.x];
    start_next();
    wait_previous();
    if (run.rows > 1) return;
    int head = blockIdx.y, d = threadIdx.x;
    auto part = [&](int s) { return (run.item0 + s * KV_HEADS + head / GROUP) * (long long)GROUP + head % GROUP; };
    // The first splits' sums travel beside their maxima.
    float2 ml[KEPT];
    float o[KEPT], top = NEG_INF, total = 0.f, y = 0.f;
#pragma unroll
    for (int s = 0; s < KEPT; s++)
        if (s < run.splits) {
            ml[s] = part_ml[part(s)];
            o[s] = part_o[part(s) * HEAD_DIM + d];
        }
#pragma unroll
    for (int s = 0; s < KEPT; s++)
        if (s < run.splits) top = fmaxf(top, ml[s].x);
#pragma unroll 8
    for (int s = KEPT; s < run.splits; s++) top = fmaxf(top, part_ml[part(s)].x);
    auto add = [&](float2 ml, float o) {
        float f = exp2f(ml.x - top);
        total += f * ml.y;
        y += f * o;
    };
#pragma unroll
    for (int s = 0; s < KEPT; s++)
        if (s < run.splits) add(ml[s], o[s]);
#pragma unroll 4
    for (int s = KEPT; s < run.splits; s++) add(part_ml[part(s)], part_o[part(s) * HEAD_DIM + d]);
    y /= total;
#if Q_STEP == 2
    y = gated(y, half_to_f32(qkv[((long long)run.row0 * HEADS_ALL + 2 * head + 1) * HEAD_DIM + d]));
#endif
    attended[((long long)run.row0 * HEADS + head) * HEAD_DIM + d] = f32_to_half(y);
}
