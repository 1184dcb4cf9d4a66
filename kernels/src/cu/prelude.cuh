// What every kernel shares: fixed-width names, 16-bit floats without headers, matrix instructions, the step's device structures.
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

// Compute capability times 100. TL_ARCH takes an older card's code paths on a newer one, for checking them.
#ifdef TL_ARCH
#define ARCH TL_ARCH
#else
#define ARCH __CUDA_ARCH__
#endif

// --- the model's 16-bit type: bf16, or f16 with TL_F16 ------------------------------------------------------------------

// Round to nearest even, two at a time; `lo` lands in the low half. What f16 cannot hold becomes its largest number.
__device__ __forceinline__ u32 f16_pack(float lo, float hi) {
    u32 out;
    lo = fminf(fmaxf(lo, -65504.f), 65504.f);
    hi = fminf(fmaxf(hi, -65504.f), 65504.f);
    asm("{.reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};}" : "=r"(out) : "f"(lo), "f"(hi));
    return out;
}

// Of the low half.
__device__ __forceinline__ float f16_to_f32(u32 pair) {
    float x;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo;}" : "=f"(x) : "r"(pair));
    return x;
}

// Round to nearest even, two at a time; `lo` lands in the low half.
__device__ __forceinline__ u32 bf16_pack(float lo, float hi) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
    return out;
}

#ifdef TL_F16
__device__ __forceinline__ float half_lo(u32 pair) { return f16_to_f32(pair); }
__device__ __forceinline__ float half_hi(u32 pair) { return half_lo(pair >> 16); }
__device__ __forceinline__ float half_to_f32(u16 x) { return half_lo(x); }
__device__ __forceinline__ u32 half_pack(float lo, float hi) { return f16_pack(lo, hi); }
#else
__device__ __forceinline__ float half_lo(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float half_hi(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float half_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u32 half_pack(float lo, float hi) { return bf16_pack(lo, hi); }
#endif
__device__ __forceinline__ u16 f32_to_half(float x) { return (u16)(half_pack(x, 0.f) & 0xffff); }

// --- memory ---------------------------------------------------------------------------------------------------------

// Weights are read once a step: keep them out of L1.
__device__ __forceinline__ U4 load_stream(const void *p) {
    U4 v;
#if ARCH >= 800
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
#else
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#endif
    return v;
}
__device__ __forceinline__ U4 load16(const void *p) { return *(const U4 *)p; }

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies from global to shared memory that run on their own from compute capability 8.0 on; before, they are done at once.
#if ARCH >= 800
__device__ __forceinline__ void copy_async16(u32 shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}
// For what is read once: past the first cache, and its neighbours are wanted next.
__device__ __forceinline__ void copy_stream16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
#else
__device__ __forceinline__ void copy_async16(u32 shared, const void *global) {
    U4 v = load16(global);
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void copy_stream16(void *shared, const void *global) { *(U4 *)shared = load_stream(global); }
__device__ __forceinline__ void copy_async_commit() {}
template <int N> __device__ __forceinline__ void copy_async_wait() {}
#endif

__device__ __forceinline__ void load_matrix4(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

// As `load_matrix4`, each 8 x 8 matrix transposed.
__device__ __forceinline__ void load_matrix4_turned(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

// --- matrix instruction: D[16,8] += A[16,16] B[16,8], 16 bits in, f32 out ----------------------------------------------

#if ARCH < 750
__device__ __forceinline__ void mma_m8n8k4(float (&d)[8], u32 a0, u32 a1, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

// Volta's instruction works in four groups of eight lanes. Group q takes the k of the lanes whose number in their quad is
// q, for all rows and columns; the four sums are then added and brought to where the later instructions leave them.
// A call: written out at every use it takes half a minute to compile.
__device__ __noinline__ float4 mma_volta(float4 d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    int lane = threadIdx.x % WARP, q = lane / 4 % 4, from = ((lane & 3) | (lane / 16 * 4)) * 4 + q;
    a0 = __shfl_sync(FULL, a0, from);
    a1 = __shfl_sync(FULL, a1, from);
    a2 = __shfl_sync(FULL, a2, from);
    a3 = __shfl_sync(FULL, a3, from);
    b0 = __shfl_sync(FULL, b0, from);
    b1 = __shfl_sync(FULL, b1, from);
    // Lane l holds row (l & 1) + (i & 2) + 4 (l / 16), column (i & 4) + (l & 2) + (i & 1) in its number i.
    float sums[2][8] = {}, total[4];
    mma_m8n8k4(sums[0], a0, a2, b0, b1);
    mma_m8n8k4(sums[1], a1, a3, b0, b1);
    int to = (lane / 4 & 1) | (lane & 1) << 1 | (lane / 8 & 1) << 2 | (lane / 2 & 1) << 3 | lane / 16 << 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float kept[4], last[2];
        // Group q ends up with the numbers i whose bits 1 and 2 are those of q.
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int j = (i & 1) | (i & 2) << 1;
            float keep = q & 1 ? sums[half][j | 2] : sums[half][j], send = q & 1 ? sums[half][j] : sums[half][j | 2];
            kept[i] = keep + __shfl_xor_sync(FULL, send, 4);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float keep = q & 2 ? kept[i | 2] : kept[i], send = q & 2 ? kept[i] : kept[i | 2];
            last[i] = keep + __shfl_xor_sync(FULL, send, 8);
            total[2 * half + i] = __shfl_sync(FULL, last[i], to);
        }
    }
    return make_float4(d.x + total[0], d.y + total[1], d.z + total[2], d.w + total[3]);
}
__device__ __forceinline__ void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    float4 sum = mma_volta(make_float4(d[0], d[1], d[2], d[3]), a0, a1, a2, a3, b0, b1);
    d[0] = sum.x;
    d[1] = sum.y;
    d[2] = sum.z;
    d[3] = sum.w;
}
#elif ARCH < 800
__device__ __forceinline__ void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a2), "r"(a3), "r"(b1));
}
#else
__device__ __forceinline__ void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

