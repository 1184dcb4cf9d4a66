// Attention of one query token per seat on Hopper: the work of attend_decode.cu, item by item to the same bits.
//
// Two teams of four warps take items in turn. Each has a ring of SLOTS in shared memory, for the keys or the values of a page,
// and a fifth warp that copies them in bulk as slots fall free, so that memory never waits for arithmetic. A page of one head
// lies in memory as K [64, HEAD_DIM] and V transposed [HEAD_DIM, 64], and is copied as it lies. An item has its pages' keys,
// then their values; what a short one leaves empty is passed on empty.
//
// A wait on a barrier tells phases apart by their parity alone: for a slot's next tenant it would be over at once while the one
// before has not even come. A warp therefore waits first, as the copying one does, until that one has been let go; those
// before it are of an item that the team has ended.
//
// SUM_PARTS: in so many parts the sums of the warps are added, where there is no room for all.
//
// Build flag ROPE = 1: the rows come as the product left them; norm and rotation of the group's queries happen here, and
// whoever has the last split also does the new key and value and writes them into the page (see rope_kv.cu).
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define STEPS (HEAD_DIM / 32)
#define TILES (HEAD_DIM / 8)
#define WARPS 4
#define TEAMS 2
#define THREADS (3 * WARPS * WARP)  // two teams, and their copying warps among four that give their registers away
#define PITCH (HEAD_DIM + 8)  // padded against bank conflicts
#define SLOT_BYTES (PAGE * HEAD_DIM * 2)
#define PAGES (SPLIT / PAGE)
static_assert(2 * SLOTS >= 2 * PAGES + 2, "a slot's last tenant but one is of an earlier item");
#define SUM_DIM (HEAD_DIM / SUM_PARTS)
// Heads that a warp prepares: of the group's queries, then the new key and value.
#define UNITS ((GROUP + 2 + WARPS - 1) / WARPS)

struct __align__(16) Team {
    float sums[WARPS][GROUP][SUM_DIM];
    float2 ml[WARPS][GROUP];
    u16 fresh[GROUP + 2][PITCH];  // queries, then the new key and value
};

