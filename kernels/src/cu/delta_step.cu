// The gated delta rule (arXiv 2412.06464) for runs of one row: convolution, recurrence and gated norm of a value head.
//
//   c = silu(taps u)            over this token's u and the three before it, which the seat's ring keeps
//   q = c_q / |c_q| / sqrt(KEY_DIM), k = c_k / |c_k|
//   S = e^g S;  d = beta (v - S k);  S = S + d k^T;  o = S q
//   attended[row, head] = rms(o; norm) gate(z)
//
// mix [rows, mix_width]: u = q|k|v (CHANNELS), then z. gates [rows, gates_width]: beta, then alpha. states [seats + 1, VALUE_HEADS, VALUE_DIM, KEY_DIM] f32, of one
// layer. rings [seats + 1, 4, CHANNELS]: the token at position p in place p % 4. taps [CHANNELS, 4], decay and bias
// [VALUE_HEADS], norm [VALUE_DIM] in f32. At position 0 state and ring count as zero, whatever they hold.
// Blocks of 256 threads take (run, value head) in turn; while one is computed the next one's state comes into shared
// memory, each thread's part to a place of its own. Runs of several rows are none of its business.
#include "prelude.cuh"

#define LANE_KEYS (KEY_DIM / WARP)
#define WARP_VALUES (VALUE_DIM / 8)
#define THREADS 256

// Sums 32 numbers over the lanes; lane l gets the sum of number l.
__device__ __forceinline__ float transposed_sums(float (&x)[32]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
#pragma unroll
        for (int i = 0; i < o; i++) {
            float keep = lane & o ? x[i + o] : x[i], send = lane & o ? x[i] : x[i + o];
            x[i] = keep + __shfl_xor_sync(FULL, send, o);
        }
    return x[0];
}

