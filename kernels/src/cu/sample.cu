// One row of logits to one token, and the seat's state forward by one step.
//
// The order of operations is that of the reference sampler (backend::sampler): bias, penalties, minimum length, mask,
// temperature, top-k, top-p, min-p, then argmax(logit / T + Gumbel(seed, position, token)). One block an emitted row.
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
            u32 key = ordered(x[i]);
            if (key < floor || x[i] == NEG_INF) continue;
            if (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
            atomicAdd(&histogram[key >> shift & 255], by_mass ? __expf(x[i] - max) : 1.f);
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

extern "C" __global__ void __launch_bounds__(THREADS) sample(float *logits, SeatState *seats, const RunInfo *runs, const int *emit_run,
                                                            u32 *counts, const u32 *masks, const int *mask_of, int mask_words,
                                                            int vocab, int *out_token, int *out_end, int *out_done) {
    __shared__ Best best_shared[32];
    __shared__ float sum_shared[32];
    __shared__ float histogram[256];
    wait_previous();
    start_next();
    RunInfo run = runs[emit_run[blockIdx.x]];
    SeatState *seat = &seats[run.seat];
    float *x = logits + (long long)blockIdx.x * vocab;
    int drawn = seat->position + run.rows;  // position of the token that is drawn
    // Bias, penalties, minimum length, mask.
    for (int i = threadIdx.x; i < seat->biases; i += THREADS)
        if (seat->bias_token[i] < vocab) atomicAdd(&x[seat->bias_token[i]], seat->bias[i]);
    __syncthreads();
    if (seat->counted) {
        const u32 *count = counts + (long long)run.seat * vocab;
        for (int i = threadIdx.x; i < vocab; i += THREADS) {
            u32 c = count[i];
            if (c == 0) continue;
            float y = x[i] > 0.f ? x[i] / seat->repetition : x[i] * seat->repetition;
            u32 generated = c & 0x7fffffffu;
            if (generated) y -= seat->presence + seat->frequency * (float)generated;
            x[i] = y;
        }
    }
    __syncthreads();
    if (seat->generated < seat->min_tokens && threadIdx.x < seat->stops && seat->stop[threadIdx.x] < vocab)
        x[seat->stop[threadIdx.x]] = NEG_INF;
    int mask = mask_of[blockIdx.x];
    __syncthreads();
    if (mask >= 0)
        for (int i = threadIdx.x; i < vocab; i += THREADS)
            if (!(masks[(long long)mask * mask_words + i / 32] >> (i % 32) & 1)) x[i] = NEG_INF;
    __syncthreads();

    float scale = seat->temperature > 0.f ? 1.f / seat->temperature : 1.f;
    Best top = {NEG_INF, 0x7fffffff};
    // Four independent loads at a time; a thread sees its tokens in rising order, so ties go to the lowest.
    for (int i = threadIdx.x; i < vocab; i += 4 * THREADS) {
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = i + j * THREADS < vocab ? x[i + j * THREADS] : NEG_INF;
#pragma unroll
        for (int j = 0; j < 4; j++) top = better(top, Best{y[j] * scale, i + j * THREADS});
    }
    top = block_best(top, best_shared);
    int token = top.token;
    if (seat->temperature > 0.f) {
        u32 floor = 0;
        bool filtered = (seat->top_k > 0 && seat->top_k < vocab) || seat->top_p < 1.f || seat->min_p > 0.f;
        if (filtered) {
            for (int i = threadIdx.x; i < vocab; i += THREADS) x[i] *= scale;
            __syncthreads();
            if (seat->top_k > 0 && seat->top_k < vocab)
                floor = threshold(x, vocab, top.value, false, (float)seat->top_k, 0, histogram);
            if (seat->top_p < 1.f) {
                float mass = 0.f;
                for (int i = threadIdx.x; i < vocab; i += THREADS)
                    if (ordered(x[i]) >= floor) mass += __expf(x[i] - top.value);
                mass = block_sum(mass, sum_shared);
                floor = max(floor, threshold(x, vocab, top.value, true, seat->top_p * mass, floor, histogram));
            }
            if (seat->min_p > 0.f) floor = max(floor, ordered(top.value + logf(seat->min_p)));
            scale = 1.f;
        }
        // Noise is bounded: only candidates within reach of the likeliest one's own draw can win.
        float reach = top.value + gumbel(top.token, drawn, seat->seed) - GUMBEL_MAX;
        Best drawn_best = {NEG_INF, 0x7fffffff};
        for (int i = threadIdx.x; i < vocab; i += THREADS) {
            float y = x[i] * scale;
            if (y < reach || y == NEG_INF || (filtered && ordered(y) < floor)) continue;
            drawn_best = better(drawn_best, Best{y + gumbel(i, drawn, seat->seed), i});
        }
        token = block_best(drawn_best, best_shared).token;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bool was_done = seat->done;
        bool stop = top.value == NEG_INF;
        for (int i = 0; i < seat->stops; i++) stop |= seat->stop[i] == token;
        out_token[blockIdx.x] = was_done ? -1 : top.value == NEG_INF ? -2 : token;
        out_done[blockIdx.x] = was_done || stop;
        if (!was_done) {
            seat->position = drawn;
            seat->last = token;
            seat->generated++;
            seat->done = stop;
            if (seat->counted && token < vocab) counts[(long long)run.seat * vocab + token]++;
        }
        out_end[blockIdx.x] = seat->position;
    }
}
