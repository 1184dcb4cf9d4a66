// Causal attention of prefill chunks on Hopper (FlashAttention-3, arXiv 2407.08608): head sizes 64, 128 and 256.
//
// A tile is 128 rows: QTOKENS query tokens times the group's heads, so K and V are read once for the group. One thread
// copies the tile's queries and, BLOCK_PAGES pages at a time, its keys and values into rings of STAGES through tensor maps; two
// warpgroups of 64 rows each multiply. Within a warpgroup the scores of block n are computed while the values of block
// n - 1 are accumulated; between them named barriers give turns, so that one's softmax runs under the other's products.
// Blocks of the grid take tiles by ticket, in the list's order. A tile whose run is split has an item for each range of
// its keys; their sums meet in `attend_merge_tiles`. Everything lies in shared memory with the 128-byte
// swizzle: a row's 16-byte chunk c is at c ^ (row % 8).
#include "warpgroup.cuh"

#define GROUP (HEADS / KV_HEADS)
#define ROWS 128
// Heads of 256 have half of a multiprocessor's registers in their sums, and shared memory for a page a block.
#define BLOCK_PAGES (HEAD_DIM <= 128 ? 2 : 1)
#define KEYS (BLOCK_PAGES * PAGE)  // keys of a block
#define HALVES (HEAD_DIM / 64)
#ifndef STAGES
#define STAGES 2
#endif
#define CONSUMERS 256
#define Q_HELD (HEAD_DIM <= 128)  // queries stay in registers, where they fit: shared memory then reads keys and values alone
#define THREADS (CONSUMERS + 128)
#define LOOK_UP 4  // blocks before a part's last, at which the next is asked for

// Byte offsets in shared memory.
#define Q_HALF (ROWS * 128)
#define K_HALF (KEYS * 128)
#define V_PAGE (HEAD_DIM * 128)
#define BLOCK_BYTES (KEYS * HEAD_DIM * 2)
#define K_AT (HALVES * Q_HALF)
#define V_AT (K_AT + STAGES * BLOCK_BYTES)
#define BARRIERS_AT (V_AT + STAGES * BLOCK_BYTES)

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A tile as the copying thread hands it to the others; `blocks` 0 ends the work. Positions count from the item's first
// key. `place`: of the item's sums, -1 for a tile that is whole.
struct Tile {
    int blocks, start, token0, rows, row0, kv_head, place;
};

// The first of a tile's `all` blocks that a part has.
__device__ __forceinline__ int part_begin(const RunInfo &run, const TileWork &work, int part, int all) {
    int first = run.first_keys * (128 / KEYS), firsts = run.firsts;
    if (part <= firsts) return part * first;
    return firsts * first + (all - firsts * first) * (part - firsts) / (work.parts - firsts);
}

#define FULL_K(s) (barriers + 8 * (s))
#define FULL_V(s) (barriers + 8 * (STAGES + (s)))
#define FREE_K(s) (barriers + 8 * (2 * STAGES + (s)))
#define FREE_V(s) (barriers + 8 * (3 * STAGES + (s)))
#define FULL_Q (barriers + 8 * 4 * STAGES)
#define FREE_Q (FULL_Q + 8)

