// GGUF's block formats as few_rows_packed and dequantize_packed read them: repacked once at load, without rounding.
//
// A matrix [n, k] is cut into units of 16 rows and 256 k (the last ones filled with zeros), tile by tile, in the order of k.
// A unit has the bytes that its blocks had in the file (IQ4_XS: 2 % more), in sections:
//
// | section | bytes | holds |
// |---|---|---|
// | codes | 2,048, or 4,096 for Q8_0 | what each lane of a warp multiplies, 16 bytes at a time |
// | planes | 512 for a fifth bit, 1,024 for two more | a word for two groups (two bits: for one) of a lane's rows |
// | scales | 16 rows of 16, 32 or 8 bytes | eight d, and eight m (f16); or d, dmin and the 12 bytes of Q4_K; or 16 or 8 bytes |
// | supers | 32 where scales are bytes | f16 d of 16 rows |
//
// Lane 4 g + t has rows g and g + 8, as the A operand of the matrix instruction wants them. Of each 32 k it has eight: 8 t
// to 8 t + 7; where a scale covers 16 k only (Q6_K), 4 t to 4 t + 3 of either half. Neighbouring k are a pair: the low and
// the high half of a register. 4-bit codes are a word for 32 k of a row: the pair at place i lies at bits 4 i and 16 + 4 i, so
// that a mask leaves the bytes of places 0 and 2 (Q6_K: of the first half's pairs), and behind a shift the others; Q6_K's word
// is turned left by two bits. Further bits lie in the byte of their code, side by side for group, row and place i % 2. With a
// table of values, pair i is a byte, rotated so that the first lies at bit 7. Q8_0: pair i at bits 8 i and 16 + 8 i of two
// words. Q6_K's sub-scales are signed bytes, and the highest bit of its codes is inverted.
#pragma once
#include "prelude.cuh"

#define UNIT_K 256
#define GROUP_K 32
#define GROUPS 8
#define TILE 16

// As the host counts them.
#define Q4_0 0
#define Q4_1 1
#define Q5_0 2
#define Q5_1 3
#define Q8_0 4
#define Q4_K 5
#define Q5_K 6
#define Q6_K 7
#define IQ4_NL 8
#define IQ4_XS 9

// What a code is added to by laying it into the mantissa of a 16-bit float: 128 in bf16, 1,024 in f16.
#ifdef TL_F16
#define BASE 1024.f
#define BASE_BITS 0x64006400u
#define ONE_BITS 0x3c003c00u
#else
#define BASE 128.f
#define BASE_BITS 0x43004300u
#define ONE_BITS 0x3f803f80u
#endif
#define SIGN_BITS 0x80008000u

template <int T> struct Format {
    static constexpr bool BYTES = T == Q8_0;
    static constexpr bool TABLE = T == IQ4_NL || T == IQ4_XS;
    static constexpr bool MINS = T == Q4_1 || T == Q5_1 || T == Q4_K || T == Q5_K;
    static constexpr int PLANES = T == Q6_K ? 2 : T == Q5_0 || T == Q5_1 || T == Q5_K ? 1 : 0;
    // The code of zero.
    static constexpr int ZERO = T == Q4_0 ? 8 : T == Q5_0 ? 16 : T == Q6_K ? 32 : 0;
    // A scale covers one matrix instruction's 16 k instead of 32.
    static constexpr bool HALVES = T == Q6_K;
    // Numbers that load_scales has for each group.
    static constexpr int PER_GROUP = MINS || HALVES ? 2 : 1;
    // Bits by which a word of codes is turned left.
    static constexpr int TURN = T == Q6_K ? 2 : 0;
    static constexpr int PLANES_AT = BYTES ? 4096 : 2048;
    static constexpr int SCALES_AT = PLANES_AT + 512 * PLANES;
    static constexpr int ROW_SCALES = T == Q4_1 || T == Q5_1 ? 32 : T == IQ4_XS ? 8 : 16;
    static constexpr int SUPERS_AT = SCALES_AT + TILE * ROW_SCALES;
    static constexpr int SIZE = SUPERS_AT + (T == Q6_K || T == IQ4_XS ? 2 * TILE : 0);
};

// (word & mask) | BITS in one instruction: both constants at once are one too many for it.
template <u32 BITS = BASE_BITS> __device__ __forceinline__ u32 based(u32 word, u32 mask) {
    u32 base, y;
    asm("mov.u32 %0, %1;" : "=r"(base) : "n"(BITS));
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(word), "r"(mask), "r"(base));
    return y;
}

// Sums of two pairs of 16-bit floats.
__device__ __forceinline__ u32 half_add(u32 a, u32 b) {
    u32 y;
#ifdef TL_F16
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(ONE_BITS), "r"(b));
#endif
    return y;
}

// --- values of IQ4 codes ----------------------------------------------------------------------------------------------

#define TABLE_BYTES (256 * WARP * 4)

// Bits of the 16-bit float of an IQ4 value (GGUF: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113).
__device__ __forceinline__ float iq4_value(u32 code) {
    u32 word = code < 4 ? 0xbfad9881u : code < 8 ? 0xf6eaddcfu : code < 12 ? 0x26190d01u : 0x71594535u;
    return (float)(signed char)(word >> (code % 4 * 8));
}
// Every byte's two values, once for each lane: lanes then never meet in a bank.
__device__ __forceinline__ void fill_table(u32 *table) {
    for (int i = threadIdx.x; i < 256 * WARP; i += blockDim.x) {
        u32 byte = i / WARP;
        table[i] = half_pack(iq4_value(byte & 15), iq4_value(byte >> 4));
    }
}

// --- codes ------------------------------------------------------------------------------------------------------------

