// The gated delta rule (arXiv 2412.06464) for runs of one row: convolution, recurrence and gated norm of a value head.
//
//   c = silu(taps u)            over this token's u and the three before it, which the seat's ring keeps
//   q = c_q / |c_q| / sqrt(KEY_DIM), k = c_k / |c_k|
//   S = e^g S;  d = beta (v - S k);  S = S + d k^T;  o = S q
//   attended[row, head] = rms(o; norm) gate(z)
//
// Writing S is half of what this moves, so it waits: with S' as it lies in memory and updates (kept_i, d_i, k_i) since then,
//
//   S x = A S' x + sum_i c_i (k_i . x) d_i,   c_i = kept_(i+1) .. kept_n,   A = kept_1 .. kept_n
//
// and every WRITE_EVERY-th row writes S, and a sequence's first; which, and how many updates there are, is the host's to
// know (RunInfo).
//
// mix [rows, mix_width]: u = q|k|v (CHANNELS), then z. gates [rows, gates_width]: beta, then alpha. Of one layer: states
// [numbers, VALUE_HEADS, VALUE_DIM, KEY_DIM], a seat's first, in f32 or bf16 (STATE16); deferred [seats, VALUE_HEADS]; rings
// [numbers, 4, CHANNELS], the token at position p in place p % 4; taps [CHANNELS, 4], decay and bias [VALUE_HEADS], norm
// [VALUE_DIM] in f32. At position 0 state and ring count as zero, whatever they hold.
//
// A block of 256 threads has one (run, value head). S k and S q are matrix instructions: S' is the A operand as it lies, 16
// values a warp, and k and q are columns of B, each as a sum of two numbers of the operands' type. Only a token's own row, z
// and gates depend on the kernel before; the rest is on its way before we wait for it. Runs of several rows are none of its
// business.
#include "prelude.cuh"

#define THREADS 256
#define CHAINS (STATE16 ? 1 : 2)              // pairs of sums, so that products wait for each other less
#define PIECE (16 / (int)sizeof(StateValue))  // numbers of a state that are copied, or multiplied, at once
#define ROW_PIECES (KEY_DIM / PIECE)
#define LANE_KEYS (KEY_DIM / WARP)
#define HEAD_CHANNELS (2 * KEY_DIM + VALUE_DIM)
#define OWN_CHANNELS ((HEAD_CHANNELS + THREADS - 1) / THREADS)
static_assert(WRITE_EVERY <= THREADS / WARP, "a warp an update, and one for the token");

// What of a deferred update this token needs: c_i, and c_i (k_i . x) of k and q, not normed yet.
struct __align__(16) Past {
    float factor, of_k, of_q;
};

struct __align__(16) Shared {
    U4 state[VALUE_DIM * ROW_PIECES];
    Deferred lacks;
    Past past[WRITE_EVERY - 1];
    float q_scale, k_scale, qk, all_kept;  // 1 / |c_q| / sqrt(KEY_DIM), 1 / |c_k|, k . q, A
    StateValue columns[4][KEY_DIM + 4 * PIECE];  // k and q; padded against bank conflicts
    float qkv[HEAD_CHANNELS], partial[8];
};

// Where a piece of a value's row lies: rows that are read together begin in other banks.
__device__ __forceinline__ int place_of(int row, int piece) { return row * ROW_PIECES + (piece ^ (row & 1) << 2); }

// Where a head's channel `i` of q, k and v lies among all.
__device__ __forceinline__ int channel_of(int head, int i) {
    int key_head = KEY_HEAD(head);
    return i < KEY_DIM       ? key_head * KEY_DIM + i
           : i < 2 * KEY_DIM ? KEY_HEADS * KEY_DIM + key_head * KEY_DIM + i - KEY_DIM
                             : 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + i - 2 * KEY_DIM;
}

