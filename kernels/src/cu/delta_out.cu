// Behind the chunked delta rule: attended[row, head] = rms(o; norm) gate(z), and the newest tokens into the seats' rings.
//
// Rings that `saves` name get the four tokens before them. o lies in conv in place of v (`delta_scan`). One warp takes a row's head. Grid: (rows, (VALUE_HEADS + 3) / 4), 128 threads; runs of one row are none of its business.
#include "prelude.cuh"

#define LANE (VALUE_DIM / WARP)

extern "C" __global__ void __launch_bounds__(128) delta_out(u16 *attended, const u16 *conv, const u16 *mix, int mix_width, u16 *rings,
                                                            const float *norm, const int *row_seat,
                                                            const int *row_position, int rows, float eps,
                                                            const StateSave *saves, int saves_total, const StepInfo *step,
                                                            const RunInfo *runs) {
    wait_previous();
    start_next();
    int row = blockIdx.x, seat = row_seat[row], position = row_position[row];
    auto same_run = [&](int by) {
        return row + by >= 0 && row + by < rows && row_seat[row + by] == seat && row_position[row + by] == position + by;
    };
    if (!same_run(1) && !same_run(-1)) {
#if INVARIANT
        // Its run is the last that begins no later.
        int low = 0, high = step->runs - 1;
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (runs[middle].row0 <= row) low = middle;
            else high = middle - 1;
        }
        if (recurs(runs[low])) return;
#else
        return;
#endif
    }
    int lane = threadIdx.x % WARP, head = blockIdx.y * 4 + threadIdx.x / WARP;
    const u16 *from = mix + (long long)row * mix_width;
    auto remember = [&](int number) {
        u16 *to = rings + ((long long)number * 4 + (position & 3)) * CHANNELS;
        for (int i = (blockIdx.y * 128 + threadIdx.x) * 8; i < CHANNELS; i += gridDim.y * 1024) *(U4 *)(to + i) = load16(from + i);
    };
    if (!same_run(4)) remember(seat);
    if (position % 64 >= 60)
        for (int i = 0; i < saves_total; i++)
            if (saves[i].seat == seat && saves[i].at == position / 64 * 64 + 64) remember(saves[i].to);
    if (head >= VALUE_HEADS) return;
    float o[LANE], sum = 0.f;
    int at = head * VALUE_DIM + lane * LANE;
#pragma unroll
    for (int i = 0; i < LANE; i += 2) {
        u32 x = *(const u32 *)(conv + (long long)row * CHANNELS + 2 * KEY_HEADS * KEY_DIM + at + i);
        o[i] = half_lo(x);
        o[i + 1] = half_hi(x);
        sum += o[i] * o[i] + o[i + 1] * o[i + 1];
    }
    float scale = rsqrtf(warp_sum(sum) / VALUE_DIM + eps);
#pragma unroll
    for (int i = 0; i < LANE; i += 2) {
        u32 z = *(const u32 *)(from + CHANNELS + at + i);
        float lo = o[i] * scale * norm[lane * LANE + i] * delta_gate(half_lo(z));
        float hi = o[i + 1] * scale * norm[lane * LANE + i + 1] * delta_gate(half_hi(z));
        *(u32 *)(attended + (long long)row * VALUE_HEADS * VALUE_DIM + at + i) = half_pack(lo, hi);
    }
}
