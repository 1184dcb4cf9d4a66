// Causal attention of prefill chunks on Hopper: the same tiles as attend_prefill.cu, with warpgroup products.
//
// Two warpgroups of 64 rows each share the pages of K and V, four stages deep. Within a warpgroup the scores of page i+1
// are computed while the values of page i are accumulated and the softmax of page i+1 runs (FlashAttention-3,
// arXiv 2407.08608). Pages lie in shared memory with the 128-byte swizzle that the products expect: a row's 16-byte
// chunk c is at c ^ (row % 8).
#include "prelude.cuh"

#define GROUP (HEADS / KV_HEADS)
#define THREADS 256
#define STAGES 4
#define STAGE_BYTES (2 * PAGE * HEAD_DIM * 2)

__device__ __forceinline__ void product_n64(float (&d)[32], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void product_n128(float (&d)[64], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void product_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// A K-major operand with rows of 128 bytes: groups of 8 rows are 1,024 bytes apart.
__device__ __forceinline__ u64 operand(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_prefill_sm90(u16 *attended, const u16 *qkv, const u16 *kv, const StepInfo *step, const RunInfo *runs,
                        const int4 *tiles, const int *page_table, int table_width, float scale_log2) {
    extern __shared__ __align__(1024) u8 shared[];  // [STAGES][K: 2 halves of [64 keys, 64 d] | V: [128 d, 64 keys]]
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    u32 base = shared_address(shared);
    wait_previous();
    start_next();
    for (int index = blockIdx.x; index < step->tiles; index += gridDim.x) {
        int4 work = tiles[index];
        RunInfo run = runs[work.x];
        int start = run.end - run.rows, token0 = work.z * QTOKENS;
        const int *pages = page_table + (long long)run.seat * table_width;
        int r0 = warp * 16 + g, r1 = r0 + 8;
        int tok0 = token0 + r0 / GROUP, tok1 = token0 + r1 / GROUP;
        // Rows beyond the tile's tokens (groups that do not divide 128) belong to the next tile.
        bool live0 = r0 / GROUP < QTOKENS && tok0 < run.rows, live1 = r1 / GROUP < QTOKENS && tok1 < run.rows;
        int limit0 = start + tok0, limit1 = start + tok1;  // last key each row may see
        int key_pages = (start + min(token0 + QTOKENS, run.rows) - 1) / PAGE + 1;
        const long long stride = (long long)(HEADS + 2 * KV_HEADS) * HEAD_DIM;
        const u16 *from = qkv + run.row0 * stride + work.y * GROUP * HEAD_DIM;
        const u16 *q0 = from + tok0 * stride + (r0 % GROUP) * HEAD_DIM + 2 * t;
        const u16 *q1 = from + tok1 * stride + (r1 % GROUP) * HEAD_DIM + 2 * t;
        u32 q[HEAD_DIM / 16][4];
#pragma unroll
        for (int s = 0; s < HEAD_DIM / 16; s++) {
            q[s][0] = live0 ? *(const u32 *)(q0 + 16 * s) : 0;
            q[s][1] = live1 ? *(const u32 *)(q1 + 16 * s) : 0;
            q[s][2] = live0 ? *(const u32 *)(q0 + 16 * s + 8) : 0;
            q[s][3] = live1 ? *(const u32 *)(q1 + 16 * s + 8) : 0;
        }
        auto fetch = [&](int page) {
            if (page < key_pages) {
                const u8 *tile = (const u8 *)(kv + ((long long)pages[page] * KV_HEADS + work.y) * 2 * PAGE * HEAD_DIM);
                u32 to = base + page % STAGES * STAGE_BYTES;
#pragma unroll
                for (int i = 0; i < STAGE_BYTES / 2 / 16 / THREADS; i++) {
                    int c = i * THREADS + threadIdx.x;
                    int key = c / 16, half = c % 16 / 8, chunk = c % 8, d = c / 8;
                    copy_async16(to + half * 8192 + key * 128 + ((chunk ^ (key & 7)) << 4), tile + c * 16);
                    copy_async16(to + 16384 + d * 128 + ((chunk ^ (d & 7)) << 4), tile + 16384 + c * 16);
                }
            }
            copy_async_commit();
        };
        float o[HEAD_DIM / 2], score[PAGE / 2];
        u32 p[PAGE / 16][4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;
        float max0 = NEG_INF, max1 = NEG_INF, sum0 = 0.f, sum1 = 0.f, f0 = 0.f, f1 = 0.f;
        // Queues score = Q K^T of a page.
        auto scores = [&](int page) {
            u32 keys = base + page % STAGES * STAGE_BYTES;
#pragma unroll
            for (int s = 0; s < HEAD_DIM / 16; s++) product_n64(score, q[s], operand(keys + s / 4 * 8192 + s % 4 * 32), s > 0);
            product_commit();
        };
        // Scores to probabilities in place; f0 and f1 are what the sums so far shrink by.
        auto softmax = [&](int page) {
            bool edge = page * PAGE + PAGE > start + token0;  // some row of the tile does not see the whole page
            float new0 = max0, new1 = max1;
#pragma unroll
            for (int i = 0; i < PAGE / 2; i++) {
                float x = score[i] * scale_log2;
                if (edge && page * PAGE + i / 4 * 8 + 2 * t + i % 2 > (i % 4 < 2 ? limit0 : limit1)) x = NEG_INF;
                score[i] = x;
                if (i % 4 < 2) new0 = fmaxf(new0, x);
                else new1 = fmaxf(new1, x);
            }
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 1));
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 2));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 1));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 2));
            // Key 0 is seen by every row, so the maximum is finite from the first page on.
            f0 = exp2f(max0 - new0);
            f1 = exp2f(max1 - new1);
            max0 = new0;
            max1 = new1;
            sum0 *= f0;
            sum1 *= f1;
