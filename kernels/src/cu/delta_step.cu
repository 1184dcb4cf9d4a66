// The gated delta rule (arXiv 2412.06464) for runs of one row: convolution, recurrence and gated norm of a value head.
//
//   c = silu(taps u)            over this token's u and the three before it, which the seat's ring keeps
//   q = c_q / |c_q| / sqrt(KEY_DIM), k = c_k / |c_k|
//   S = e^g S;  d = beta (v - S k);  S = S + d k^T;  o = S q
//   attended[row, head] = rms(o; norm) gate(z)
//
// mix [rows, mix_width]: u = q|k|v (CHANNELS), then z. gates [rows, gates_width]: beta, then alpha. Of one layer: states
// [numbers, VALUE_HEADS, VALUE_DIM, KEY_DIM], a seat's first, in f32 or bf16 (STATE16); rings [numbers, 4, CHANNELS], the
// token at position p in place p % 4; taps [CHANNELS, 4], decay and bias [VALUE_HEADS], norm [VALUE_DIM] in f32. At
// position 0 state and ring count as zero, whatever they hold.
// Blocks of 256 threads take (run, value head) in turn; while one is computed all that the next one reads comes into shared
// memory: its state, each thread's part to a place of its own, and its inputs. Only a token's own row, z and gates depend on
// the kernel before; the rest is on its way before we wait for it. Runs of several rows are none of its business.
#include "prelude.cuh"

#define LANE_KEYS (KEY_DIM / WARP)
#define WARP_VALUES (VALUE_DIM / 8)
#define THREADS 256
#define AT_ONCE (STATE16 ? 8 : 16)  // values whose sums are in registers; states in 16 bits also wait there as they lie

// Sums 2 O numbers over 2 O lanes, each of which keeps one half and gives the other away. A template, for a loop whose
// bound is another loop's variable stays one, and the numbers then lie in memory.
template <int O> __device__ __forceinline__ void fold(float (&x)[2 * AT_ONCE]) {
    bool high = threadIdx.x & O;
#pragma unroll
    for (int i = 0; i < O; i++) {
        float a = x[i], b = x[i + O];
        x[i] = (high ? b : a) + __shfl_xor_sync(FULL, high ? a : b, O);
    }
    if constexpr (O > 1) fold<O / 2>(x);
}
// Sums 2 AT_ONCE numbers over the lanes; lane l gets the sum of number l modulo them.
__device__ __forceinline__ float transposed_sums(float (&x)[2 * AT_ONCE]) {
    fold<AT_ONCE>(x);
    return AT_ONCE == 16 ? x[0] : x[0] + __shfl_xor_sync(FULL, x[0], 16);
}

// A lane's keys of one value, as they lie in memory.
struct __align__(LANE_KEYS * sizeof(StateValue)) Keys {
    u32 words[LANE_KEYS * sizeof(StateValue) / 4];
    __device__ __forceinline__ float operator[](int j) const {
        if (!STATE16) return __uint_as_float(words[j]);
        return __uint_as_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
    }
};

// kept * s + of * k
__device__ __forceinline__ void store_keys(StateValue *to, const Keys &s, float kept, float of, const float (&k)[LANE_KEYS]) {
    struct __align__(LANE_KEYS * sizeof(StateValue)) {
        StateValue x[LANE_KEYS];
    } keys;
#pragma unroll
    for (int j = 0; j < LANE_KEYS; j++) keys.x[j] = to_state(kept * s[j] + of * k[j]);
    *(decltype(keys) *)to = keys;
}

#define HEAD_CHANNELS (2 * KEY_DIM + VALUE_DIM)

// What one (run, value head) reads beside the state.
struct __align__(16) Inputs {
    float taps[HEAD_CHANNELS][4];
    u16 row[HEAD_CHANNELS], back[3][HEAD_CHANNELS], z[VALUE_DIM];
};
// A head's numbers, on their way in registers.
struct Gates {
    u16 beta, alpha;
    float decay, bias;
};

