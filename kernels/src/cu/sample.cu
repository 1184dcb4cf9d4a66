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
__device__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_sum(shared[threadIdx.x % WARP]);
}

// The largest threshold such that the elements at or above it have weight >= wanted, and at least `wanted` of it:
// four passes of 8 bits from the top over ordered floats. `by_mass`: weight is exp(x - max), else 1 per element.
__device__ u32 threshold(const float *x, int n, float max, bool by_mass, float wanted, u32 floor, float *histogram) {
    u32 prefix = 0;
    float above = 0.f;
    __shared__ u32 chosen;
    __shared__ float chosen_above;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0.f;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            float y = load_logit(x + i);
            u32 key = ordered(y);
            if (key < floor || y == NEG_INF) continue;
            if (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
            atomicAdd(&histogram[key >> shift & 255], by_mass ? __expf(y - max) : 1.f);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            float sum = above;
            int bin = 255;
            for (; bin > 0; bin--) {
                if (sum + histogram[bin] >= wanted) break;
                sum += histogram[bin];
            }
            chosen = bin;
            chosen_above = sum;
        }
        __syncthreads();
        prefix |= chosen << shift;
        above = chosen_above;
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
__device__ u32 filter(float *x, int vocab, float scale, const SeatState *seat, float top, float *histogram, float *sum_shared) {
    u32 floor = 0;
    for (int i = threadIdx.x; i < vocab; i += THREADS) x[i] = load_logit(x + i) * scale;
    __syncthreads();
    if (seat->top_k > 0 && seat->top_k < vocab) floor = threshold(x, vocab, top, false, (float)seat->top_k, 0, histogram);
    if (seat->top_p < 1.f) {
        float mass = 0.f;
        for (int i = threadIdx.x; i < vocab; i += THREADS) {
            float y = load_logit(x + i);
            if (ordered(y) >= floor) mass += __expf(y - top);
        }
        mass = block_sum(mass, sum_shared);
        floor = max(floor, threshold(x, vocab, top, true, seat->top_p * mass, floor, histogram));
    }
    if (seat->min_p > 0.f) floor = max(floor, ordered(top + logf(seat->min_p)));
    return floor;
}

// `parts` [rows][gridDim.x]; `arrived` [rows], zero before and after.
extern "C" __global__ void __launch_bounds__(THREADS) sample(float *logits, SeatState *seats, const RunInfo *runs, const int *emit_run,
                                                            u32 *counts, const u32 *masks, const int *mask_of, int mask_words,
                                                            int vocab, Part *parts, u32 *arrived, int *out_token, int *out_end,
                                                            int *out_done) {
    __shared__ Best best_shared[32];
    __shared__ float sum_shared[32];
    __shared__ float histogram[256];
    __shared__ bool is_last;
    wait_previous();
    start_next();
    int emitted = blockIdx.y, mask = mask_of[emitted];
    RunInfo run = runs[emit_run[emitted]];
    SeatState *seat = &seats[run.seat];
    float *x = logits + (long long)emitted * vocab;
    int drawn = seat->position + run.rows;  // position of the token that is drawn
    int length = (vocab + gridDim.x - 1) / gridDim.x, first = min(vocab, (int)blockIdx.x * length), last = min(vocab, first + length);
    adjust(x, first, last, seat, counts + (long long)run.seat * vocab, mask >= 0 ? masks + (long long)mask * mask_words : 0);

    float scale = seat->temperature > 0.f ? 1.f / seat->temperature : 1.f;
    bool filtered = (seat->top_k > 0 && seat->top_k < vocab) || seat->top_p < 1.f || seat->min_p > 0.f;
    Part part = {{NEG_INF, 0x7fffffff}, {NEG_INF, 0x7fffffff}};
    // Four independent loads at a time.
    for (int i = first + threadIdx.x; i < last; i += 4 * THREADS) {
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = i + j * THREADS < last ? load_logit(x + i + j * THREADS) : NEG_INF;
#pragma unroll
        for (int j = 0; j < 4; j++) part.top = better(part.top, Best{y[j] * scale, i + j * THREADS});
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
        u32 floor = filter(x, vocab, scale, seat, top.value, histogram, sum_shared);
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