#pragma unroll
            for (int i = 0; i < PAGE / 2; i++) {
                score[i] = exp2f(score[i] - (i % 4 < 2 ? max0 : max1));
                if (i % 4 < 2) sum0 += score[i];
                else sum1 += score[i];
            }
        };
        auto pack = [&]() {
#pragma unroll
            for (int u = 0; u < PAGE / 16; u++)
#pragma unroll
                for (int c = 0; c < 4; c++) p[u][c] = bf16_pack(score[8 * u + 2 * c], score[8 * u + 2 * c + 1]);
        };
        // What this thread copied becomes visible to the products of all.
        auto arrived = [&]() {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
        };
        fetch(0);
        fetch(1);
        fetch(2);
        copy_async_wait<2>();
        arrived();
        product_fence();
        scores(0);
        product_wait<0>();
        softmax(0);
        pack();
        // Queues o += P V of a page.
        auto accumulate = [&](int page) {
            u32 values = base + page % STAGES * STAGE_BYTES + 16384;
#pragma unroll
            for (int u = 0; u < PAGE / 16; u++) product_n128(o, p[u], operand(values + u * 32), 1);
            product_commit();
        };
        for (int page = 0; page + 1 < key_pages; page++) {
            // Behind this barrier both warpgroups are done with page - 1, whose stage page + 3 goes into.
            copy_async_wait<1>();
            arrived();
            fetch(page + 3);
            product_fence();
            scores(page + 1);
            accumulate(page);
            product_wait<1>();
            softmax(page + 1);
            product_wait<0>();
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= i % 4 < 2 ? f0 : f1;
            pack();
        }
        product_fence();
        accumulate(key_pages - 1);
        product_wait<0>();
        sum0 += __shfl_xor_sync(FULL, sum0, 1);
        sum0 += __shfl_xor_sync(FULL, sum0, 2);
        sum1 += __shfl_xor_sync(FULL, sum1, 1);
        sum1 += __shfl_xor_sync(FULL, sum1, 2);
        float i0 = 1.f / sum0, i1 = 1.f / sum1;
        u16 *out = attended + ((long long)run.row0 * HEADS + work.y * GROUP) * HEAD_DIM + 2 * t;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            if (live0)
                *(u32 *)(out + (long long)tok0 * HEADS * HEAD_DIM + (r0 % GROUP) * HEAD_DIM + 8 * i) = bf16_pack(o[4 * i] * i0, o[4 * i + 1] * i0);
            if (live1)
                *(u32 *)(out + (long long)tok1 * HEADS * HEAD_DIM + (r1 % GROUP) * HEAD_DIM + 8 * i) = bf16_pack(o[4 * i + 2] * i1, o[4 * i + 3] * i1);
        }
        copy_async_wait<0>();
        __syncthreads();  // the stages are free for the next tile
    }
}