// Where a head's channel `i` of q, k and v lies among all.
__device__ __forceinline__ int channel_of(int head, int i) {
    int key_head = KEY_HEAD(head);
    return i < KEY_DIM       ? key_head * KEY_DIM + i
           : i < 2 * KEY_DIM ? KEY_HEADS * KEY_DIM + key_head * KEY_DIM + i - KEY_DIM
                             : 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + i - 2 * KEY_DIM;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_step(u16 *attended, const u16 *mix, int mix_width, const u16 *gates, int gates_width, StateValue *states, u16 *rings,
               const float *taps, const float *decay, const float *bias, const float *norm, const StepInfo *step,
               const RunInfo *runs, float eps) {
    extern __shared__ __align__(16) StateValue coming[];  // [VALUE_DIM][KEY_DIM], then the inputs
    __shared__ float qkv[HEAD_CHANNELS], o[VALUE_DIM], partial[8];
    Inputs &inputs = *(Inputs *)(coming + VALUE_DIM * KEY_DIM);
    const float *q = qkv, *k = qkv + KEY_DIM, *v = qkv + 2 * KEY_DIM;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // The runs were complete long before the previous kernel, and so was the last writer of this layer's state.
    int items = step->runs * VALUE_HEADS;
    auto state_of = [&](const RunInfo &run, int head) {
        return states + ((long long)run.seat * VALUE_HEADS + head) * VALUE_DIM * KEY_DIM;
    };
    int own = warp * WARP_VALUES * KEY_DIM + lane * LANE_KEYS;  // where this lane's keys of the warp's first value lie
    auto next_of = [&](int item) {
        while (item < items && !recurs(runs[item / VALUE_HEADS])) item += gridDim.x;
        return item;
    };
    // 16 bytes at a time: eight channels.
    auto copy = [&](u16 *to, const u16 *from) { copy_async16(shared_address(to), from); };
    Gates coming_gates = {};
    // What earlier steps left, and the model's own numbers.
    auto fetch_kept = [&](int item) {
        if (item >= items) return;
        const RunInfo &run = runs[item / VALUE_HEADS];
        int head = item % VALUE_HEADS, position = run.end - 1;
        const StateValue *from = state_of(run, head);
        constexpr int PIECE = 16 / sizeof(StateValue);
#pragma unroll
        for (int i = 0; i < VALUE_DIM * KEY_DIM / (PIECE * THREADS); i++) {
            int at = (i * THREADS + threadIdx.x) * PIECE;
            copy_async16(shared_address(coming + at), from + at);
        }
        for (int i = threadIdx.x; i < HEAD_CHANNELS; i += THREADS)
            copy_async16(shared_address(inputs.taps[i]), taps + channel_of(head, i) * 4);
        const u16 *ring = rings + (long long)run.seat * 4 * CHANNELS;
        for (int i = threadIdx.x; i < 3 * HEAD_CHANNELS / 8; i += THREADS) {
            int back = i / (HEAD_CHANNELS / 8), at = i % (HEAD_CHANNELS / 8) * 8;
            copy(inputs.back[back] + at, ring + ((position - back - 1) & 3) * CHANNELS + channel_of(head, at));
        }
        coming_gates.decay = decay[head];
        coming_gates.bias = bias[head];
    };
    // What the kernel before made.
    auto fetch_new = [&](int item) {
        if (item >= items) return;
        int head = item % VALUE_HEADS, row0 = runs[item / VALUE_HEADS].row0;
        const u16 *row = mix + (long long)row0 * mix_width, *gate = gates + (long long)row0 * gates_width;
        for (int i = threadIdx.x; i < (HEAD_CHANNELS + VALUE_DIM) / 8; i += THREADS) {
            int at = i * 8;
            if (at < HEAD_CHANNELS) copy(inputs.row + at, row + channel_of(head, at));
            else copy(inputs.z + at - HEAD_CHANNELS, row + CHANNELS + head * VALUE_DIM + at - HEAD_CHANNELS);
        }
        coming_gates.beta = gate[head];
        coming_gates.alpha = gate[VALUE_HEADS + head];
    };
    int item = next_of(blockIdx.x);
    fetch_kept(item);
    float weight = threadIdx.x < VALUE_DIM ? norm[threadIdx.x] : 0.f;
    start_next();
    wait_previous();
    fetch_new(item);
    copy_async_commit();
    while (item < items) {
        RunInfo run = runs[item / VALUE_HEADS];
        int head = item % VALUE_HEADS, position = run.end - 1;
        StateValue *state = state_of(run, head) + own;
        Keys s[WARP_VALUES];
        copy_async_wait<0>();
        __syncthreads();  // everybody's copies; qkv and o are free
#pragma unroll
        for (int i = 0; i < WARP_VALUES; i++) {
            s[i] = *(const Keys *)(coming + own + i * KEY_DIM);
            if (position == 0) s[i] = Keys{};
        }
        u16 *newest = rings + ((long long)run.seat * 4 + (position & 3)) * CHANNELS;
        for (int i = threadIdx.x; i < HEAD_CHANNELS; i += THREADS) {
            u16 now = inputs.row[i];
            float4 w = *(const float4 *)inputs.taps[i];
            float c = w.w * half_to_f32(now);
            if (position >= 1) c += w.z * half_to_f32(inputs.back[0][i]);
            if (position >= 2) c += w.y * half_to_f32(inputs.back[1][i]);
            if (position >= 3) c += w.x * half_to_f32(inputs.back[2][i]);
            qkv[i] = c / (1.f + __expf(-c));
            // Value heads that share a key head write the same.
            newest[channel_of(head, i)] = now;
        }
        float z = threadIdx.x < VALUE_DIM ? half_to_f32(inputs.z[threadIdx.x]) : 0.f;
        float beta = 1.f / (1.f + expf(-half_to_f32(coming_gates.beta)));
        float kept = expf(coming_gates.decay * softplus(half_to_f32(coming_gates.alpha) + coming_gates.bias));
        __syncthreads();
        item = next_of(item + gridDim.x);
        fetch_kept(item);
        fetch_new(item);
        copy_async_commit();
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
#pragma unroll
        for (int first = 0; first < WARP_VALUES; first += AT_ONCE) {
            // Numbers 0 to AT_ONCE - 1: S k; behind them S q.
            float sums[2 * AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                sums[i] = sums[AT_ONCE + i] = 0.f;
                if (first + i < WARP_VALUES)
#pragma unroll
                    for (int j = 0; j < LANE_KEYS; j++) {
                        sums[i] += s[first + i][j] * ks[j];
                        sums[AT_ONCE + i] += s[first + i][j] * qs[j];
                    }
            }
            float sum = transposed_sums(sums), of_q = __shfl_sync(FULL, sum, AT_ONCE + lane % AT_ONCE);
            int at = warp * WARP_VALUES + first + lane % AT_ONCE;
            bool live = lane < AT_ONCE && first + lane < WARP_VALUES;
            float d = live ? beta * (v[at] - kept * sum) : 0.f;
            if (live) o[at] = kept * of_q + d * qk;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float of_i = __shfl_sync(FULL, d, i);
                if (first + i < WARP_VALUES)
                    store_keys(state + (first + i) * KEY_DIM, s[first + i], kept, of_i, ks);
            }
        }
        __syncthreads();
        float y = threadIdx.x < VALUE_DIM ? o[threadIdx.x] : 0.f;
        float scale = rsqrtf(block_sum256(y * y, partial) / VALUE_DIM + eps);
        if (threadIdx.x < VALUE_DIM)
            attended[(long long)run.row0 * VALUE_HEADS * VALUE_DIM + head * VALUE_DIM + threadIdx.x] =
                f32_to_half(y * scale * weight * delta_gate(z));
    }
}