// A lane's keys of one value: 16 or 8 bytes.
__device__ __forceinline__ void fetch_keys(float *to, const float *from) {
#if LANE_KEYS == 4
    copy_async16(shared_address(to), from);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_step(u16 *attended, const u16 *mix, int mix_width, const u16 *gates, int gates_width, float *states, u16 *rings,
               const float *taps, const float *decay, const float *bias, const float *norm, const StepInfo *step,
               const RunInfo *runs, float eps) {
    extern __shared__ __align__(16) float coming[];  // [WARP_VALUES][THREADS][LANE_KEYS]
    __shared__ float qkv[2 * KEY_DIM + VALUE_DIM], o[VALUE_DIM], partial[8];
    const float *q = qkv, *k = qkv + KEY_DIM, *v = qkv + 2 * KEY_DIM;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // The runs were complete long before the previous kernel, and so was the last writer of this layer's state.
    int items = step->runs * VALUE_HEADS;
    auto state_of = [&](const RunInfo &run, int head) {
        return states + (((long long)run.seat * VALUE_HEADS + head) * VALUE_DIM + warp * WARP_VALUES) * KEY_DIM + lane * LANE_KEYS;
    };
    auto next_of = [&](int item) {
        while (item < items && !recurs(runs[item / VALUE_HEADS])) item += gridDim.x;
        return item;
    };
    auto fetch = [&](int item) {
        if (item < items) {
            const float *from = state_of(runs[item / VALUE_HEADS], item % VALUE_HEADS);
#pragma unroll
            for (int i = 0; i < WARP_VALUES; i++) fetch_keys(coming + (i * THREADS + threadIdx.x) * LANE_KEYS, from + i * KEY_DIM);
        }
        copy_async_commit();
    };
    int item = next_of(blockIdx.x);
    fetch(item);
    start_next();
    wait_previous();
    while (item < items) {
        RunInfo run = runs[item / VALUE_HEADS];
        int head = item % VALUE_HEADS, key_head = KEY_HEAD(head), position = run.end - 1;
        float *state = state_of(run, head);
        float s[WARP_VALUES][LANE_KEYS];
        copy_async_wait<0>();
#pragma unroll
        for (int i = 0; i < WARP_VALUES; i++)
#pragma unroll
            for (int j = 0; j < LANE_KEYS; j++)
                s[i][j] = position > 0 ? coming[(i * THREADS + threadIdx.x) * LANE_KEYS + j] : 0.f;
        item = next_of(item + gridDim.x);
        fetch(item);
        const u16 *row = mix + (long long)run.row0 * mix_width, *gate = gates + (long long)run.row0 * gates_width;
        u16 *ring = rings + (long long)run.seat * 4 * CHANNELS;
        for (int i = threadIdx.x; i < 2 * KEY_DIM + VALUE_DIM; i += THREADS) {
            int channel = i < KEY_DIM       ? key_head * KEY_DIM + i
                          : i < 2 * KEY_DIM ? KEY_HEADS * KEY_DIM + key_head * KEY_DIM + i - KEY_DIM
                                            : 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + i - 2 * KEY_DIM;
            u16 now = row[channel];
            float c = taps[channel * 4 + 3] * half_to_f32(now);
#pragma unroll
            for (int back = 1; back < 4; back++)
                if (position >= back) c += taps[channel * 4 + 3 - back] * half_to_f32(ring[((position - back) & 3) * CHANNELS + channel]);
            qkv[i] = c / (1.f + __expf(-c));
            // Value heads that share a key head write the same.
            ring[(position & 3) * CHANNELS + channel] = now;
        }
        __syncthreads();
        // Every warp needs all of q and k: each sums them itself.
        float qs[LANE_KEYS], ks[LANE_KEYS], qq = 0.f, kk = 0.f, qk = 0.f;
#pragma unroll
        for (int j = 0; j < LANE_KEYS; j++) {
            qs[j] = q[lane * LANE_KEYS + j];
            ks[j] = k[lane * LANE_KEYS + j];
            qq += qs[j] * qs[j];
            kk += ks[j] * ks[j];
        }
        float q_scale = rsqrtf(warp_sum(qq) + 1e-6f) * rsqrtf((float)KEY_DIM), k_scale = rsqrtf(warp_sum(kk) + 1e-6f);
#pragma unroll
        for (int j = 0; j < LANE_KEYS; j++) {
            qs[j] *= q_scale;
            ks[j] *= k_scale;
            qk += qs[j] * ks[j];
        }
        qk = warp_sum(qk);
        float beta = 1.f / (1.f + expf(-half_to_f32(gate[head])));
        float kept = expf(decay[head] * softplus(half_to_f32(gate[VALUE_HEADS + head]) + bias[head]));
#pragma unroll
        for (int half = 0; half < WARP_VALUES; half += 16) {
            // Numbers 0 to 15: S k; 16 to 31: S q.
            float sums[32];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                sums[i] = sums[16 + i] = 0.f;
                if (half + i < WARP_VALUES)
#pragma unroll
                    for (int j = 0; j < LANE_KEYS; j++) {
                        sums[i] += s[half + i][j] * ks[j];
                        sums[16 + i] += s[half + i][j] * qs[j];
                    }
            }
            float sum = transposed_sums(sums), of_q = __shfl_sync(FULL, sum, 16 + lane % 16);
            int at = warp * WARP_VALUES + half + lane % 16;
            bool live = lane < 16 && half + lane < WARP_VALUES;
            float d = live ? beta * (v[at] - kept * sum) : 0.f;
            if (live) o[at] = kept * of_q + d * qk;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float of_i = __shfl_sync(FULL, d, i);
                if (half + i < WARP_VALUES)
#pragma unroll
                    for (int j = 0; j < LANE_KEYS; j += 2)
                        *(float2 *)(state + (half + i) * KEY_DIM + j) =
                            make_float2(kept * s[half + i][j] + of_i * ks[j], kept * s[half + i][j + 1] + of_i * ks[j + 1]);
            }
        }
        __syncthreads();
        float y = threadIdx.x < VALUE_DIM ? o[threadIdx.x] : 0.f;
        float scale = rsqrtf(block_sum256(y * y, partial) / VALUE_DIM + eps);
        if (threadIdx.x < VALUE_DIM) {
            float z = half_to_f32(row[CHANNELS + head * VALUE_DIM + threadIdx.x]);
            attended[(long long)run.row0 * VALUE_HEADS * VALUE_DIM + head * VALUE_DIM + threadIdx.x] =
                f32_to_half(y * scale * norm[threadIdx.x] * delta_gate(z));
        }
        __syncthreads();  // qkv and o are free for the next one
    }
}
