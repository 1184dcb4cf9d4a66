// What the chunks of the delta rule need of themselves alone, 64 tokens each, for a value head. With G_i the sum of g up to
// token i, D_ij = e^(G_i - G_j) for i >= j and A = strictly lower(beta_i (k_i k_j) D_ij):
//
//   T = (I + A)^-1;  U = T (beta V);  W = T (beta e^G K);  P = lower(q_i k_j D_ij)
//
// (the WY form of section 3.2 of arXiv 2412.06464). chunk_u [chunks, VALUE_HEADS, 64, VALUE_DIM], chunk_w
// [.., 64, KEY_DIM] and chunk_p [.., 64, 64] in 16 bits, chunk_g [.., 64] f32. Tokens behind a run's last count as k = v = 0
// with g = 0. Grid: (chunks, VALUE_HEADS), 128 threads; chunks are counted over the runs of several rows.
#include "prelude.cuh"

#define ROW (KEY_DIM + 8)  // of shared memory; the pad keeps eight rows in different banks
#define PLACES 72

struct Shared {
    u16 k[64 * ROW];
    u16 qv[64 * ROW];  // first q, then v
    union {
        float a[64 * 68];
        struct {
            u16 tu[64 * PLACES];  // T beta
            u16 tw[64 * PLACES];  // T beta e^G
        };
    };
    float g[64], beta[64];
};

// acc[8][4] += X[16 rows from `row`] Y^T, 64 columns, both of `ROW`-wide rows in shared memory.
__device__ __forceinline__ void rows_by_rows(float (&acc)[8][4], u32 x, u32 y, int row) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int d = 0; d < KEY_DIM; d += 16) {
        u32 a[4];
        load_matrix4(a, x + ((row + lane % 16) * ROW + d + lane / 16 * 8) * 2);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 b[4];
            load_matrix4(b, y + (((n + lane / 16) * 8 + lane % 8) * ROW + d + lane / 8 % 2 * 8) * 2);
            mma(acc[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma(acc[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) delta_chunk(u16 *chunk_u, u16 *chunk_w, u16 *chunk_p, float *chunk_g,
                                                              const u16 *conv, const u16 *gates, int gates_width, const float *decay,
                                                              const float *bias, const StepInfo *step, const RunInfo *runs) {
    extern __shared__ __align__(16) u8 bytes[];
    Shared &s = *(Shared *)bytes;
    ChunkPlace place = find_chunk(step, runs, blockIdx.x);
    int head = blockIdx.y, key_head = KEY_HEAD(head), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = threadIdx.x;
    wait_previous();
    start_next();
    if (place.rows <= 0) return;
    u32 shared_k = shared_address(s.k), shared_qv = shared_address(s.qv);
    auto fetch = [&](u32 to, int from_channel) {
        for (int i = t; i < 64 * (KEY_DIM / 8); i += 128) {
            int row = i / (KEY_DIM / 8), at = i % (KEY_DIM / 8) * 8;
            if (row < place.rows)
                copy_async16(to + (row * ROW + at) * 2, conv + (long long)(place.row0 + row) * CHANNELS + from_channel + at);
            else
                *(U4 *)((to == shared_k ? s.k : s.qv) + row * ROW + at) = U4{0, 0, 0, 0};
        }
        copy_async_commit();
    };
    fetch(shared_k, (KEY_HEADS + key_head) * KEY_DIM);
    fetch(shared_qv, key_head * KEY_DIM);
    if (t < 64) {
        float beta = 0.f, g = 0.f;
        if (t < place.rows) {
            const u16 *row = gates + (long long)(place.row0 + t) * gates_width;
            beta = 1.f / (1.f + expf(-half_to_f32(row[head])));
            g = decay[head] * softplus(half_to_f32(row[VALUE_HEADS + head]) + bias[head]);
        }
        s.beta[t] = beta;
        // Sums up to each token: over the warp, then the second warp adds the first one's.
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            float below = __shfl_up_sync(FULL, g, o);
            if (lane >= o) g += below;
        }
        s.g[t] = g;
    }
    __syncthreads();
    if (t >= 32 && t < 64) s.g[t] += s.g[31];
    copy_async_wait<0>();
    __syncthreads();
    long long item = (long long)blockIdx.x * VALUE_HEADS + head;
    if (t < 64) chunk_g[item * 64 + t] = s.g[t];
    int row = warp * 16;
    // Lane's numbers: rows row + lane / 4 (+ 8), columns 8 n + lane % 4 * 2 (+ 1).
    float acc[8][4] = {};
    rows_by_rows(acc, shared_k, shared_k, row);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row + lane / 4 + e / 2 * 8, j = n * 8 + lane % 4 * 2 + e % 2;
            s.a[i * 68 + j] = i > j ? s.beta[i] * acc[n][e] * __expf(s.g[i] - s.g[j]) : 0.f;
            acc[n][e] = 0.f;
        }
    rows_by_rows(acc, shared_qv, shared_k, row);
    u16 *p = chunk_p + item * 64 * 64;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int i = row + lane / 4 + e / 2 * 8, j = n * 8 + lane % 4 * 2;
            float lo = i >= j ? acc[n][e] * __expf(s.g[i] - s.g[j]) : 0.f;
            float hi = i > j ? acc[n][e + 1] * __expf(s.g[i] - s.g[j + 1]) : 0.f;
            *(u32 *)(p + i * 64 + j) = half_pack(lo, hi);
        }
    __syncthreads();
    fetch(shared_qv, 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM);
    // Forward substitution, a thread a column of T.
    float column[64] = {};
    if (t < 64) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            float x[4] = {i == t ? 1.f : 0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int j = 0; j < i; j++) x[j % 4] -= s.a[i * 68 + j] * column[j];
            column[i] = (x[0] + x[1]) + (x[2] + x[3]);
        }
    }
    __syncthreads();  // T takes the place of A
    if (t < 64) {
        float beta = s.beta[t], beta_e = beta * __expf(s.g[t]);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            s.tu[i * PLACES + t] = f32_to_half(column[i] * beta);
            s.tw[i * PLACES + t] = f32_to_half(column[i] * beta_e);
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    // U and W: 16 rows a warp, T from the left, V or K (whose rows are the sum's index) from the right.
    auto product = [&](u16 *out, u32 t_rows, u32 right) {
        u32 a[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) load_matrix4(a[j], t_rows + ((row + lane % 16) * PLACES + j * 16 + lane / 16 * 8) * 2);
#pragma unroll
        for (int n = 0; n < KEY_DIM; n += 16) {
            float x[4] = {}, y[4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 b[4];
                load_matrix4_turned(b, right + ((j * 16 + lane % 16) * ROW + n + lane / 16 * 8) * 2);
                mma(x, a[j][0], a[j][1], a[j][2], a[j][3], b[0], b[1]);
                mma(y, a[j][0], a[j][1], a[j][2], a[j][3], b[2], b[3]);
            }
            u16 *to = out + (row + lane / 4) * KEY_DIM + n + lane % 4 * 2;
            *(u32 *)to = half_pack(x[0], x[1]);
            *(u32 *)(to + 8 * KEY_DIM) = half_pack(x[2], x[3]);
            *(u32 *)(to + 8) = half_pack(y[0], y[1]);
            *(u32 *)(to + 8 * KEY_DIM + 8) = half_pack(y[2], y[3]);
        }
    };
    product(chunk_u + item * 64 * VALUE_DIM, shared_address(s.tu), shared_qv);
    product(chunk_w + item * 64 * KEY_DIM, shared_address(s.tw), shared_k);
}
