// Causal attention of prefill chunks on Hopper (FlashAttention-3, arXiv 2407.08608): head sizes 64 and 128.
//
// A tile is 128 rows: QTOKENS query tokens times the group's heads, so K and V are read once for the group. One thread
// copies the tile's queries and, two pages at a time, its keys and values into rings of STAGES through tensor maps; two
// warpgroups of 64 rows each multiply. Within a warpgroup the scores of block n are computed while the values of block
// n - 1 are accumulated; between them named barriers give turns, so that one's softmax runs under the other's products.
// Blocks of the grid take tiles by ticket, in the list's order. A tile whose run is split has an item for each range of
// its keys; their sums meet in `attend_merge_tiles`. Everything lies in shared memory with the 128-byte
// swizzle: a row's 16-byte chunk c is at c ^ (row % 8).
#include "prelude.cuh"

#ifdef TL_F16
#define WGMMA_TYPES "f32.f16.f16"
#else
#define WGMMA_TYPES "f32.bf16.bf16"
#endif

#define GROUP (HEADS / KV_HEADS)
#define ROWS 128
#define KEYS (2 * PAGE)  // keys of a block
#define HALVES (HEAD_DIM / 64)
#ifndef STAGES
#define STAGES 2
#endif
#define CONSUMERS 256
#define THREADS (CONSUMERS + 128)

// Byte offsets in shared memory.
#define Q_HALF (ROWS * 128)
#define K_HALF (KEYS * 128)
#define V_PAGE (HEAD_DIM * 128)
#define BLOCK_BYTES (KEYS * HEAD_DIM * 2)
#define K_AT (HALVES * Q_HALF)
#define V_AT (K_AT + STAGES * BLOCK_BYTES)
#define BARRIERS_AT (V_AT + STAGES * BLOCK_BYTES)

// --- warpgroup products: D[64, n] (+)= A[64, 16] B[n, 16]^T ------------------------------------------------------------