// `maps`: the tensor maps of the queries (boxes of 64 dimensions, the group's heads, QTOKENS tokens), of the keys (64
// dimensions of a page's keys) and of the values (a page's keys of every dimension). `turn`: how many such launches the
// step had before this one: tickets are counted over the whole step. `qkv`: where gated heads find their gates.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_prefill_sm90(u16 *attended, const u8 *maps, const u16 *qkv, StepInfo *step, const RunInfo *runs, const TileWork *tiles,
                        const int *page_table, int table_width, int turn, float scale_log2, float *part_o, float2 *part_ml) {
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), barriers = base + BARRIERS_AT;
    Tile *handed = (Tile *)(shared + BARRIERS_AT + 8 * (4 * STAGES + 2));
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(FULL_K(s), 1);
            barrier_init(FULL_V(s), 1);
            barrier_init(FREE_K(s), CONSUMERS / WARP);
            barrier_init(FREE_V(s), CONSUMERS / WARP);
        }
        barrier_init(FULL_Q, 1);
        barrier_init(FREE_Q, CONSUMERS);
        barriers_ready();
    }
    __syncthreads();
    wait_previous();
    start_next();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x != 0) return;
        const u8 *q_map = maps, *k_map = maps + 128, *v_map = maps + 256;
        int total = step->tiles, first = turn * (total + (int)gridDim.x);
        Place<STAGES> k = {0, 0}, v = {0, 0};
        int index = atomicAdd(&step->tickets, 1) - first;
        TileWork work = tiles[min(index, total - 1)];
        RunInfo run = runs[work.run];
        for (u32 round = 0;; round++) {
            barrier_wait(FREE_Q, round & 1 ^ 1);
            if (index >= total) break;
            Tile tile;
            int start = run.end - run.rows;
            tile.token0 = work.tile * QTOKENS;
            tile.rows = run.rows;
            tile.row0 = run.row0;
            tile.kv_head = work.kv_head;
            int key_pages = (start + min(tile.token0 + QTOKENS, run.rows) - 1) / PAGE + 1;
            int all = (key_pages * PAGE + KEYS - 1) / KEYS, before = part_begin(run, work, work.part, all);
            tile.blocks = part_begin(run, work, work.part + 1, all) - before;
            tile.start = start - before * KEYS;
            tile.place = work.parts > 1 ? work.place : -1;
            *handed = tile;
            barrier_expect(FULL_Q, HALVES * 64 * GROUP * QTOKENS * 2);
            for (int h = 0; h < HALVES; h++)
                copy_box3(base + h * Q_HALF, q_map, 64 * h, work.kv_head * GROUP, run.row0 + tile.token0, FULL_Q);
            const int *pages = page_table + (long long)run.seat * table_width + before * (KEYS / PAGE);
            key_pages -= before * (KEYS / PAGE);
            // A block's last page may lie beyond the run: any page will do, its keys are masked.
            int page[BLOCK_PAGES], previous[BLOCK_PAGES] = {}, next[BLOCK_PAGES];
            auto look_up = [&](int (&to)[BLOCK_PAGES], int block) {
#pragma unroll
                for (int i = 0; i < BLOCK_PAGES; i++) to[i] = pages[min(block * BLOCK_PAGES + i, key_pages - 1)];
            };
            look_up(page, 0);
            for (int n = 0; n <= tile.blocks; n++) {
                look_up(next, n + 1);
                if (n < tile.blocks) {
                    barrier_wait(FREE_K(k.stage), k.parity ^ 1);
                    barrier_expect(FULL_K(k.stage), BLOCK_BYTES);
                    u32 to = base + K_AT + k.stage * BLOCK_BYTES;
                    for (int h = 0; h < HALVES; h++)
#pragma unroll
                        for (int i = 0; i < BLOCK_PAGES; i++)
                            copy_box2(to + h * K_HALF + i * 8192, k_map, 64 * h, (page[i] * KV_HEADS + tile.kv_head) * 2 * PAGE, FULL_K(k.stage));
                    k.advance();
                }
                // Values one block behind: in the order in which the stages fall free.
                if (n > 0) {
                    barrier_wait(FREE_V(v.stage), v.parity ^ 1);
                    barrier_expect(FULL_V(v.stage), BLOCK_BYTES);
                    u32 to = base + V_AT + v.stage * BLOCK_BYTES;
#pragma unroll
                    for (int i = 0; i < BLOCK_PAGES; i++)
                        copy_box2(to + i * V_PAGE, v_map, 0, (previous[i] * KV_HEADS + tile.kv_head) * 2 * HEAD_DIM + HEAD_DIM, FULL_V(v.stage));
                    v.advance();
                }
#pragma unroll
                for (int i = 0; i < BLOCK_PAGES; i++) {
                    previous[i] = page[i];
                    page[i] = next[i];
                }
                // The next tile is looked up while the ring is full, but late: whose part is over first takes the next.
                if (n == max(tile.blocks - LOOK_UP, 0)) {
                    index = atomicAdd(&step->tickets, 1) - first;
                    work = tiles[min(index, total - 1)];
                    run = runs[work.run];
                }
            }
        }
        handed->blocks = 0;
        barrier_arrive(FULL_Q);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    int group = threadIdx.x / 128 - 1, warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP, t = lane % 4;
    int r0 = group * 64 + warp * 16 + lane / 4, r1 = r0 + 8;
    auto release = [&](u32 barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    // Turns of the two warpgroups; the first goes first.
    auto wait_turn = [&]() { asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(CONSUMERS) : "memory"); };
    auto pass_turn = [&]() { asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(CONSUMERS) : "memory"); };
    if (group == 0) asm volatile("bar.arrive 1, %0;" ::"n"(CONSUMERS) : "memory");
    const u64 queries = operand(base + group * 8192);
    Place<STAGES> k = {0, 0}, v = {0, 0};
    for (u32 round = 0;; round++) {
        barrier_wait(FULL_Q, round & 1);
        Tile tile = *handed;
        if (tile.blocks == 0) return;
        int tok0 = tile.token0 + r0 / GROUP, tok1 = tile.token0 + r1 / GROUP;
        int limit0 = tile.start + tok0 - 2 * t, limit1 = tile.start + tok1 - 2 * t;  // last key each row may see, less 2 t
        int clear = tile.start + tile.token0 + group * 64 / GROUP;                     // last key that all rows see
        float o[HEAD_DIM / 2], score[KEYS / 2];
        u32 p[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;
        float max0 = NEG_INF, max1 = NEG_INF, f0 = 0.f, f1 = 0.f;
        float sum[4] = {0.f, 0.f, 0.f, 0.f};  // of the even and the odd columns of both rows
#if Q_HELD
        u32 q[HEAD_DIM / 16][4];
#pragma unroll
        for (int s = 0; s < HEAD_DIM / 16; s++) {
            int row = group * 64 + warp * 16 + lane % 16, chunk = s % 4 * 2 + lane / 16;
            load_matrix4(q[s], base + s / 4 * Q_HALF + row * 128 + (chunk ^ row % 8) * 16);
        }
        barrier_arrive(FREE_Q);
#endif
        // Queues score = Q K^T of a block.
        auto scores = [&]() {
            u64 keys = operand(base + K_AT + k.stage * BLOCK_BYTES);
#pragma unroll
            for (int s = 0; s < HEAD_DIM / 16; s++)
#if Q_HELD
                product_registers(score, q[s], keys + (s / 4 * K_HALF + s % 4 * 32) / 16, s > 0);
#else
                product_shared(score, queries + (s / 4 * Q_HALF + s % 4 * 32) / 16, keys + (s / 4 * K_HALF + s % 4 * 32) / 16, s > 0);
#endif
            product_commit();
        };
        // Queues o += P V of a block.
        auto accumulate = [&]() {
            u64 values = operand(base + V_AT + v.stage * BLOCK_BYTES);
#pragma unroll
            for (int u = 0; u < KEYS / 16; u++) product_registers(o, p[u], values + (u / 4 * V_PAGE + u % 4 * 32) / 16);
            product_commit();
        };
        // Scores to probabilities in place; f0 and f1 are what the sums so far shrink by.
        auto softmax = [&](int n) {
            if (n * KEYS + KEYS - 1 > clear) {
                int last0 = limit0 - n * KEYS, last1 = limit1 - n * KEYS;
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++)
                    if (i / 4 * 8 + i % 2 > (i % 4 < 2 ? last0 : last1)) score[i] = NEG_INF;
            }
            float top[4] = {max0, max0, max1, max1};
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) top[i % 4] = fmaxf(top[i % 4], score[i]);
            float new0 = fmaxf(top[0], top[1]), new1 = fmaxf(top[2], top[3]);
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 1));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 1));
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 2));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 2));
            // An item's first key is seen by every row, so the maximum is finite from the first block on.
            f0 = exp2_fast((max0 - new0) * scale_log2);
            f1 = exp2_fast((max1 - new1) * scale_log2);
            max0 = new0;
            max1 = new1;
            float shift0 = -new0 * scale_log2, shift1 = -new1 * scale_log2;