// From compute capability 8.0 on, as is the next.
__device__ __forceinline__ void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// D[16,8] += A[16,8] B[8,8], of f32 whose last 13 bits do not count.
__device__ __forceinline__ void mma_tf32(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#ifdef TL_F16
    mma_f16(d, a0, a1, a2, a3, b0, b1);
#else
    mma_bf16(d, a0, a1, a2, a3, b0, b1);
#endif
}

// D[16,8] = A[16,16] B[16,8]: zeros need no registers.
__device__ __forceinline__ void mma_zero(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if ARCH >= 800
#ifdef TL_F16
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif
    asm("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
#undef MMA_TYPES
#else
    d[0] = d[1] = d[2] = d[3] = 0.f;
    mma(d, a0, a1, a2, a3, b0, b1);
#endif
}

// --- FP8 e4m3 -------------------------------------------------------------------------------------------------------------

#define E4M3_MAX 448.f

// The bits of a code lie in a float of 2^120 times its value; tiny codes are the float's own tiny numbers.
__device__ __forceinline__ float e4m3_to_f32(u8 code) {
    return __uint_as_float((u32)(code & 0x80) << 24 | (u32)(code & 0x7f) << 20) * __uint_as_float(247u << 23);
}

// Bytes 0 and 1 (half 0) or 2 and 3 of `w` as two f16, exactly, but for the factor E4M3_F16_UNIT that sums need.
#if ARCH >= 890
#define E4M3_F16_UNIT 1.f
__device__ __forceinline__ u32 e4m3_f16(u32 w, int half) {
    u32 r;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo;}" : "=r"(r) : "r"(half ? w >> 16 : w));
    return r;
}
#else
// The bits are moved into place, which divides by 2^8.
#define E4M3_F16_UNIT 256.f
__device__ __forceinline__ u32 e4m3_f16(u32 w, int half) {
    u32 v = __byte_perm(w, 0, half ? 0x3424 : 0x1404);
    return (v & 0x80008000u) | (v >> 1 & 0x3f803f80u);
}
#endif
// Activations reach beyond f16: between two FP8 products they are kept smaller by this power of two.
#define ACT_SCALE 0.015625f

