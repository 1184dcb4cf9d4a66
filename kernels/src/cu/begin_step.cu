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
// A run of up to this many rows goes through the decode kernel; 0 where a row's attention may not depend on its step.
#ifndef DECODE_ROWS
#define DECODE_ROWS 1
#endif
// Earlier keys for each split that a prompt's tiles may have.
#ifndef SPLIT_KEYS_MIN
#define SPLIT_KEYS_MIN 2048
#endif
// Keys of the smallest of unequal parts; more than the tokens of a tile, which all must see the first of its last part.
#ifndef PART_KEYS_MIN
#define PART_KEYS_MIN 512
#endif

extern "C" __global__ void __launch_bounds__(1024) begin_step(
    StepInfo *step, RunInfo *runs, const Append *appends, const u32 *tokens, const SeatState *seats, int *page_table,
    int table_width, int *row_seat, int *row_position, u32 *row_token, int *emit_row, int *emit_run,
    int4 *decode_items, TileWork *tiles, int *merges) {
    wait_previous();
    start_next();
    __shared__ int sums[3][32];
    __shared__ int ranks[1024];  // of the runs of a single row, among themselves
    __shared__ int2 prompts[1024];  // of runs of several rows: keys of an item, tiles
    __shared__ int singles, merged;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int i = threadIdx.x; i < step->appends; i += blockDim.x)
        page_table[(long long)appends[i].seat * table_width + appends[i].at] = appends[i].page;
    // One thread a run (at most 1,024): its work, then its place by a prefix sum, so a batch's layout is in run order.
    int r = threadIdx.x, runs_total = step->runs;
    RunInfo run = {};
    int start = 0, items = 0, tile_count = 0;
    bool single = false;
    if (r < runs_total) {
        run = runs[r];
        start = seats[run.seat].position;
        run.end = start + run.rows;
        single = run.rows <= DECODE_ROWS;
        // What the host wants of a prompt, as far as its keys go.
        int allowed = max(1, start / SPLIT_KEYS_MIN), wanted = max(1, run.splits), most = max(wanted, (int)run.more_splits);
        if (single || run.firsts + most > allowed || run.firsts * run.first_keys * 128 + most * PART_KEYS_MIN > start)
            run.more = run.firsts = 0;
        run.splits = single ? (run.end + SPLIT - 1) / SPLIT : min(wanted, allowed);
        int of_run = (run.rows + QTOKENS - 1) / QTOKENS * KV_HEADS;
        if (single) items = run.splits * KV_HEADS;
        else tile_count = of_run * (run.firsts + run.splits) + run.more * (run.more_splits - run.splits);
    }
    int items_end = items, tiles_end = tile_count, rank_end = single;
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        int a = __shfl_up_sync(FULL, items_end, o), b = __shfl_up_sync(FULL, tiles_end, o), c = __shfl_up_sync(FULL, rank_end, o);
        if (lane >= o) {
            items_end += a;
            tiles_end += b;
            rank_end += c;
        }
    }
    if (lane == WARP - 1) {
        sums[0][warp] = items_end;
        sums[1][warp] = tiles_end;
        sums[2][warp] = rank_end;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        items_end += sums[0][w];
        tiles_end += sums[1][w];
        rank_end += sums[2][w];
    }
    ranks[r] = rank_end - single;
    prompts[r] = make_int2(!tile_count ? 0 : run.firsts ? run.first_keys * 128 : run.end / run.splits, tile_count);
    if (r == 0) merged = 0;
    __syncthreads();
    int tile0 = 0;
    if (tile_count)
        // Blocks take their next tile before they are done with the last: a heavy one behind light ones would wait for
        // another heavy one.
        for (int other = 0; other < runs_total; other++) {
            int2 x = prompts[other];
            if (x.x > prompts[r].x || (x.x == prompts[r].x && other < r)) tile0 += x.y;
        }
    if (r < runs_total) {
        run.item0 = single ? items_end - items : tile0;
        runs[r].end = run.end;
        runs[r].item0 = run.item0;
        runs[r].splits = run.splits;
        runs[r].more = run.more;
        runs[r].firsts = run.firsts;
        if (run.emit >= 0) {
            emit_row[run.emit] = run.row0 + run.rows - 1;
            emit_run[run.emit] = r;
        }
    }
    if (r == blockDim.x - 1) {
        step->decode_items = items_end;
        step->tiles = tiles_end;
        singles = rank_end;
    }
    __syncthreads();
    // A warp a run: its rows and its work items.
    for (int i = warp; i < runs_total; i += blockDim.x / WARP) {
        run = runs[i];
        start = run.end - run.rows;
        u32 last = (u32)seats[run.seat].last;
        for (int j = lane; j < run.rows; j += WARP) {
            row_seat[run.row0 + j] = run.seat;
            row_position[run.row0 + j] = start + j;
            row_token[run.row0 + j] = run.token0 >= 0 ? tokens[run.token0 + j] : last;
        }
        if (run.rows <= DECODE_ROWS) {
            // Whole splits first, then every run's last one: blocks that take items in turn get like shares of both.
            int whole = (run.splits - 1) * KV_HEADS, at = run.item0 - ranks[i] * KV_HEADS;
            int after = step->decode_items - (singles - ranks[i]) * KV_HEADS - whole;
            for (int j = lane; j < run.splits * KV_HEADS; j += WARP)
                decode_items[j < whole ? at + j : after + j] = make_int4(i, j % KV_HEADS, j / KV_HEADS, run.item0 + j);
        } else {
            // The last query tile sees the most keys: start with it. Larger parts come first. Where there are parts, tiles of
            // a kv head stand together, and of all tiles the same part before the next: who reads the same keys does so at
            // the same time, or memory would be asked for them again.
            int count = (run.rows + QTOKENS - 1) / QTOKENS, all = count * KV_HEADS, few = all - run.more;
            int ahead = all * run.firsts, few_items = few * run.splits;
            bool split = run.firsts + run.splits + run.more > 1;
            // Tiles in parts: all, or the last.
            int whole = run.firsts + run.splits > 1 ? 0 : few, merge0 = 0;
            if (lane == 0 && split) merge0 = atomicAdd(&merged, all - whole);
            merge0 = __shfl_sync(FULL, merge0, 0);
            for (int j = lane; j < ahead + few_items + run.more * run.more_splits; j += WARP) {
                bool first = j < ahead, less = j < ahead + few_items;
                int of = first ? all : less ? few : run.more, local = j - (first ? 0 : less ? ahead : ahead + few_items);
                int index = local % of + (less ? 0 : few), part = local / of + (first ? 0 : run.firsts);
                int parts = run.firsts + (index < few ? run.splits : run.more_splits);
                int place = run.item0 + index * (run.firsts + run.splits) + max(0, index - few) * (run.more_splits - run.splits) + part;
                int tile = count - 1 - (split ? index % count : index / KV_HEADS), head = split ? index / count : index % KV_HEADS;
                tiles[run.item0 + j] = TileWork{(u16)i, (u16)head, (u16)part, (u16)parts, tile, place};
                if (part == 0 && parts > 1) merges[merge0 + index - whole] = run.item0 + j;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) step->merges = merged;
}