#pragma unroll
            for (int c = 0; c < 4; c++) sum[c] *= c < 2 ? f0 : f1;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                score[i] = exp2_fast(fmaf(score[i], scale_log2, i % 4 < 2 ? shift0 : shift1));
                sum[i % 4] += score[i];
            }
        };
        auto pack = [&]() {
#pragma unroll
            for (int u = 0; u < KEYS / 16; u++)
#pragma unroll
                for (int c = 0; c < 4; c++) p[u][c] = half_pack(score[8 * u + 2 * c], score[8 * u + 2 * c + 1]);
        };
        auto p_settled = [&]() {
#pragma unroll
            for (int u = 0; u < KEYS / 16; u++)
#pragma unroll
                for (int c = 0; c < 4; c++) asm volatile("" : "+r"(p[u][c])::"memory");
        };
        barrier_wait(FULL_K(k.stage), k.parity);
        product_fence();
        scores();
        product_wait<0>();
        settled(score);
        release(FREE_K(k.stage));
        k.advance();
        if (!Q_HELD && tile.blocks == 1) barrier_arrive(FREE_Q);
        softmax(0);
        pack();
        for (int n = 1; n < tile.blocks; n++) {
            barrier_wait(FULL_K(k.stage), k.parity);
            wait_turn();
            product_fence();
            scores();
            barrier_wait(FULL_V(v.stage), v.parity);
            accumulate();
            pass_turn();
            product_wait<1>();
            settled(score);
            release(FREE_K(k.stage));
            k.advance();
            if (!Q_HELD && n == tile.blocks - 1) barrier_arrive(FREE_Q);
            softmax(n);
            bool same = !__any_sync(FULL, f0 != 1.f || f1 != 1.f || sum[0] + sum[1] + (sum[2] + sum[3]) < 0.f);
            if (same) {
                asm volatile("wgmma.wait_group.sync.aligned 0; // same" ::: "memory");
                settled(o);
                p_settled();
                pack();
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 0; // scaled" ::: "memory");
                settled(o);
                p_settled();
                pack();
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= i % 4 < 2 ? f0 : f1;
            }
            release(FREE_V(v.stage));
            v.advance();
        }
        barrier_wait(FULL_V(v.stage), v.parity);
        product_fence();
        accumulate();
        product_wait<0>();
        settled(o);
        p_settled();
        release(FREE_V(v.stage));
        v.advance();
        float sum0 = sum[0] + sum[1], sum1 = sum[2] + sum[3];
        sum0 += __shfl_xor_sync(FULL, sum0, 1);
        sum0 += __shfl_xor_sync(FULL, sum0, 2);
        sum1 += __shfl_xor_sync(FULL, sum1, 1);
        sum1 += __shfl_xor_sync(FULL, sum1, 2);
        if (tile.place >= 0) {
            long long row = (long long)tile.place * ROWS + r0;
            if (t == 0) {
                part_ml[row] = make_float2(max0 * scale_log2, sum0);
                part_ml[row + 8] = make_float2(max1 * scale_log2, sum1);
            }
            float *to = part_o + row * HEAD_DIM + 2 * t;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++) {
                *(float2 *)(to + 8 * i) = make_float2(o[4 * i], o[4 * i + 1]);
                *(float2 *)(to + 8 * HEAD_DIM + 8 * i) = make_float2(o[4 * i + 2], o[4 * i + 3]);
            }
            continue;
        }
        float i0 = 1.f / sum0, i1 = 1.f / sum1;
        // Rows beyond the tile's tokens (groups that do not divide 128) belong to the next tile.
        bool live0 = r0 / GROUP < QTOKENS && tok0 < tile.rows, live1 = r1 / GROUP < QTOKENS && tok1 < tile.rows;
        u16 *out = attended + ((long long)tile.row0 * HEADS + tile.kv_head * GROUP) * HEAD_DIM + 2 * t;
        u16 *out0 = out + (long long)tok0 * HEADS * HEAD_DIM + (r0 % GROUP) * HEAD_DIM;
        u16 *out1 = out + (long long)tok1 * HEADS * HEAD_DIM + (r1 % GROUP) * HEAD_DIM;