#if STATE16
__device__ __forceinline__ float number(const U4 &piece, int i) {
    u32 pair = (&piece.x)[i / 2];
    return __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
}
__device__ __forceinline__ U4 pack(const float (&x)[PIECE]) {
    return U4{bf16_pack(x[0], x[1]), bf16_pack(x[2], x[3]), bf16_pack(x[4], x[5]), bf16_pack(x[6], x[7])};
}
// The most of x that a column holds.
__device__ __forceinline__ float top(float x) { return from_state(to_state(x)); }
// d += the products of a piece of rows g and g + 8 with that of column g.
__device__ __forceinline__ void multiply(float (*d)[4], const U4 &low, const U4 &high, const U4 &column) {
    mma_bf16(d[0], low.x, high.x, low.y, high.y, column.x, column.y);
    mma_bf16(d[1], low.z, high.z, low.w, high.w, column.z, column.w);
}
#else
#define TF32_BITS 0xffffe000u
__device__ __forceinline__ float number(const U4 &piece, int i) { return __uint_as_float((&piece.x)[i]); }
__device__ __forceinline__ U4 pack(const float (&x)[PIECE]) {
    return U4{__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
}
__device__ __forceinline__ float top(float x) { return __uint_as_float(__float_as_uint(x) & TF32_BITS); }
__device__ __forceinline__ u32 rest(u32 x) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & TF32_BITS)); }
__device__ __forceinline__ void multiply(float (*d)[4], const U4 &low, const U4 &high, const U4 &column) {
    mma_tf32(d[0], low.x & TF32_BITS, high.x & TF32_BITS, low.y & TF32_BITS, high.y & TF32_BITS, column.x, column.y);
    mma_tf32(d[1], rest(low.x), rest(high.x), rest(low.y), rest(high.y), column.x, column.y);
    mma_tf32(d[0], low.z & TF32_BITS, high.z & TF32_BITS, low.w & TF32_BITS, high.w & TF32_BITS, column.z, column.w);
    mma_tf32(d[1], rest(low.z), rest(high.z), rest(low.w), rest(high.w), column.z, column.w);
}
#endif

