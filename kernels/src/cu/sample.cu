// One row of logits to one token, and the seat's state forward by one step.
//
// The order of operations is that of the reference sampler (backend::sampler): bias, penalties, minimum length, mask,
// temperature, top-k, top-p, min-p, then argmax(logit / T + Gumbel(seed, position, token)). Grid: (parts, emitted rows).
// Each block takes a part of the vocabulary; the row's last block to finish merges them, and filters if the row wants it.
// The best of a part does not depend on the others, so the number of parts changes no draw.
#include "prelude.cuh"

#define THREADS 1024
#define GUMBEL_MAX 17.4f

__device__ __forceinline__ u32 philox_word(u32 token, u32 position, u64 seed) {
    u32 c0 = token / 4, c1 = position, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    u32 lane = token % 4;
    return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}

__device__ __forceinline__ float gumbel(u32 token, u32 position, u64 seed) {
    double u = ((double)(philox_word(token, position, seed) >> 8) + 0.5) * (1.0 / 16777216.0);
    return (float)(-log(-log(u)));
}

// Order-preserving map of floats to unsigned.
__device__ __forceinline__ u32 ordered(float x) {
    u32 b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

struct Best {
    float value;
    int token;
};
__device__ __forceinline__ Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && (u32)b.token < (u32)a.token) ? b : a;
}
// Logits that another block wrote, or that share a cache line with such: past L1.
__device__ __forceinline__ float load_logit(const float *x) {
    float y;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(y) : "l"(x) : "memory");
    return y;
}

__device__ __forceinline__ float4 load_logits4(const float *x) {
    float4 y;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w) : "l"(x) : "memory");
    return y;
}

__device__ Best block_best(Best x, Best *shared) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x = better(x, Best{__shfl_xor_sync(FULL, x.value, o), __shfl_xor_sync(FULL, x.token, o)});
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = shared[threadIdx.x % WARP];
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x = better(x, Best{__shfl_xor_sync(FULL, x.value, o), __shfl_xor_sync(FULL, x.token, o)});
    return x;
}
__device__ u64 block_sum(u64 x, u64 *shared) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = shared[threadIdx.x % WARP];
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    return x;
}

// Whole-number weights, so that the order in which threads add them does not matter: 1 a token, or its probability in
// 2^-27ths of the likeliest one's. Sums of 14 low and of the high bits each fit 32 bits, which shared memory can add.
#define LOW_BITS 14
#define COPIES 8
struct Histogram {
    u32 low[COPIES][256], high[COPIES][256];
    u64 above;
    u32 bin;
};
__device__ __forceinline__ u32 weight(float y, float max, bool by_mass) {
    return by_mass ? __float2uint_rn(__expf(y - max) * 134217728.f) : 1;
}

// The bin, from the top, in which the weights summed reach `wanted`, and what lies above it.
__device__ void find_bin(Histogram &h, u64 above, u64 wanted) {
    __syncthreads();
    if (threadIdx.x < 256)
        for (int c = 1; c < COPIES; c++) {
            h.low[0][threadIdx.x] += h.low[c][threadIdx.x];
            h.high[0][threadIdx.x] += h.high[c][threadIdx.x];
        }
    __syncthreads();
    if (threadIdx.x < WARP) {
        int lane = threadIdx.x;
        u64 w[8], own = 0, until;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int bin = 255 - 8 * lane - j;
            w[j] = ((u64)h.high[0][bin] << LOW_BITS) + h.low[0][bin];
            own += w[j];
        }
        until = own;
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            u64 other = __shfl_up_sync(FULL, until, o);
            if (lane >= o) until += other;
        }
        u32 reached = __ballot_sync(FULL, above + until >= wanted);
        if (lane == (reached ? __ffs(reached) - 1 : WARP - 1)) {
            u64 sum = above + until - own;
            int j = 0;
            for (; j < 7 && sum + w[j] < wanted; j++) sum += w[j];
            h.bin = 255 - 8 * lane - j;
            h.above = sum;
        }
    }
    __syncthreads();
}