__device__ __forceinline__ void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ U4 load_shared16(u32 from) {
    U4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_decode_sm90(float *part_o, float2 *part_ml, const u16 *qkv, u16 *kv, const StepInfo *step, const RunInfo *runs,
                       const int4 *items, const int *page_table, int table_width, float scale_log2, const u16 *q_norm,
                       const u16 *k_norm, const float2 *rotation, float eps) {
    extern __shared__ __align__(128) u8 shared[];  // [TEAMS][SLOTS], teams, barriers
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int number = warp / WARPS < TEAMS ? warp / WARPS : warp % TEAMS;
    Team &team = ((Team *)(shared + TEAMS * SLOTS * SLOT_BYTES))[number];
    u8 *ring = shared + number * SLOTS * SLOT_BYTES;
    u32 all_barriers = shared_address((Team *)(shared + TEAMS * SLOTS * SLOT_BYTES) + TEAMS), barriers = all_barriers + number * 16 * SLOTS;
    // Of the team's n-th item part 0 to 2 PAGES - 1.
    auto slot_of = [](int n, int i) { return (u32)(n * 2 * PAGES + i) % SLOTS; };
    auto parity_of = [](int n, int i) { return (u32)(n * 2 * PAGES + i) / SLOTS & 1; };
    auto full = [&](int n, int i) { return barriers + 8 * slot_of(n, i); };
    auto free = [&](int n, int i) { return barriers + 8 * (SLOTS + slot_of(n, i)); };
    auto place = [&](int n, int i) { return ring + slot_of(n, i) * SLOT_BYTES; };
    auto wait_free = [&](int n, int i) { barrier_wait(free(n, i), parity_of(n, i) ^ 1); };
    auto wait_full = [&](int n, int i) {
        if (SLOTS % (2 * PAGES) != 0) wait_free(n, i);
        barrier_wait(full(n, i), parity_of(n, i));
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < TEAMS * 2 * SLOTS; s++) barrier_init(all_barriers + 8 * s, s / SLOTS % 2 == 0 ? 1 : PAGE / 32);
        barriers_ready();
    }
    __syncthreads();
#if !ROPE
    wait_previous();
    start_next();
#endif
    // With ROPE the lists and the pages' earlier keys were complete two kernels ago: they are read before the wait.
    int total = step->decode_items;
    if (warp / WARPS == TEAMS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp % WARPS >= TEAMS || lane != 0) return;
        for (int item = blockIdx.x + number * gridDim.x, n = 0; item < total; item += TEAMS * gridDim.x, n++) {
            int4 work = items[item];
            RunInfo run = runs[work.x];
            int keys = min(SPLIT, run.end - work.z * SPLIT), pages = (keys + PAGE - 1) / PAGE;
            int rest = (keys - (pages - 1) * PAGE + 7) / 8 * 8;  // keys to read of the last page
            const u8 *from[PAGES];
#pragma unroll
            for (int p = 0; p < PAGES; p++) {
                int page = page_table[(long long)run.seat * table_width + work.z * PAGES + min(p, pages - 1)];
                from[p] = (const u8 *)kv + ((long long)page * KV_HEADS + work.y) * 2 * SLOT_BYTES;
            }
#pragma unroll
            for (int i = 0; i < 2 * PAGES; i++) {
                int p = i % PAGES;
                wait_free(n, i);
                if (p >= pages) {
                    barrier_arrive(full(n, i));
                    continue;
                }
                u32 bytes = i >= PAGES || p + 1 < pages ? SLOT_BYTES : rest * HEAD_DIM * 2;
                barrier_expect(full(n, i), bytes);
                copy_bulk(shared_address(place(n, i)), from[p] + i / PAGES * SLOT_BYTES, bytes, full(n, i));
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    warp %= WARPS;
    auto team_sync = [&]() { asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "n"(WARPS * WARP) : "memory"); };
    bool holds = lane * PAIRS < HEAD_DIM / 2;
    int j0 = holds ? lane * PAIRS : 0;
#if ROPE
    float q_lo[PAIRS], q_hi[PAIRS], k_lo[PAIRS], k_hi[PAIRS];  // weights of the norms
    if (q_norm) {
        load_pairs(q_lo, q_norm + j0);
        load_pairs(q_hi, q_norm + j0 + HEAD_DIM / 2);
        load_pairs(k_lo, k_norm + j0);
        load_pairs(k_hi, k_norm + j0 + HEAD_DIM / 2);
    }
    bool waited = false;
#endif
    for (int item = blockIdx.x + number * gridDim.x, n = 0; item < total; item += TEAMS * gridDim.x, n++) {
        int4 work = items[item];
        RunInfo run = runs[work.x];
        int key0 = work.z * SPLIT + warp * 32, newest = run.end - 1;
        bool live = key0 < run.end, writes = ROPE && work.z == newest / SPLIT;
        const u16 *row = qkv + (long long)run.row0 * HEADS_ALL * HEAD_DIM;
#if ROPE
        float2 turn[PAIRS];
        load_turn(turn, rotation, newest, j0);
        if (!waited) {
            wait_previous();
            start_next();
            waited = true;
        }
#endif
        float lo[UNITS][PAIRS], hi[UNITS][PAIRS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int head = u * WARPS + warp;
            head = head < GROUP ? work.y * GROUP + head : HEADS + min(head - GROUP, 1) * KV_HEADS + work.y;
            load_pairs(lo[u], row + HEAD_SLOT(head) * HEAD_DIM + j0);
            load_pairs(hi[u], row + HEAD_SLOT(head) * HEAD_DIM + j0 + HEAD_DIM / 2);
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int unit = u * WARPS + warp;
            if (unit >= GROUP + (writes ? 2 : 0)) break;
#if ROPE
            if (unit < GROUP + 1) {
                if (q_norm && unit < GROUP) norm_head(lo[u], hi[u], q_lo, q_hi, holds, eps);
                if (q_norm && unit == GROUP) norm_head(lo[u], hi[u], k_lo, k_hi, holds, eps);
                rotate_head(lo[u], hi[u], turn);
            }
#endif
            if (!holds) continue;
            store_pairs(&team.fresh[unit][j0], lo[u]);
            store_pairs(&team.fresh[unit][j0 + HEAD_DIM / 2], hi[u]);
        }
        team_sync();
        int new_page = writes ? page_table[(long long)run.seat * table_width + newest / PAGE] : 0, new_place = newest % PAGE;
        u16 *far = kv + ((long long)new_page * KV_HEADS + work.y) * 2 * PAGE * HEAD_DIM;
        // The new key or value comes to the page that lies here and to the one in memory.
        auto put_new = [&](int i, int head, int first, int step) {
            wait_full(n, i);
            u16 *here = (u16 *)place(n, i), *there = far + i / PAGES * PAGE * HEAD_DIM;
            for (int d = threadIdx.x % (WARPS * WARP); d < HEAD_DIM; d += WARPS * WARP)
                there[first + d * step] = here[first + d * step] = team.fresh[head][d];
            // A slot's next tenant comes by the copy engine.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            team_sync();
        };
        int new_slot = newest % SPLIT / PAGE;
        if (writes) put_new(new_slot, GROUP, new_place * HEAD_DIM, 1);
        float score[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) score[j][c] = 0.f;
        float o[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[i][c] = 0.f;
        float max0 = NEG_INF, max1 = NEG_INF, sum0 = 0.f, sum1 = 0.f;
        int k_slot = warp * 32 / PAGE, v_slot = PAGES + k_slot;
        auto release = [&](int i) {
            __syncwarp();
            if (lane == 0) barrier_arrive(free(n, i));
        };
        u32 p[4][2];
        wait_full(n, k_slot);
        if (live) {
            u32 keys = shared_address(place(n, k_slot));
            keys += (warp * 32 % PAGE + 8 * (g / 2) + g % 2) * HEAD_DIM * 2 + 16 * t;
            u32 queries = shared_address(&team.fresh[0][0]) + 16 * t;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                U4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
                if (g < GROUP) a = load_shared16(queries + g * PITCH * 2 + 64 * s);
                if (GROUP > 8 && g + 8 < GROUP) b = load_shared16(queries + (g + 8) * PITCH * 2 + 64 * s);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    U4 k = load_shared16(keys + 2 * j * HEAD_DIM * 2 + 64 * s);
                    mma(score[j], a.x, b.x, a.y, b.y, k.x, k.y);
                    mma(score[j], a.z, b.z, a.w, b.w, k.z, k.w);
                }
            }
        }
        release(k_slot);
        if (live) {
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    bool seen = key0 + 8 * t + 2 * j + (c & 1) < run.end;
                    score[j][c] = seen ? score[j][c] * scale_log2 : NEG_INF;
                    if (c < 2) max0 = fmaxf(max0, score[j][c]);
                    else max1 = fmaxf(max1, score[j][c]);
                }
            max0 = fmaxf(max0, __shfl_xor_sync(FULL, max0, 1));
            max0 = fmaxf(max0, __shfl_xor_sync(FULL, max0, 2));
            max1 = fmaxf(max1, __shfl_xor_sync(FULL, max1, 1));
            max1 = fmaxf(max1, __shfl_xor_sync(FULL, max1, 2));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float e0 = exp2f(score[j][0] - max0), e1 = exp2f(score[j][1] - max0);
                float e2 = exp2f(score[j][2] - max1), e3 = exp2f(score[j][3] - max1);
                sum0 += e0 + e1;
                sum1 += e2 + e3;
                p[j][0] = half_pack(e0, e1);
                p[j][1] = half_pack(e2, e3);
            }
            sum0 += __shfl_xor_sync(FULL, sum0, 1);
            sum0 += __shfl_xor_sync(FULL, sum0, 2);
            sum1 += __shfl_xor_sync(FULL, sum1, 1);
            sum1 += __shfl_xor_sync(FULL, sum1, 2);
        }
        if (writes) put_new(PAGES + new_slot, GROUP + 1, new_place, PAGE);
        wait_full(n, v_slot);
        if (live) {
            u32 values = shared_address(place(n, v_slot)) + warp * 32 % PAGE * 2 + 16 * t;
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                U4 v = load_shared16(values + (8 * i + g) * PAGE * 2);
                mma(o[i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
                mma(o[i], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
            }
        }
        release(v_slot);
        constexpr int PART_TILES = TILES / SUM_PARTS;
#pragma unroll
        for (int part = 0; part < SUM_PARTS; part++) {
            if (part > 0) team_sync();  // the part before is read
            if (g < GROUP) {
#pragma unroll
                for (int i = 0; i < PART_TILES; i++)
                    *(float2 *)&team.sums[warp][g][8 * i + 2 * t] = make_float2(o[part * PART_TILES + i][0], o[part * PART_TILES + i][1]);
                if (t == 0) team.ml[warp][g] = make_float2(max0, sum0);
            }
            // Said so that sums of the other rows need no registers.
            if (GROUP > 8 && g + 8 < GROUP) {
#pragma unroll
                for (int i = 0; i < PART_TILES; i++)
                    *(float2 *)&team.sums[warp][(g + 8) % GROUP][8 * i + 2 * t] = make_float2(o[part * PART_TILES + i][2], o[part * PART_TILES + i][3]);
                if (t == 0) team.ml[warp][(g + 8) % GROUP] = make_float2(max1, sum1);
            }
            team_sync();
            for (int i = threadIdx.x % (WARPS * WARP); i < GROUP * SUM_DIM; i += WARPS * WARP) {
                int r = i / SUM_DIM, d = i % SUM_DIM;
                float top = fmaxf(fmaxf(team.ml[0][r].x, team.ml[1][r].x), fmaxf(team.ml[2][r].x, team.ml[3][r].x));
                float sum = 0.f, y = 0.f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    float f = team.ml[w][r].x == NEG_INF ? 0.f : exp2f(team.ml[w][r].x - top);
                    sum += f * team.ml[w][r].y;
                    y += f * team.sums[w][r][d];
                }
                part_o[((long long)work.w * GROUP + r) * HEAD_DIM + part * SUM_DIM + d] = y;
                if (part == 0 && d == 0) part_ml[(long long)work.w * GROUP + r] = make_float2(top, sum);
            }
        }
    }
#if ROPE
    if (!waited) wait_previous();
#endif
}
