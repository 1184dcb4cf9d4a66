// What every kernel shares: fixed-width names, bf16 without headers, matrix instructions, the step's device structures.
// Kernels include nothing else, so that a machine needs no toolkit headers: NVRTC gets this text by name.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define PAGE 64
#define FULL 0xffffffffu
#define NEG_INF __int_as_float(0xff800000)

struct __align__(16) U4 {
    u32 x, y, z, w;
};
struct __align__(8) U2 {
    u32 x, y;
};

// --- bf16 -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float bf16_lo(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_hi(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }

// Round to nearest even, two at a time; `lo` lands in the low half.
__device__ __forceinline__ u32 bf16_pack(float lo, float hi) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
    return out;
}
__device__ __forceinline__ u16 f32_to_bf16(float x) { return (u16)(bf16_pack(x, 0.f) & 0xffff); }

// --- memory ---------------------------------------------------------------------------------------------------------

// Weights are read once a step: keep them out of L1.
__device__ __forceinline__ U4 load_stream(const void *p) {
    U4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ U4 load16(const void *p) { return *(const U4 *)p; }

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy_async16(u32 shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

__device__ __forceinline__ void load_matrix4(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

// --- matrix instruction: D[16,8] += A[16,16] B[16,8], bf16 in, f32 out ------------------------------------------------

__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// --- programmatic dependent launch ------------------------------------------------------------------------------------

// Everything an earlier kernel wrote, and every buffer it may still read, is touched only after `wait_previous`.
__device__ __forceinline__ void wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- reductions, in a fixed order -------------------------------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, o));
    return x;
}

// --- heads: norm and rotation, one warp a head -------------------------------------------------------------------------

#ifdef HEAD_DIM
#define HEADS_ALL (HEADS + 2 * KV_HEADS)
// Dimension j is rotated with j + HEAD_DIM / 2; a lane has PAIRS consecutive j from lane * PAIRS.
#define PAIRS ((HEAD_DIM / 2 + WARP - 1) / WARP)

// A lane's consecutive elements, two an access where they are even.
__device__ __forceinline__ void load_pairs(float (&to)[PAIRS], const u16 *from) {
#pragma unroll
    for (int p = 0; p + 1 < PAIRS; p += 2) {
        u32 x = *(const u32 *)(from + p);
        to[p] = bf16_lo(x);
        to[p + 1] = bf16_hi(x);
    }
    if (PAIRS % 2) to[PAIRS - 1] = bf16_to_f32(from[PAIRS - 1]);
}
__device__ __forceinline__ void store_pairs(u16 *to, const float (&from)[PAIRS]) {
#pragma unroll
    for (int p = 0; p + 1 < PAIRS; p += 2) *(u32 *)(to + p) = bf16_pack(from[p], from[p + 1]);
    if (PAIRS % 2) to[PAIRS - 1] = f32_to_bf16(from[PAIRS - 1]);
}

// RMSNorm of a head whose halves are `lo` and `hi`; lanes beyond the head are not `live`.
__device__ __forceinline__ void norm_head(float (&lo)[PAIRS], float (&hi)[PAIRS], const float (&w_lo)[PAIRS],
                                          const float (&w_hi)[PAIRS], bool live, float eps) {
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) sum += live ? lo[p] * lo[p] + hi[p] * hi[p] : 0.f;
    float scale = rsqrtf(warp_sum(sum) / HEAD_DIM + eps);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        lo[p] *= scale * w_lo[p];
        hi[p] *= scale * w_hi[p];
    }
}
// Rotary embedding; `turn` holds cos and sin.
__device__ __forceinline__ void rotate_head(float (&lo)[PAIRS], float (&hi)[PAIRS], const float2 (&turn)[PAIRS]) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float a = lo[p], b = hi[p];
        lo[p] = a * turn[p].x - b * turn[p].y;
        hi[p] = b * turn[p].x + a * turn[p].y;
    }
}
#endif

// --- the step's structures, written by the host and by `begin_step` ---------------------------------------------------

// One run of consecutive rows of one seat; mirrors `RunUpload` of backend-cuda.
struct RunInfo {
    int seat;
    int rows;
    int row0;
    int token0;  // index into the uploaded tokens, or -1: the seat's last sampled token
    int emit;    // index of the emitted row, or -1
    int end;     // filled by begin_step: the seat's length after this run
    int item0;   // filled by begin_step: first decode work item
    int splits;  // filled by begin_step: decode splits
};

struct StepInfo {
    int runs;
    int rows;
    int emits;
    int appends;       // page-table entries to write
    int decode_items;  // filled by begin_step
    int tiles;         // filled by begin_step: prefill query tiles
    int tickets;       // prefill tiles that blocks asked for so far, over all layers
    int pad;
};

struct Append {
    int seat;
    int at;
    int page;
};

// One seat's sampling state; mirrors `SeatUpload`.
struct SeatState {
    int position;  // tokens whose KV exists
    int last;      // last sampled token
    int done;
    int generated;
    u64 seed;
    float temperature;
    float top_p;
    float min_p;
    float presence;
    float frequency;
    float repetition;
    int top_k;
    int min_tokens;
    int stops;
    int stop[16];
    int biases;
    int bias_token[320];
    float bias[320];
    int counted;  // penalties need the counts table: bit 31 seen in the prompt, below it times generated
};
