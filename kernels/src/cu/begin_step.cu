// The first kernel of a step: page tables, row metadata and the attention work lists, all from device state.
// One block. The host uploads runs and appends; positions and last tokens live here.
#include "prelude.cuh"

#ifndef SPLIT
#define SPLIT 128  // keys per decode work item
#endif
#ifndef QTOKENS
#define QTOKENS 32  // query tokens per prefill tile
#endif
#ifndef KV_HEADS
#define KV_HEADS 8
#endif
// A run of up to this many rows goes through the decode kernel.
#define DECODE_ROWS 1

extern "C" __global__ void __launch_bounds__(1024) begin_step(
    StepInfo *step, RunInfo *runs, const Append *appends, const u32 *tokens, const SeatState *seats, int *page_table,
    int table_width, int *row_seat, int *row_position, u32 *row_token, int *emit_row, int *emit_run,
    int4 *decode_items, int4 *tiles) {
    wait_previous();
    start_next();
    __shared__ int items, tile_count;
    if (threadIdx.x == 0) items = tile_count = 0;
    for (int i = threadIdx.x; i < step->appends; i += blockDim.x)
        page_table[(long long)appends[i].seat * table_width + appends[i].at] = appends[i].page;
    __syncthreads();
    if (threadIdx.x == 0) {
        // Offsets in run order: a batch's layout never depends on timing.
        for (int r = 0; r < step->runs; r++) {
            RunInfo &run = runs[r];
            int start = seats[run.seat].position;
            run.end = start + run.rows;
            if (run.rows <= DECODE_ROWS) {
                run.splits = (run.end + SPLIT - 1) / SPLIT;
                run.item0 = items;
                items += run.splits * KV_HEADS;
            } else {
                run.splits = 0;
                run.item0 = tile_count;
                tile_count += (run.rows + QTOKENS - 1) / QTOKENS * KV_HEADS;
            }
        }
        step->decode_items = items;
        step->tiles = tile_count;
    }
    __syncthreads();
    for (int r = 0; r < step->runs; r++) {
        RunInfo run = runs[r];
        const SeatState &seat = seats[run.seat];
        for (int i = threadIdx.x; i < run.rows; i += blockDim.x) {
            int row = run.row0 + i;
            row_seat[row] = run.seat;
            row_position[row] = seat.position + i;
            row_token[row] = run.token0 >= 0 ? tokens[run.token0 + i] : (u32)seat.last;
        }
        if (threadIdx.x == 0 && run.emit >= 0) {
            emit_row[run.emit] = run.row0 + run.rows - 1;
            emit_run[run.emit] = r;
        }
        if (run.splits > 0) {
            int count = run.splits * KV_HEADS;
            for (int i = threadIdx.x; i < count; i += blockDim.x)
                decode_items[run.item0 + i] = make_int4(r, i % KV_HEADS, i / KV_HEADS, 0);
        } else {
            int count = (run.rows + QTOKENS - 1) / QTOKENS;
            // The last query tile sees the most keys: start with it.
            for (int i = threadIdx.x; i < count * KV_HEADS; i += blockDim.x)
                tiles[run.item0 + i] = make_int4(r, i % KV_HEADS, count - 1 - i / KV_HEADS, 0);
        }
    }
}