// Where a lane finds the values of the byte whose first bit is bit 7. In one instruction it costs 2 % less, but 2 % more where x
// is near.
__device__ __forceinline__ u32 table_place(u32 index, int lane) {
#if NEAR
    return (index & 0x7f80) + lane * 4;
#else
    u32 at;
    asm("lop3.b32 %0, %1, 0x7f80, %2, 0xea;" : "=r"(at) : "r"(index), "r"(lane * 4));
    return at;
#endif
}

// The 16 codes of a lane in group `group`: `pairs[0]` of row g, `pairs[1]` of row g + 8, as 16-bit floats; with a minimum
// they are BASE too large.
template <int T> __device__ __forceinline__ void load_codes(u32 (&pairs)[2][4], const u8 *unit, const u8 *table, int group, int lane) {
    typedef Format<T> F;
    if (F::BYTES) {
        U4 v = load16(unit + (group * WARP + lane) * 16);
        const u32 *words = (const u32 *)&v;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 bytes = words[i / 2] >> i % 2 * 8;
            // The sign's bit counts -128: it lies where a power of two is doubled.
            pairs[i / 4][i % 4] = half_add(based(bytes, 0x007f007fu), based(bytes, 0x00800080u) | SIGN_BITS);
        }
        return;
    }
    U2 v = *(const U2 *)(unit + ((group / 2 * WARP + lane) * 2 + group % 2) * 8);
    u32 planes = 0;
    if (F::PLANES == 1) planes = *(const u32 *)(unit + F::PLANES_AT + lane * 16 + group / 2 * 4);
    if (F::PLANES == 2) planes = *(const u32 *)(unit + F::PLANES_AT + (group / 4 * WARP + lane) * 16 + group % 4 * 4);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 word = i / 4 ? v.y : v.x, &pair = pairs[i / 4][i % 4];
        if (F::TABLE) {
            u32 index = i % 4 == 3 ? word << 8 | word >> 24 : word >> i % 4 * 8;
            pair = *(const u32 *)(table + table_place(index, lane));
            continue;
        }
        // Pairs of a half lie two places apart.
        int place = F::HALVES ? i % 4 / 2 + i % 2 * 2 : i % 4;
        u32 turned = F::TURN ? __funnelshift_r(word, word, 4 * place + F::TURN) : word >> 4 * place;
        // The bit that is stored inverted.
        pair = based<BASE_BITS | (F::PLANES == 2 ? 0x00200020u : 0)>(turned, 0x000f000fu);
        int at = place / 2 * 8 + (F::PLANES == 1 ? group % 2 * 4 + i / 4 * 2 + place % 2 : i / 4 * 4 + place % 2 * 2);
        u32 further = at < 4 ? planes << (4 - at) : planes >> (at - 4);
        if (F::PLANES == 1) pair |= further & 0x00100010u;
        if (F::PLANES == 2) pair ^= further & 0x00300030u;
        if (F::ZERO) pair = half_add(pair, BASE_BITS | SIGN_BITS | F::ZERO << 16 | F::ZERO);
    }
}

// --- scales -----------------------------------------------------------------------------------------------------------

#define BYTE_BASE 8388608.f  // 2^23

// Byte `i` of a word as a float, 2^23 too large. The pattern is hidden from the compiler, which would else spend its one
// constant on it and none on the selection.
__device__ __forceinline__ float byte_float(u32 word, int i) {
    u32 base;
    asm("mov.u32 %0, 0x4b000000;" : "=r"(base));
    return __uint_as_float(__byte_perm(word, base, 0x7440 | i));
}

// Of one row of a unit: with a minimum, scale and minimum of groups 4 `high` + `at` and the next; where there are two scales
// for 32 k, those of the same groups; else the scales of groups 4 `high` to 4 `high` + 3. To the bit what GGUF computes; a
// minimum is taken away from code times scale.
template <int T> __device__ __forceinline__ void load_scales(float (&to)[4], const u8 *unit, int row, int high, int at) {
    typedef Format<T> F;
    const u8 *from = unit + F::SCALES_AT + row * F::ROW_SCALES;
    if (T == Q4_K || T == Q5_K) {
        U4 v = load16(from);
        float d = f16_to_f32(v.x), dmin = f16_to_f32(v.x >> 16);
        u32 scales = high ? (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030) : v.y & 0x3f3f3f3f;
        u32 mins = high ? (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030) : v.z & 0x3f3f3f3f;
        // 2^23 d leaves the product exact: it has 11 bits times 6.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[2 * i] = fmaf(byte_float(scales, at + i), d, -BYTE_BASE * d);
            to[2 * i + 1] = fmaf(byte_float(mins, at + i), dmin, -BYTE_BASE * dmin);
        }
    } else if (F::MINS) {
        u32 d = *(const u32 *)(from + (4 * high + at) * 2), m = *(const u32 *)(from + 16 + (4 * high + at) * 2);
        to[0] = f16_to_f32(d);
        to[1] = -f16_to_f32(m);
        to[2] = f16_to_f32(d >> 16);
        to[3] = -f16_to_f32(m >> 16);
    } else if (T == Q6_K || T == IQ4_XS) {
        float d = f16_to_f32(*(const u16 *)(unit + F::SUPERS_AT + row * 2));
        u32 v = T == Q6_K ? *(const u32 *)(from + (4 * high + at) * 2) ^ 0x80808080u : *(const u32 *)(from + 4 * high);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = (byte_float(v, i) - (BYTE_BASE + (T == Q6_K ? 128.f : 32.f))) * d;
    } else {
        U2 v = *(const U2 *)(from + 8 * high);
        to[0] = f16_to_f32(v.x);
        to[1] = f16_to_f32(v.x >> 16);
        to[2] = f16_to_f32(v.y);
        to[3] = f16_to_f32(v.y >> 16);
    }
}