// To nearest even, within the largest.
__device__ __forceinline__ u32 f32_to_e4m3(float x) {
    u32 bits = __float_as_uint(fminf(fabsf(x), E4M3_MAX)), sign = __float_as_uint(x) >> 24 & 0x80;
    if (bits < 121u << 23) return sign | (u32)__float2int_rn(__uint_as_float(bits) * 512.f);
    return sign | (((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3));
}
__device__ __forceinline__ U2 e4m3_pack8(const float (&y)[8]) {
    u32 word[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#if ARCH >= 890
        u32 lo, hi;
        asm("{.reg .b16 a; cvt.rn.satfinite.e4m3x2.f32 a, %1, %2; cvt.u32.u16 %0, a;}" : "=r"(lo) : "f"(y[4 * i + 1]), "f"(y[4 * i]));
        asm("{.reg .b16 a; cvt.rn.satfinite.e4m3x2.f32 a, %1, %2; cvt.u32.u16 %0, a;}" : "=r"(hi) : "f"(y[4 * i + 3]), "f"(y[4 * i + 2]));
        word[i] = lo | hi << 16;
#else
        word[i] = f32_to_e4m3(y[4 * i]) | f32_to_e4m3(y[4 * i + 1]) << 8 | f32_to_e4m3(y[4 * i + 2]) << 16 | f32_to_e4m3(y[4 * i + 3]) << 24;
#endif
    }
    return U2{word[0], word[1]};
}

// What values are multiplied with so that the largest becomes the largest code; its inverse is stored.
__device__ __forceinline__ float e4m3_scale(float largest, float *scale) {
    float most = fmaxf(largest, 1e-12f);
    if (scale) *scale = most * (1.f / E4M3_MAX);
    return E4M3_MAX / most;
}
__device__ __forceinline__ float largest8(const U4 &v) {
    const u32 *p = (const u32 *)&v;
    float most = 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) most = fmaxf(most, fmaxf(fabsf(half_lo(p[j])), fabsf(half_hi(p[j]))));
    return most;
}
// Over the 16 lanes that hold 128 values.
__device__ __forceinline__ float group_max(float x) {
    u32 lanes = 0xffffu << (threadIdx.x & 16);
#pragma unroll
    for (int o = 8; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(lanes, x, o));
    return x;
}

// --- programmatic dependent launch ------------------------------------------------------------------------------------

// Everything an earlier kernel wrote, and every buffer it may still read, is touched only after `wait_previous`.
__device__ __forceinline__ void wait_previous() {
#if ARCH >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void start_next() {
#if ARCH >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- barriers in shared memory (compute capability 9.0) ---------------------------------------------------------------

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// What `barrier_init` wrote is seen by the copy engine; before a block's first barrier of its threads.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

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
// Where `column` of a row lies among rows one after the other, or in eights, [rows / 8][width / 32][8][32]: a lane's B operand
// of a product's matrix instruction then stands beside its neighbours', whatever their rows. `width` is a multiple of 32 there.
__device__ __forceinline__ long long row_place(int row, int column, int width, bool eights) {
    if (!eights) return (long long)row * width + column;
    return (long long)(row / 8) * 8 * width + column / 32 * 256 + row % 8 * 32 + column % 32;
}
// sum += v . v: the order in which a norm adds its squares, wherever it is computed.
__device__ __forceinline__ void add_squares(float &sum, const U4 &v) {
    const u32 *p = (const u32 *)&v;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float a = half_lo(p[j]), b = half_hi(p[j]);
        sum = fmaf(a, a, sum);
        sum = fmaf(b, b, sum);
    }
}
// Over a block of 256; `partial` has 8 places.
__device__ __forceinline__ float block_sum256(float x, float *partial) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) total += partial[i];
    __syncthreads();
    return total;
}
__device__ __forceinline__ float block_max(float x, float *partial) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float most = partial[0];
#pragma unroll
    for (int i = 1; i < 8; i++) most = fmaxf(most, partial[i]);
    __syncthreads();
    return most;
}

// --- heads: norm and rotation, one warp a head -------------------------------------------------------------------------