// In f32 as many blocks a multiprocessor as shared memory has room for.
extern "C" __global__ void __launch_bounds__(THREADS, STATE16 ? 4 : 3)
    delta_step(u16 *attended, const u16 *mix, int mix_width, const u16 *gates, int gates_width, StateValue *states,
               Deferred *deferred, u16 *rings, const float *taps, const float *decay, const float *bias, const float *norm,
               const RunInfo *runs, float eps) {
    extern __shared__ __align__(16) u8 bytes[];
    Shared &s = *(Shared *)bytes;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    // The runs were complete long before the previous kernel, and so were the last writers of this layer's state.
    const RunInfo run = runs[blockIdx.x / VALUE_HEADS];
    int head = blockIdx.x % VALUE_HEADS, position = run.end - 1;
    bool ours = recurs(run);
    U4 *state = (U4 *)(states + ((long long)run.seat * VALUE_HEADS + head) * VALUE_DIM * KEY_DIM);
    Deferred &home = deferred[run.seat * VALUE_HEADS + head];
    u16 *ring = rings + (long long)run.seat * 4 * CHANNELS;
    if (ours) {
#pragma unroll
        for (int c = 0; c < VALUE_DIM * ROW_PIECES / THREADS; c++) {
            int i = c * THREADS + threadIdx.x;
            copy_async16(shared_address(s.state + place_of(i / ROW_PIECES, i % ROW_PIECES)), state + i);
        }
        for (int i = threadIdx.x; i < run.deferred * (int)sizeof(Update) / 16; i += THREADS)
            copy_async16(shared_address(&s.lacks) + i * 16, (const u8 *)&home + i * 16);
        if (threadIdx.x < sizeof(home.kept) / 16) copy_async16(shared_address(s.lacks.kept + threadIdx.x * 4), home.kept + threadIdx.x * 4);
    }
    copy_async_commit();
    // This thread's channels: taps, and what came before.
    float4 w[OWN_CHANNELS];
    u16 back[OWN_CHANNELS][3];
#pragma unroll
    for (int c = 0; c < OWN_CHANNELS; c++) {
        int i = c * THREADS + threadIdx.x, channel = channel_of(head, i);
        if (!ours || i >= HEAD_CHANNELS) continue;
        w[c] = *(const float4 *)(taps + channel * 4);
#pragma unroll
        for (int j = 0; j < 3; j++) back[c][j] = ring[((position - j - 1) & 3) * CHANNELS + channel];
    }
    // The value of this lane: each pair of lanes has two rows, and another pair has them too.
    int value = warp * 16 + g + lane % 2 * 8;
    bool multiplies = warp < VALUE_DIM / 16, owner = multiplies && t < 2;
    float weight = owner ? norm[value] : 0.f, head_decay = decay[head], head_bias = bias[head];
    start_next();
    wait_previous();
    if (!ours) return;
    const u16 *row = mix + (long long)run.row0 * mix_width, *gate = gates + (long long)run.row0 * gates_width;
    u16 now[OWN_CHANNELS];
#pragma unroll
    for (int c = 0; c < OWN_CHANNELS; c++) {
        int i = c * THREADS + threadIdx.x;
        if (i < HEAD_CHANNELS) now[c] = row[channel_of(head, i)];
    }
    float z = owner ? half_to_f32(row[CHANNELS + head * VALUE_DIM + value]) : 0.f;
    float beta = half_to_f32(gate[head]), alpha = half_to_f32(gate[VALUE_HEADS + head]);
#pragma unroll
    for (int c = 0; c < OWN_CHANNELS; c++) {
        int i = c * THREADS + threadIdx.x;
        if (i >= HEAD_CHANNELS) continue;
        float y = w[c].w * half_to_f32(now[c]);
        if (position >= 1) y += w[c].z * half_to_f32(back[c][0]);
        if (position >= 2) y += w[c].y * half_to_f32(back[c][1]);
        if (position >= 3) y += w[c].x * half_to_f32(back[c][2]);
        y = y / (1.f + __expf(-y));
        s.qkv[i] = y;
        if (i < 2 * KEY_DIM) {
            StateValue(*columns)[KEY_DIM + 4 * PIECE] = s.columns + (i < KEY_DIM ? 2 : 0);
            columns[0][i % KEY_DIM] = to_state(top(y));
            columns[1][i % KEY_DIM] = to_state(y - top(y));
        }
        // Value heads that share a key head write the same.
        ring[(position & 3) * CHANNELS + channel_of(head, i)] = now[c];
    }
    beta = 1.f / (1.f + expf(-beta));
    float kept = expf(head_decay * softplus(alpha + head_bias));
    copy_async_wait<0>();
    __syncthreads();
    // What all values need: a warp an update, and the last one for this token's own.
    const float *q = s.qkv + lane * LANE_KEYS, *k = q + KEY_DIM;
    if (warp < run.deferred) {
        const float *update_k = s.lacks.updates[warp].k + lane * LANE_KEYS;
        float of_k = 0.f, of_q = 0.f, factor = 1.f;
#pragma unroll
        for (int j = 0; j < LANE_KEYS; j++) {
            of_k += update_k[j] * k[j];
            of_q += update_k[j] * q[j];
        }
        of_k = warp_sum(of_k), of_q = warp_sum(of_q);
        for (int i = warp + 1; i < run.deferred; i++) factor *= s.lacks.kept[i];
        if (lane == 0) s.past[warp] = Past{factor, factor * of_k, factor * of_q};
    } else if (warp == THREADS / WARP - 1) {
        float qq = 0.f, kk = 0.f, qk = 0.f, all_kept = 1.f;
#pragma unroll
        for (int j = 0; j < LANE_KEYS; j++) {
            qq += q[j] * q[j];
            kk += k[j] * k[j];
            qk += q[j] * k[j];
        }
        qq = warp_sum(qq), kk = warp_sum(kk), qk = warp_sum(qk);
        for (int i = 0; i < run.deferred; i++) all_kept *= s.lacks.kept[i];
        if (lane == 0) {
            s.q_scale = rsqrtf(qq + 1e-6f) * rsqrtf((float)KEY_DIM), s.k_scale = rsqrtf(kk + 1e-6f);
            s.qk = qk * s.q_scale * s.k_scale, s.all_kept = all_kept;
        }
    }
    // S' k and S' q, not normed yet.
    float sums[2 * CHAINS][4] = {};
    auto piece_of = [&](int row, int piece) { return position == 0 ? U4{} : s.state[place_of(warp * 16 + row, piece)]; };
    if (multiplies)
#pragma unroll
        for (int j = 0; j < ROW_PIECES / 4; j++) {
            int piece = 4 * j + t;
            multiply(sums + j % CHAINS * 2, piece_of(g, piece), piece_of(g + 8, piece), *(const U4 *)(s.columns[g % 4] + piece * PIECE));
        }
    __syncthreads();
    float y = 0.f;
    if (multiplies) {
        // Even lanes have the sums of k, odd ones those of q: row g in the first two, row g + 8 in the others.
        float low = 0.f, high = 0.f;
#pragma unroll
        for (int i = 0; i < 2 * CHAINS; i++) {
            low += sums[i][0] + sums[i][1];
            high += sums[i][2] + sums[i][3];
        }
        float other = __shfl_xor_sync(FULL, lane % 2 ? low : high, 1);
        float k_scale = s.k_scale, all_kept = s.all_kept;
        float with_k = all_kept * (lane % 2 ? other : low), with_q = all_kept * (lane % 2 ? high : other);
#pragma unroll
        for (int i = 0; i < WRITE_EVERY - 1; i++) {
            if (i >= run.deferred) break;
            float update = s.lacks.updates[i].d[value];
            with_k += s.past[i].of_k * update;
            with_q += s.past[i].of_q * update;
        }
        float d = beta * (s.qkv[2 * KEY_DIM + value] - kept * (with_k * k_scale));
        y = owner ? kept * (with_q * s.q_scale) + d * s.qk : 0.f;
        if (!run.folds) {
            if (owner) home.updates[run.deferred].d[value] = d;
            if (warp == 0)
#pragma unroll
                for (int j = 0; j < LANE_KEYS; j++) home.updates[run.deferred].k[lane * LANE_KEYS + j] = k[j] * k_scale;
            if (threadIdx.x == 0) home.kept[run.deferred] = kept;
        } else {
            // Row g and row g + 8, a piece of both at a time.
            float of_k[2], of_past[2][WRITE_EVERY - 1];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                of_k[r] = __shfl_sync(FULL, d, lane / 4 * 4 + r) * k_scale;
#pragma unroll
                for (int i = 0; i < WRITE_EVERY - 1; i++)
                    of_past[r][i] = i < run.deferred ? kept * s.past[i].factor * s.lacks.updates[i].d[warp * 16 + g + 8 * r] : 0.f;
            }
            all_kept *= kept;
#pragma unroll
            for (int j = 0; j < ROW_PIECES / 4; j++) {
                int piece = 4 * j + t;
                float x[2][PIECE];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    U4 before = piece_of(g + 8 * r, piece);
#pragma unroll
                    for (int e = 0; e < PIECE; e++) x[r][e] = all_kept * number(before, e) + of_k[r] * s.qkv[KEY_DIM + piece * PIECE + e];
                }
#pragma unroll
                for (int i = 0; i < WRITE_EVERY - 1; i++) {
                    if (i >= run.deferred) break;
#pragma unroll
                    for (int e = 0; e < PIECE; e++) {
                        float update = s.lacks.updates[i].k[piece * PIECE + e];
                        x[0][e] += of_past[0][i] * update;
                        x[1][e] += of_past[1][i] * update;
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) state[(warp * 16 + g + 8 * r) * ROW_PIECES + piece] = pack(x[r]);
            }
        }
    }
    float squares = block_sum256(y * y, s.partial);
    if (owner)
        attended[((long long)run.row0 * VALUE_HEADS + head) * VALUE_DIM + value] =
            f32_to_half(y * rsqrtf(squares / VALUE_DIM + eps) * weight * delta_gate(z));
}