// The largest threshold such that the elements at or above it have weight >= wanted: four passes of 8 bits from the top
// over ordered floats. Elements below `floor` do not count.
__device__ u32 threshold(const float *x, int n, float max, bool by_mass, u64 wanted, u32 floor, Histogram &h) {
    u32 prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < COPIES * 256; i += THREADS) h.low[0][i] = h.high[0][i] = 0;
        __syncthreads();
        int copy = threadIdx.x / WARP % COPIES;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            float y = load_logit(x + i);
            u32 key = ordered(y);
            if (key < floor || y == NEG_INF) continue;
            if (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
            u32 w = weight(y, max, by_mass);
            if (w & ((1 << LOW_BITS) - 1)) atomicAdd(&h.low[copy][key >> shift & 255], w & ((1 << LOW_BITS) - 1));
            if (w >> LOW_BITS) atomicAdd(&h.high[copy][key >> shift & 255], w >> LOW_BITS);
        }
        find_bin(h, above, wanted);
        prefix |= h.bin << shift;
        above = h.above;
    }
    return prefix;
}

// A bound that at least `k` elements reach: the k-th of the threads' own maxima. 0 where k is beyond the threads.
__device__ u32 bound_of(const float *x, int n, int k, Histogram &h) {
    if (k > THREADS) return 0;
    u32 best = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) best = max(best, ordered(load_logit(x + i)));
    u32 prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < COPIES * 256; i += THREADS) h.low[0][i] = h.high[0][i] = 0;
        __syncthreads();
        if (shift == 24 || best >> (shift + 8) == prefix >> (shift + 8))
            atomicAdd(&h.low[threadIdx.x / WARP % COPIES][best >> shift & 255], 1);
        find_bin(h, above, k);
        prefix |= h.bin << shift;
        above = h.above;
    }
    return prefix;
}

// What a part hands to the merge.
struct Part {
    Best top;    // likeliest, after the temperature
    Best drawn;  // likeliest with noise; meaningless for rows with filters
};

// The noisy best of the tokens in [first, last), among those that `floor` leaves.
__device__ Best draw(const float *x, int first, int last, float scale, u32 floor, Best top, int drawn, u64 seed, Best *shared) {
    // Noise is bounded: only candidates within reach of the likeliest one's own draw can win.
    float reach = top.value + gumbel(top.token, drawn, seed) - GUMBEL_MAX;
    Best best = {NEG_INF, 0x7fffffff};
    for (int i = first + threadIdx.x; i < last; i += THREADS) {
        float y = load_logit(x + i) * scale;
        if (y < reach || y == NEG_INF || ordered(y) < floor) continue;
        best = better(best, Best{y + gumbel(i, drawn, seed), i});
    }
    return block_best(best, shared);
}

// Bias, penalties, minimum length and mask of the tokens in [first, last).
__device__ void adjust(float *x, int first, int last, const SeatState *seat, const u32 *count, const u32 *mask) {
    for (int i = threadIdx.x; i < seat->biases; i += THREADS)
        if (seat->bias_token[i] >= first && seat->bias_token[i] < last) atomicAdd(&x[seat->bias_token[i]], seat->bias[i]);
    __syncthreads();
    if (seat->counted)
        for (int i = first + threadIdx.x; i < last; i += THREADS) {
            u32 c = count[i];
            if (c == 0) continue;
            float y = load_logit(x + i);
            y = y > 0.f ? y / seat->repetition : y * seat->repetition;
            u32 generated = c & 0x7fffffffu;
            if (generated) y -= seat->presence + seat->frequency * (float)generated;
            x[i] = y;
        }
    __syncthreads();
    if (seat->generated < seat->min_tokens && threadIdx.x < seat->stops) {
        int stop = seat->stop[threadIdx.x];
        if (stop >= first && stop < last) x[stop] = NEG_INF;
    }
    __syncthreads();
    if (mask)
        for (int i = first + threadIdx.x; i < last; i += THREADS)
            if (!(mask[i / 32] >> (i % 32) & 1)) x[i] = NEG_INF;
    __syncthreads();
}

// The least ordered logit that the row's filters leave; scales the row in place.
__device__ u32 filter(float *x, int vocab, float scale, const SeatState *seat, float top, Histogram &h, u64 *sums) {
    u32 floor = 0;
    for (int i = threadIdx.x; i < vocab; i += THREADS) x[i] = load_logit(x + i) * scale;
    __syncthreads();
    if (seat->top_k > 0 && seat->top_k < vocab)
        floor = threshold(x, vocab, top, false, seat->top_k, bound_of(x, vocab, seat->top_k, h), h);
    if (seat->top_p < 1.f) {
        u64 mass = 0;
        for (int i = threadIdx.x; i < vocab; i += THREADS) {
            float y = load_logit(x + i);
            if (ordered(y) >= floor) mass += weight(y, top, true);
        }
        mass = block_sum(mass, sums);
        u64 wanted = (u64)ceil((double)seat->top_p * (double)mass);
        floor = max(floor, threshold(x, vocab, top, true, wanted, floor, h));
    }
    if (seat->min_p > 0.f) floor = max(floor, ordered(top + logf(seat->min_p)));
    return floor;
}