#if Q_STEP == 2
        // A head's gate stands behind its query.
        const u16 *gates = qkv + ((long long)tile.row0 * HEADS_ALL + tile.kv_head * GROUP * 2 + 1) * HEAD_DIM + 2 * t;
        const u16 *gate0 = gates + ((long long)tok0 * HEADS_ALL + r0 % GROUP * 2) * HEAD_DIM;
        const u16 *gate1 = gates + ((long long)tok1 * HEADS_ALL + r1 % GROUP * 2) * HEAD_DIM;
        auto write = [](u16 *to, const u16 *gate, float lo, float hi) {
            u32 z = *(const u32 *)gate;
            *(u32 *)to = half_pack(gated(lo, half_lo(z)), gated(hi, half_hi(z)));
        };
#else
        const u16 *gate0 = nullptr, *gate1 = nullptr;
        auto write = [](u16 *to, const u16 *, float lo, float hi) { *(u32 *)to = half_pack(lo, hi); };
#endif
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            if (live0) write(out0 + 8 * i, gate0 + 8 * i, o[4 * i] * i0, o[4 * i + 1] * i0);
            if (live1) write(out1 + 8 * i, gate1 + 8 * i, o[4 * i + 2] * i1, o[4 * i + 3] * i1);
        }
    }
}