#ifdef HEAD_DIM
#ifndef Q_STEP
#define Q_STEP 1  // heads of a row from one query to the next; 2: behind each query stands its gate
#endif
#ifndef ROT_DIM
#define ROT_DIM HEAD_DIM  // dimensions that are rotated: the first
#endif
#define Q_SLOTS (HEADS * Q_STEP)
#define HEADS_ALL (Q_SLOTS + 2 * KV_HEADS)
// Where a head stands in a row, counted over queries, keys and values.
#define HEAD_SLOT(head) ((head) < HEADS ? (head) * Q_STEP : (head) - HEADS + Q_SLOTS)
// Dimension j < ROT_DIM / 2 is rotated with j + ROT_DIM / 2. A lane has PAIRS consecutive j from lane * PAIRS, and as many
// from HEAD_DIM / 2 further on.
#define PAIRS ((HEAD_DIM / 2 + WARP - 1) / WARP)

// A lane's consecutive elements, two an access where they are even.
__device__ __forceinline__ void load_pairs(float (&to)[PAIRS], const u16 *from) {
#pragma unroll
    for (int p = 0; p + 1 < PAIRS; p += 2) {
        u32 x = *(const u32 *)(from + p);
        to[p] = half_lo(x);
        to[p + 1] = half_hi(x);
    }
    if (PAIRS % 2) to[PAIRS - 1] = half_to_f32(from[PAIRS - 1]);
}
__device__ __forceinline__ void store_pairs(u16 *to, const float (&from)[PAIRS]) {
#pragma unroll
    for (int p = 0; p + 1 < PAIRS; p += 2) *(u32 *)(to + p) = half_pack(from[p], from[p + 1]);
    if (PAIRS % 2) to[PAIRS - 1] = f32_to_half(from[PAIRS - 1]);
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
// cos and sin for a lane's dimensions of a head; j0 is its first.
__device__ __forceinline__ void load_turn(float2 (&turn)[PAIRS], const float2 *rotation, int position, int j0) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) turn[p] = rotation[(long long)position * (ROT_DIM / 2) + (j0 + p) % (ROT_DIM / 2)];
}
// Rotary embedding; `turn` holds cos and sin.
__device__ __forceinline__ void rotate_head(float (&lo)[PAIRS], float (&hi)[PAIRS], const float2 (&turn)[PAIRS]) {
#if ROT_DIM != HEAD_DIM
    // Both dimensions of a pair lie in `lo`, some lanes apart.
    const int apart = ROT_DIM / 2 / PAIRS;
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float other = __shfl_xor_sync(FULL, lo[p], apart);
        if (lane < 2 * apart) lo[p] = lo[p] * turn[p].x + (lane < apart ? -other : other) * turn[p].y;
    }
#else
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float a = lo[p], b = hi[p];
        lo[p] = a * turn[p].x - b * turn[p].y;
        hi[p] = b * turn[p].x + a * turn[p].y;
    }
#endif
}

// A result of a gated head: times the sigmoid of its gate.
__device__ __forceinline__ float gated(float y, float gate) { return y / (1.f + __expf(-gate)); }
#endif

// --- the step's structures, written by the host and by `begin_step` ---------------------------------------------------

// One run of consecutive rows of one seat; mirrors `RunUpload` of backend-cuda.
struct __align__(16) RunInfo {
    int seat;
    int rows;
    int row0;
    int token0;  // index into the uploaded tokens, or -1: the seat's last sampled token
    int emit;    // index of the emitted row, or -1
    int end;     // filled by begin_step: the seat's length after this run
    int item0;   // filled by begin_step: first of the run's work items, or of its tiles
    int splits;  // of a single row's keys, filled by begin_step; of a prompt's tiles, what the host wants and begin_step allows
    int deferred;  // updates that the seat's recurrent states lack before this run
    int folds;     // not 0: a single row writes the states, with all that was deferred
    int more;      // of a prompt's tiles the last, which have `more_splits` splits instead
    // Of all its tiles' keys the first `firsts` parts have `first_keys` 128s each; splits are of what is left.
    u8 firsts, more_splits;
    u16 first_keys;
};

// A tile of a prompt's attention, or a part of its keys. Parts of a tile have neighbouring places in the buffers of sums.
struct __align__(16) TileWork {
    u16 run, kv_head, part, parts;
    int tile;  // among those of its run's query tokens
    int place;
};