// `parts` [rows][gridDim.x]; `arrived` [rows], zero before and after.
extern "C" __global__ void __launch_bounds__(THREADS) sample(float *logits, SeatState *seats, const RunInfo *runs, const int *emit_run,
                                                            u32 *counts, const u32 *masks, const int *mask_of, int mask_words,
                                                            int vocab, int used, Part *parts, u32 *arrived, int *out_token, int *out_end,
                                                            int *out_done) {
    __shared__ Best best_shared[32];
    __shared__ u64 sums[32];
    __shared__ Histogram histogram;
    __shared__ bool is_last;
    wait_previous();
    start_next();
    int emitted = blockIdx.y, mask = mask_of[emitted];
    RunInfo run = runs[emit_run[emitted]];
    SeatState *seat = &seats[run.seat];
    float *x = logits + (long long)emitted * vocab;
    int drawn = seat->position + run.rows;  // position of the token that is drawn
    int length = ((vocab + gridDim.x - 1) / gridDim.x + 3) / 4 * 4, first = min(vocab, (int)blockIdx.x * length), last = min(vocab, first + length);
    // Ids behind those that the tokenizer knows.
    for (int i = max(first, used) + threadIdx.x; i < last; i += THREADS) x[i] = NEG_INF;
    adjust(x, first, last, seat, counts + (long long)run.seat * vocab, mask >= 0 ? masks + (long long)mask * mask_words : 0);

    float scale = seat->temperature > 0.f ? 1.f / seat->temperature : 1.f;
    bool filtered = (seat->top_k > 0 && seat->top_k < vocab) || seat->top_p < 1.f || seat->min_p > 0.f;
    Part part = {{NEG_INF, 0x7fffffff}, {NEG_INF, 0x7fffffff}};
    auto see = [&](float y, int i) { part.top = better(part.top, Best{y * scale, i}); };
    if (vocab % 4 == 0) {
        for (int i = first + 4 * threadIdx.x; i < last; i += 8 * THREADS) {
            int next = i + 4 * THREADS;
            float4 y = load_logits4(x + i), z = next < last ? load_logits4(x + next) : make_float4(NEG_INF, NEG_INF, NEG_INF, NEG_INF);
            see(y.x, i), see(y.y, i + 1), see(y.z, i + 2), see(y.w, i + 3);
            see(z.x, next), see(z.y, next + 1), see(z.z, next + 2), see(z.w, next + 3);
        }
    } else {
        for (int i = first + threadIdx.x; i < last; i += THREADS) see(load_logit(x + i), i);
    }
    part.top = block_best(part.top, best_shared);
    if (seat->temperature > 0.f && !filtered)
        part.drawn = draw(x, first, last, scale, 0, part.top, drawn, seat->seed, best_shared);
    if (threadIdx.x == 0) {
        parts[emitted * gridDim.x + blockIdx.x] = part;
        __threadfence();
        is_last = atomicAdd(&arrived[emitted], 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    part = {{NEG_INF, 0x7fffffff}, {NEG_INF, 0x7fffffff}};
    if (threadIdx.x < gridDim.x) {
        const volatile Part *from = &parts[emitted * gridDim.x + threadIdx.x];
        part = {{from->top.value, from->top.token}, {from->drawn.value, from->drawn.token}};
    }
    Best top = block_best(part.top, best_shared);
    int token = top.token;
    if (seat->temperature > 0.f && !filtered) token = block_best(part.drawn, best_shared).token;
    if (seat->temperature > 0.f && filtered) {
        u32 floor = filter(x, vocab, scale, seat, top.value, histogram, sums);
        token = draw(x, 0, vocab, 1.f, floor, top, drawn, seat->seed, best_shared).token;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bool was_done = seat->done;
        bool stop = top.value == NEG_INF;
        for (int i = 0; i < seat->stops; i++) stop |= seat->stop[i] == token;
        out_token[emitted] = was_done ? -1 : top.value == NEG_INF ? -2 : token;
        out_done[emitted] = was_done || stop;
        if (!was_done) {
            seat->position = drawn;
            seat->last = token;
            seat->generated++;
            seat->done = stop;
            if (seat->counted && token < vocab) counts[(long long)run.seat * vocab + token]++;
        }
        out_end[emitted] = seat->position;
        arrived[emitted] = 0;
    }
}