__device__ __forceinline__ void product_shared(float (&d)[64], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16." WGMMA_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
        "%57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void product_registers(float (&d)[32], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16." WGMMA_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void product_registers(float (&d)[64], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16." WGMMA_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
        "%57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void product_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What the compiler knows of these registers ends here: it moves no use of them across.
template <int N> __device__ __forceinline__ void settled(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A K-major operand with rows of 128 bytes: groups of 8 rows are 1,024 bytes apart.
__device__ __forceinline__ u64 operand(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// --- copies of boxes, reported to a barrier in shared memory -----------------------------------------------------------

__device__ __forceinline__ void copy_box2(u32 to, const void *map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_box3(u32 to, const void *map, int x, int y, int z, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A place in a ring of stages, and the parity of its turn.
struct Place {
    u32 stage, parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// A tile as the copying thread hands it to the others; `blocks` 0 ends the work. Positions count from the item's first
// key. `place`: of the item's sums, -1 for a tile that is whole.
struct Tile {
    int blocks, start, token0, rows, row0, kv_head, place;
};

#define FULL_K(s) (barriers + 8 * (s))
#define FULL_V(s) (barriers + 8 * (STAGES + (s)))
#define FREE_K(s) (barriers + 8 * (2 * STAGES + (s)))
#define FREE_V(s) (barriers + 8 * (3 * STAGES + (s)))
#define FULL_Q (barriers + 8 * 4 * STAGES)
#define FREE_Q (FULL_Q + 8)

// `maps`: the tensor maps of the queries (boxes of 64 dimensions, the group's heads, QTOKENS tokens), of the keys (64
// dimensions of a page's keys) and of the values (a page's keys of every dimension). `turn`: how many such launches the
// step had before this one: tickets are counted over the whole step.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_prefill_sm90(u16 *attended, const u8 *maps, StepInfo *step, const RunInfo *runs, const int4 *tiles,
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
        Place k = {0, 0}, v = {0, 0};
        int index = atomicAdd(&step->tickets, 1) - first;
        int4 work = tiles[min(index, total - 1)];
        RunInfo run = runs[work.x];
        for (u32 round = 0;; round++) {
            barrier_wait(FREE_Q, round & 1 ^ 1);
            if (index >= total) break;
            Tile tile;
            int start = run.end - run.rows;
            tile.token0 = work.z * QTOKENS;
            tile.rows = run.rows;
            tile.row0 = run.row0;
            tile.kv_head = work.y;
            int key_pages = (start + min(tile.token0 + QTOKENS, run.rows) - 1) / PAGE + 1;
            int all = (key_pages * PAGE + KEYS - 1) / KEYS, before = all * work.w / run.splits;
            tile.blocks = all * (work.w + 1) / run.splits - before;
            tile.start = start - before * KEYS;
            tile.place = run.splits > 1 ? index : -1;
            *handed = tile;
            barrier_expect(FULL_Q, HALVES * 64 * GROUP * QTOKENS * 2);
            for (int h = 0; h < HALVES; h++)
                copy_box3(base + h * Q_HALF, q_map, 64 * h, work.y * GROUP, run.row0 + tile.token0, FULL_Q);
            const int *pages = page_table + (long long)run.seat * table_width + before * (KEYS / PAGE);
            key_pages -= before * (KEYS / PAGE);
            // A block's second page may lie beyond the run: any page will do, its keys are masked.
            int page0 = pages[0], page1 = pages[min(1, key_pages - 1)], previous0 = 0, previous1 = 0;
            for (int n = 0; n <= tile.blocks; n++) {
                int next0 = pages[min(2 * n + 2, key_pages - 1)], next1 = pages[min(2 * n + 3, key_pages - 1)];
                if (n < tile.blocks) {
                    barrier_wait(FREE_K(k.stage), k.parity ^ 1);
                    barrier_expect(FULL_K(k.stage), BLOCK_BYTES);
                    u32 to = base + K_AT + k.stage * BLOCK_BYTES;
                    for (int h = 0; h < HALVES; h++) {
                        copy_box2(to + h * K_HALF, k_map, 64 * h, (page0 * KV_HEADS + tile.kv_head) * 2 * PAGE, FULL_K(k.stage));
                        copy_box2(to + h * K_HALF + 8192, k_map, 64 * h, (page1 * KV_HEADS + tile.kv_head) * 2 * PAGE, FULL_K(k.stage));
                    }
                    k.advance();
                }
                // Values one block behind: in the order in which the stages fall free.
                if (n > 0) {
                    barrier_wait(FREE_V(v.stage), v.parity ^ 1);
                    barrier_expect(FULL_V(v.stage), BLOCK_BYTES);
                    u32 to = base + V_AT + v.stage * BLOCK_BYTES;
                    copy_box2(to, v_map, 0, (previous0 * KV_HEADS + tile.kv_head) * 2 * HEAD_DIM + HEAD_DIM, FULL_V(v.stage));
                    copy_box2(to + V_PAGE, v_map, 0, (previous1 * KV_HEADS + tile.kv_head) * 2 * HEAD_DIM + HEAD_DIM, FULL_V(v.stage));
                    v.advance();
                }
                previous0 = page0;
                previous1 = page1;
                page0 = next0;
                page1 = next1;
                // The next tile is looked up while the ring is full.
                if (n == 1) {
                    index = atomicAdd(&step->tickets, 1) - first;
                    work = tiles[min(index, total - 1)];
                    run = runs[work.x];
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
    Place k = {0, 0}, v = {0, 0};
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
        // Queues score = Q K^T of a block.
        auto scores = [&]() {
            u64 keys = operand(base + K_AT + k.stage * BLOCK_BYTES);
#pragma unroll
            for (int s = 0; s < HEAD_DIM / 16; s++)
                product_shared(score, queries + (s / 4 * Q_HALF + s % 4 * 32) / 16, keys + (s / 4 * K_HALF + s % 4 * 32) / 16, s > 0);
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
        if (tile.blocks == 1) barrier_arrive(FREE_Q);
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
            if (n == tile.blocks - 1) barrier_arrive(FREE_Q);
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
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            if (live0) *(u32 *)(out0 + 8 * i) = half_pack(o[4 * i] * i0, o[4 * i + 1] * i0);
            if (live1) *(u32 *)(out1 + 8 * i) = half_pack(o[4 * i + 2] * i1, o[4 * i + 3] * i1);
        }
    }
}
