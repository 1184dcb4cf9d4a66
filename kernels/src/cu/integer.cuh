// Products of K formats in whole numbers, for the one or two rows of x that lie in shared memory.
//
// Codes are bytes as they lie: a mask or two make the A operand of the matrix instruction. Each 256 values of x become whole
// numbers of 16 bits with one scale, at most 1/65,278 of the largest off, and two signed bytes each, a high and a low one,
// which are two columns of B. The sums of a sub-block, its scale times them and its minimum times the sums of x are exact;
// a row's result then is a float product a unit.
//
// B is block diagonal: columns 2 p and 2 p + 1 have the x of every fourth sub-block and zeros elsewhere, so that after four
// sub-blocks lane 4 g + t has the sums of one of them, and scales it alone.
#include "packed.cuh"

#define X_MAX 32639.f  // 127 * 256 + 127

// What each lane multiplies of a unit of x, 16 bytes at [p][t][high, low], where sub-blocks cover 32 and 16 k.
#define X_WORDS_BYTES 512
#define HAS_32 (TYPE0 != Q6_K || TYPE1 != Q6_K)
#define HAS_16 (TYPE0 == Q6_K || TYPE1 == Q6_K)
// A unit of a row of x: words; sums of groups 0 and 4, 1 and 5, ...; the scale.
#define X_SUMS_AT ((HAS_32 + HAS_16) * X_WORDS_BYTES)
#define X_SCALE_AT (X_SUMS_AT + 32)
#define X_BYTES (X_SCALE_AT + 16)

__device__ __forceinline__ u32 bytes_of(u32 a, u32 b, u32 c, u32 d, int byte) {
    u32 pick = byte | (4 + byte) << 4;
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
}

// A warp's 256 values of x, eight of each lane, into a unit's record.
__device__ __forceinline__ void put_x(u8 *record, const U4 &v) {
    int lane = threadIdx.x % WARP, group = lane / 4, t = lane % 4;
    const u32 *pairs = (const u32 *)&v;
    u32 tops[4];
#pragma unroll
    for (int i = 0; i < 4; i++) tops[i] = pairs[i] & 0x7fff7fffu;
    u32 most = __vmaxu2(__vmaxu2(tops[0], tops[1]), __vmaxu2(tops[2], tops[3]));
    most = __reduce_max_sync(FULL, max(most & 0xffff, most >> 16));
    // A NaN makes the scale one, and infinity times zero is one too: neither is lost.
    float top = half_to_f32((u16)most), turns = top > 0.f ? __fdividef(X_MAX, top) : 0.f;
    // Of this plus a whole number the low bytes are the number's.
    constexpr float FLOOR = 12582912.f;  // 1.5 2^23, 0x4b400000
    u32 whole[8], high[8], total = 0u - 8u * 0x4b400000u;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        whole[i] = __float_as_uint(fmaf(i % 2 ? half_hi(pairs[i / 2]) : half_lo(pairs[i / 2]), turns, FLOOR));
        high[i] = whole[i] + 128;
        total += whole[i];
    }
    int sum = (int)total;
    if (HAS_32) {
        u8 *to = record + ((group % 4 * 4 + t) * 2) * 16 + group / 4 * 8;
        *(U2 *)to = U2{bytes_of(high[0], high[4], high[1], high[5], 1), bytes_of(high[2], high[6], high[3], high[7], 1)};
        *(U2 *)(to + 16) = U2{bytes_of(whole[0], whole[4], whole[1], whole[5], 0), bytes_of(whole[2], whole[6], whole[3], whole[7], 0)};
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        if (t == 0) ((int *)(record + X_SUMS_AT))[group % 4 * 2 + group / 4] = sum;
    }
    if (HAS_16) {
        // Of sub-block 2 `group` or the next: what lanes 0 and 1, or 2 and 3, multiply.
        int block = 2 * group + t / 2;
        u8 *to = record + HAS_32 * X_WORDS_BYTES + ((block % 4 * 4 + t % 2 * 2) * 2) * 16 + block / 4 * 4;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            *(u32 *)(to + i * 8) = bytes_of(high[i], high[i + 2], high[i + 1], high[i + 3], 1);
            *(u32 *)(to + i * 8 + 16) = bytes_of(whole[i], whole[i + 2], whole[i + 1], whole[i + 3], 0);
        }
    }
    if (lane == 0) *(float *)(record + X_SCALE_AT) = top / X_MAX;
}

// c += A B for 32 k: codes that count from zero, or signed ones.
template <bool SIGNED> __device__ __forceinline__ void mma_bytes(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A byte of a word, as prmt's selector says: with zeros above it, or with its sign.
__device__ __forceinline__ int byte_at(u32 word, u32 pick) {
    int y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "r"(pick));
    return y;
}