struct StepInfo {
    int runs;
    int rows;
    int emits;
    int appends;       // page-table entries to write
    int decode_items;  // filled by begin_step
    int tiles;         // filled by begin_step: prefill query tiles
    int tickets;       // prefill tiles that blocks asked for so far, over all layers
    int merges;        // filled by begin_step: prefill query tiles in parts
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

// --- the gated delta rule: see `delta_step` and `delta_chunk` ---------------------------------------------------------

#ifdef KEY_HEADS
#define CHANNELS (2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM)
#if TILED
#define KEY_HEAD(value_head) ((value_head) % KEY_HEADS)
#else
#define KEY_HEAD(value_head) ((value_head) / (VALUE_HEADS / KEY_HEADS))
#endif

// A number of the recurrent state: f32, or bf16 with STATE16, whatever the model's type is.
#ifndef STATE16
#define STATE16 0
#endif
#if STATE16
typedef u16 StateValue;
__device__ __forceinline__ float from_state(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 to_state(float x) { return (u16)bf16_pack(x, 0.f); }
#else
typedef float StateValue;
__device__ __forceinline__ float from_state(float x) { return x; }
__device__ __forceinline__ float to_state(float x) { return x; }
#endif

__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }
__device__ __forceinline__ float delta_gate(float z) {
    float s = 1.f / (1.f + __expf(-z));
#if GATE_SIGMOID
    return s;
#else
    return z * s;
#endif
}

// Single rows read a state and do not write it: every WRITE_EVERY-th takes in what the others left here, oldest first.
//
//   S = kept S + d k^T
#ifndef WRITE_EVERY
#define WRITE_EVERY 4
#endif
struct Update {
    float k[KEY_DIM], d[VALUE_DIM];
};
struct __align__(16) Deferred {
    Update updates[WRITE_EVERY - 1];
    float kept[(WRITE_EVERY + 2) / 4 * 4];
};

// A state that a run of several rows leaves on its way, after `at` tokens: a multiple of 64 before its end. Mirrors
// `SaveUpload`; a step's are in the order of its runs, and of a run in the order of `at`.
struct StateSave {
    int run, seat, at;
    int to;  // the number of the saved state, counted with the seats'
};

// 64 tokens of a run, or what is left of it.
struct ChunkPlace {
    int row0, rows;
};
// Whether a run goes on by the recurrence: a single row. With INVARIANT a prompt's row is part of a chunk also where it
// stands alone, so that it does not depend on how the prompt was cut.
__device__ __forceinline__ bool recurs(const RunInfo &run) {
#if INVARIANT
    return run.rows == 1 && run.token0 < 0;
#else
    return run.rows == 1;
#endif
}
__device__ __forceinline__ int chunks_of(const RunInfo &run) { return recurs(run) ? 0 : (run.rows + 63) / 64; }

// Chunks of the runs before one.
__device__ __forceinline__ int chunks_before(const RunInfo *runs, int run) {
    int count = 0;
    for (int r = threadIdx.x % WARP; r < run; r += WARP) count += chunks_of(runs[r]);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) count += __shfl_xor_sync(FULL, count, o);
    return count;
}

// The chunk of a number over all runs; no rows: there are not so many.
__device__ __forceinline__ ChunkPlace find_chunk(const StepInfo *step, const RunInfo *runs, int chunk) {
    int lane = threadIdx.x % WARP, before = 0;
    for (int base = 0; base < step->runs; base += WARP) {
        RunInfo run = {};
        if (base + lane < step->runs) run = runs[base + lane];
        int own = chunks_of(run), end = own;
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            int below = __shfl_up_sync(FULL, end, o);
            if (lane >= o) end += below;
        }
        u32 beyond = __ballot_sync(FULL, before + end > chunk);
        if (beyond) {
            int from = __ffs(beyond) - 1, local = chunk - before - __shfl_sync(FULL, end - own, from);
            int row0 = __shfl_sync(FULL, run.row0, from), rows = __shfl_sync(FULL, run.rows, from);
            return ChunkPlace{row0 + local * 64, min(64, rows - local * 64)};
        }
        before += __shfl_sync(FULL, end, WARP - 1);
    }
    return ChunkPlace{0, 0};
}
#endif
