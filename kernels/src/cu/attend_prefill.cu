// Causal attention of prefill chunks over the seat's pages (FlashAttention-2, arXiv 2307.08691, on mma.sync).
//
// A tile is 128 rows: QTOKENS query tokens times the group's heads, so K and V are read once for the group. 8 warps of 16
// rows; keys come a page at a time through a double buffer. Keys are permuted as in `attend_decode`, so every shared read
// is 16 bytes a thread; a row's 16-byte chunks are swapped by its parity, which keeps the reads free of bank conflicts.
// Heads of 256 have one buffer, and read their queries anew for every page: registers and shared memory hold no more.
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define STEPS (HEAD_DIM / 32)
#define TILES (HEAD_DIM / 8)
#define THREADS 256
#define TILE_BYTES (PAGE * HEAD_DIM * 2)
#define BUFFERS (HEAD_DIM <= 128 ? 2 : 1)

__device__ __forceinline__ u32 chunk_at(int row, int chunk, int row_chunks) {
    // Rows of an odd number of 64 bytes lie in different banks by themselves.
    return (u32)(row * row_chunks + (row_chunks % 8 ? chunk : chunk ^ ((row & 1) << 2))) * 16;
}
__device__ __forceinline__ U4 load_shared(const u8 *p) { return *(const U4 *)p; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_prefill(u16 *attended, const u16 *qkv, const u16 *kv, const StepInfo *step, const RunInfo *runs, const TileWork *tiles,
                   const int *page_table, int table_width, float scale_log2) {
    extern __shared__ __align__(128) u8 shared[];  // [BUFFERS][K page | V page]
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    wait_previous();
    start_next();
    for (int index = blockIdx.x; index < step->tiles; index += gridDim.x) {
        TileWork work = tiles[index];
        RunInfo run = runs[work.run];
        int start = run.end - run.rows, token0 = work.tile * QTOKENS;
        const int *pages = page_table + (long long)run.seat * table_width;
        int r0 = warp * 16 + g, r1 = r0 + 8;
        int tok0 = token0 + r0 / GROUP, tok1 = token0 + r1 / GROUP;
        // Rows beyond the tile's tokens (groups that do not divide 128) belong to the next tile.
        bool live0 = r0 / GROUP < QTOKENS && tok0 < run.rows, live1 = r1 / GROUP < QTOKENS && tok1 < run.rows;
        int limit0 = start + tok0, limit1 = start + tok1;  // last key each row may see
        int last_token = min(token0 + QTOKENS, run.rows) - 1;
        int key_pages = (start + last_token) / PAGE + 1;
        const u16 *base = qkv + ((long long)run.row0 * HEADS_ALL + work.kv_head * GROUP * Q_STEP) * HEAD_DIM;
        const long long stride = (long long)HEADS_ALL * HEAD_DIM;
        const u16 *from0 = base + tok0 * stride + (r0 % GROUP) * Q_STEP * HEAD_DIM + 8 * t;
        const u16 *from1 = base + tok1 * stride + (r1 % GROUP) * Q_STEP * HEAD_DIM + 8 * t;
        const U4 zero = {0, 0, 0, 0};
        U4 q0[STEPS], q1[STEPS];
        auto load_queries = [&](int s) {
            q0[s] = live0 ? load16(from0 + 32 * s) : zero;
            q1[s] = live1 ? load16(from1 + 32 * s) : zero;
        };
        if (HEAD_DIM <= 128)
#pragma unroll
            for (int s = 0; s < STEPS; s++) load_queries(s);
        auto fetch = [&](int page_index) {
            const u8 *from = (const u8 *)(kv + ((long long)pages[page_index] * KV_HEADS + work.kv_head) * 2 * PAGE * HEAD_DIM);
            u32 to = shared_address(shared) + page_index % BUFFERS * 2 * TILE_BYTES;
#pragma unroll
            for (int i = 0; i < TILE_BYTES / 16 / THREADS; i++) {
                int c = i * THREADS + threadIdx.x;
                copy_async16(to + chunk_at(c / (HEAD_DIM / 8), c % (HEAD_DIM / 8), HEAD_DIM / 8), from + c * 16);
                copy_async16(to + TILE_BYTES + chunk_at(c / (PAGE / 8), c % (PAGE / 8), PAGE / 8), from + TILE_BYTES + c * 16);
            }
            copy_async_commit();
        };
        float o[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[i][c] = 0.f;
        float max0 = NEG_INF, max1 = NEG_INF, sum0 = 0.f, sum1 = 0.f;
        fetch(0);
        for (int page = 0; page < key_pages; page++) {
            copy_async_wait<0>();
            __syncthreads();
            if (BUFFERS == 2 && page + 1 < key_pages) fetch(page + 1);
            const u8 *keys = shared + page % BUFFERS * 2 * TILE_BYTES, *values = keys + TILE_BYTES;
            float score[8][4];
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) score[j][c] = 0.f;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                if (HEAD_DIM > 128) load_queries(s);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    int key = (j / 4) * 32 + 8 * (g / 2) + 2 * (j % 4) + g % 2;
                    U4 k = load_shared(keys + chunk_at(key, 4 * s + t, HEAD_DIM / 8));
                    mma(score[j], q0[s].x, q1[s].x, q0[s].y, q1[s].y, k.x, k.y);
                    mma(score[j], q0[s].z, q1[s].z, q0[s].w, q1[s].w, k.z, k.w);
                }
            }
            bool edge = page * PAGE + PAGE > start + token0;  // some row of the tile does not see the whole page
            float new0 = max0, new1 = max1;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float x = score[j][c] * scale_log2;
                    if (edge) {
                        int key = page * PAGE + (j / 4) * 32 + 8 * t + 2 * (j % 4) + (c & 1);
                        if (key > (c < 2 ? limit0 : limit1)) x = NEG_INF;
                    }
                    score[j][c] = x;
                    if (c < 2) new0 = fmaxf(new0, x);
                    else new1 = fmaxf(new1, x);
                }
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 1));
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 2));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 1));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 2));
            // Key 0 is seen by every row, so the maximum is finite from the first page on.
            float f0 = exp2f(max0 - new0), f1 = exp2f(max1 - new1);
            max0 = new0;
            max1 = new1;
            sum0 *= f0;
            sum1 *= f1;
            u32 p[8][2];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float e0 = exp2f(score[j][0] - max0), e1 = exp2f(score[j][1] - max0);
                float e2 = exp2f(score[j][2] - max1), e3 = exp2f(score[j][3] - max1);
                sum0 += e0 + e1;
                sum1 += e2 + e3;
                p[j][0] = half_pack(e0, e1);
                p[j][1] = half_pack(e2, e3);
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                o[i][0] *= f0;
                o[i][1] *= f0;
                o[i][2] *= f1;
                o[i][3] *= f1;
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    U4 v = load_shared(values + chunk_at(8 * i + g, 4 * u + t, PAGE / 8));
                    mma(o[i], p[4 * u][0], p[4 * u][1], p[4 * u + 1][0], p[4 * u + 1][1], v.x, v.y);
                    mma(o[i], p[4 * u + 2][0], p[4 * u + 2][1], p[4 * u + 3][0], p[4 * u + 3][1], v.z, v.w);
                }
            }
            if (BUFFERS == 1 && page + 1 < key_pages) {
                __syncthreads();  // all warps are done with the page
                fetch(page + 1);
            }
        }
        sum0 += __shfl_xor_sync(FULL, sum0, 1);
        sum0 += __shfl_xor_sync(FULL, sum0, 2);
        sum1 += __shfl_xor_sync(FULL, sum1, 1);
        sum1 += __shfl_xor_sync(FULL, sum1, 2);
        float i0 = 1.f / sum0, i1 = 1.f / sum1;
        u16 *out = attended + ((long long)run.row0 * HEADS + work.kv_head * GROUP) * HEAD_DIM;
        // `from`: the row's query at this lane's place; its gate stands a head further on.
        auto store = [&](int token, int row, const u16 *from, int d, float lo, float hi) {
#if Q_STEP == 2
            u32 gate = *(const u32 *)(from - 8 * t + HEAD_DIM + d);
            lo = gated(lo, half_lo(gate));
            hi = gated(hi, half_hi(gate));
#endif
            *(u32 *)(out + ((long long)token * HEADS + row % GROUP) * HEAD_DIM + d) = half_pack(lo, hi);
        };
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int d = 8 * i + 2 * t;
            if (live0) store(tok0, r0, from0, d, o[i][0] * i0, o[i][1] * i0);
            if (live1) store(tok1, r1, from1, d, o[i][2] * i1, o[i][3] * i1);
        }
        __syncthreads();  // the buffers are free for the next tile
    }
}