// The codes of rows g and g + 8 in a group: bytes 0 to 3 of places 0 and 2, then of 1 and 3.
template <int T> __device__ __forceinline__ void load_bytes(u32 (&a)[4], const U4 &codes, const u32 (&planes)[8], int group) {
    u32 words[2] = {group % 2 ? codes.z : codes.x, group % 2 ? codes.w : codes.y};
#pragma unroll
    for (int row = 0; row < 2; row++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            u32 &y = a[odd * 2 + row];
            if (T == Q6_K) {
                // (code - 32) 4
                u32 w = odd ? __funnelshift_r(words[row], words[row], 4) : words[row];
                y = (planes[group] << (6 - 2 * (row * 2 + odd)) & 0xc0c0c0c0u) | (w & 0x3c3c3c3cu);
                continue;
            }
            y = words[row] >> 4 * odd & 0x0f0f0f0fu;
            if (T == Q5_K) {
                int at = group % 2 * 4 + row * 2 + odd;
                y |= (at < 4 ? planes[group / 2] << (4 - at) : planes[group / 2] >> (at - 4)) & 0x10101010u;
            }
        }
}

// acc += W x over one unit, each lane its sub-blocks: rows g and g + 8 of each row of x, whose records are `stride` bytes apart.
template <int T, int ROWS> __device__ __forceinline__ void multiply_whole(float (&acc)[ROWS][2], const u8 *unit, const u8 *record, int stride, int lane) {
    typedef Format<T> F;
    constexpr bool SIGNED = T == Q6_K;
    int g = lane / 4, t = lane % 4;
    U4 row_scales[2] = {load16(unit + F::SCALES_AT + g * 16), load16(unit + F::SCALES_AT + (g + 8) * 16)};
    u32 planes[8];
    if (F::PLANES > 0) *(U4 *)planes = load16(unit + F::PLANES_AT + lane * 16);
    if (F::PLANES > 1) *(U4 *)(planes + 4) = load16(unit + F::PLANES_AT + (WARP + lane) * 16);
    u32 words[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        *(U4 *)words[i] = load16(record + i * stride + (SIGNED ? HAS_32 * X_WORDS_BYTES : 0) + (g / 2 * 8 + t * 2 + g % 2) * 16);
    int high[ROWS][2] = {}, low[ROWS][2] = {};
    U4 codes;
    constexpr int SETS = SIGNED ? 4 : 2;  // of four sub-blocks
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        int c[ROWS][4] = {};
#pragma unroll
        for (int j = 0; j < GROUPS / SETS; j++) {
            int group = set * (GROUPS / SETS) + j;
            if (group % 2 == 0) codes = load16(unit + (group / 2 * WARP + lane) * 16);
            u32 a[4];
            load_bytes<T>(a, codes, planes, group);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                if (SIGNED) mma_bytes<SIGNED>(c[i], a, g / 2 == 2 * j ? words[i][set] : 0, g / 2 == 2 * j + 1 ? words[i][set] : 0);
                else mma_bytes<SIGNED>(c[i], a, g / 2 == j ? words[i][2 * set] : 0, g / 2 == j ? words[i][2 * set + 1] : 0);
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const U4 &v = row_scales[row];
            int scale;
            if (SIGNED) {
                u32 sign = t | 8;
                scale = byte_at(((const u32 *)&v)[set], t | sign << 4 | sign << 8 | sign << 12);
            } else {
                scale = byte_at(v.y, 0x4440 | t);
                scale = set == 0 ? scale & 63 : (scale >> 2 & 0x30) | (byte_at(v.w, 0x4440 | t) & 15);
            }
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                high[i][row] += scale * c[i][2 * row];
                low[i][row] += scale * c[i][2 * row + 1];
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const U4 &v = row_scales[row];
        float d = SIGNED ? f16_to_f32(*(const u16 *)(unit + F::SUPERS_AT + (g + 8 * row) * 2)) * 0.25f : f16_to_f32(v.x);
        int minimum[2];
        if (F::MINS) {
            int z = byte_at(v.z, 0x4440 | t), w = byte_at(v.w, 0x4440 | t);
            minimum[0] = z & 63;
            minimum[1] = (z >> 2 & 0x30) | w >> 4;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const u8 *of = record + i * stride;
            float y = d * fmaf(256.f, (float)high[i][row], (float)low[i][row]);
            if (F::MINS) {
                int2 sums = *(const int2 *)(of + X_SUMS_AT + t * 8);
                y = fmaf(-f16_to_f32(v.x >> 16), (float)(minimum[0] * sums.x + minimum[1] * sums.y), y);
            }
            acc[i][row] = fmaf(*(const float *)(of + X_SCALE_AT), y, acc[i][row]);
        }
    }
}
