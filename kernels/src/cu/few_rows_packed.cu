// y = W x for few rows of x and weights in GGUF's block formats: each weight is read once for all rows.
//
// Shapes: x [m, k] in the model's 16-bit type, W in units (packed.cuh), out [m, n]; k is a multiple of 32. W is up to four
// parts, one below the other, of up to two formats. As in few_rows.cu weights are the A operand of the matrix instruction
// and every token is a column of its own, so its result is bitwise the same for every m.
//
// The operands are codes, which 16-bit floats hold exactly; the sums of a scale's k are then scaled in f32. Formats with a
// minimum also need the sums of x: one more instruction, with ones for weights.
//
// A block works through the tiles blockIdx.x, + gridDim.x, ...; its warps take the units of a tile in turn and add their
// sums at its end, in warp order. Each warp has a ring of DEPTH units in shared memory, filled ahead and across tiles.
//
// Build flags: NT = n8 tiles of tokens (m <= 8 NT). TYPE0, TYPE1 = formats of the parts' kinds 0 and 1. MODE = 0 store 16
// bits, 1 add to the residual, 2 silu(gate) * up where rows 0 to 7 of a tile are gate and 8 to 15 the same rows of up, 3
// store f32. TAIL = 1: k need not be a multiple of 256. DEPTH. WARPS = the most that a block has, BLOCKS = how many of those share a multiprocessor.
#include "packed.cuh"

#define PARTS_MAX 4
#define COLUMN (TILE + 1)  // padded against bank conflicts
#define SLOT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SLOT SLOT_MAX(Format<TYPE0>::SIZE, Format<TYPE1>::SIZE)
#define HAS_TABLE (Format<TYPE0>::TABLE || Format<TYPE1>::TABLE)
#define SCALES_BYTES (2 * WARP * 16)
#define WARP_BYTES (DEPTH * SLOT + SCALES_BYTES + (DEPTH * 8 + 15) / 16 * 16)
#define OUTPUTS (MODE == 2 ? TILE / 2 : TILE)  // of a tile

#ifndef BULK
#define BULK (ARCH >= 900)
#endif

struct Part {
    const u8 *units;
    int end;     // tiles of this part and those before
    int rows;    // outputs
    int column;  // of out, where they begin
    int kind;
};
struct Parts {
    Part part[PARTS_MAX];
};

#if BULK
__device__ __forceinline__ void copy_bulk(u32 shared, const void *global, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
#endif

// acc += W x over one unit. `x`: this lane's first value of column g of each token tile. `scales`: room for the warp's.
template <int T>
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const u8 *unit, float4 *scales, const u8 *table,
                                         const u16 *const (&x)[NT], int left, int lane) {
    typedef Format<T> F;
    // Each lane decodes some of the 16 rows' scales for all.
#pragma unroll
    for (int i = 0; i < F::PER_GROUP; i++) {
        float v[4];
        if (F::PER_GROUP == 2) load_scales<T>(v, unit, lane % TILE, i, lane / TILE * 2);
        else load_scales<T>(v, unit, lane % TILE, lane / TILE, 0);
        // Codes are BASE too large.
        if (F::MINS) scales[i * WARP + lane] = make_float4(v[0], fmaf(-BASE, v[0], -v[1]), v[2], fmaf(-BASE, v[2], -v[3]));
        else scales[i * WARP + lane] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncwarp();
    float4 top, low;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        U4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) {
#if TAIL
            // Where the row has ended weights are zeros, and any x will do.
            const u16 *from = x[j] + (group * GROUP_K < left ? group * GROUP_K : 0);
#else
            const u16 *from = x[j] + group * GROUP_K;
#endif
            if (F::HALVES) {
                asm("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(b[j].x), "=r"(b[j].y) : "l"(from));
                asm("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(b[j].z), "=r"(b[j].w) : "l"(from + 16));
            } else {
                asm("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(b[j].x), "=r"(b[j].y), "=r"(b[j].z), "=r"(b[j].w) : "l"(from));
            }
        }
        u32 a[2][4];
        load_codes<T>(a, unit, table, group, lane);
        constexpr int PER_ENTRY = 4 / F::PER_GROUP;
        if (group % PER_ENTRY == 0) {
            top = scales[group / PER_ENTRY * TILE + lane / 4];
            low = scales[group / PER_ENTRY * TILE + lane / 4 + 8];
        }
        const float *of[2] = {&top.x + group % PER_ENTRY * F::PER_GROUP, &low.x + group % PER_ENTRY * F::PER_GROUP};
        float sums[NT][4], ones[NT][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const u32 *v = (const u32 *)&b[j] + 2 * half;
                if (half == 0 || F::HALVES)
#pragma unroll
                    for (int c = 0; c < 4; c++) sums[j][c] = 0.f;
                mma(sums[j], a[0][2 * half], a[1][2 * half], a[0][2 * half + 1], a[1][2 * half + 1], v[0], v[1]);
                if (F::MINS) {
                    if (half == 0)
#pragma unroll
                        for (int c = 0; c < 4; c++) ones[j][c] = 0.f;
                    mma(ones[j], ONE_BITS, ONE_BITS, ONE_BITS, ONE_BITS, v[0], v[1]);
                }
            }
            if (half == 0 && !F::HALVES) continue;
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    acc[j][c] = fmaf(of[c / 2][F::HALVES ? half : 0], sums[j][c], acc[j][c]);
                    if (F::MINS) acc[j][c] = fmaf(of[c / 2][1], ones[j][c], acc[j][c]);
                }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    few_rows_packed(void *out, const u16 *x, const __grid_constant__ Parts parts, int m, int n, int k) {
    extern __shared__ __align__(128) u8 shared[];  // the table, rings, barriers, partial sums
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP, g = lane / 4, t = lane % 4;
    int tiles = parts.part[PARTS_MAX - 1].end, units = (k + UNIT_K - 1) / UNIT_K;
    u8 *ring = shared + (HAS_TABLE ? TABLE_BYTES : 0) + warp * WARP_BYTES;
    float4 *scales = (float4 *)(ring + DEPTH * SLOT);
    u32 barriers = shared_address(ring) + DEPTH * SLOT + SCALES_BYTES;
    float *partial = (float *)(shared + (HAS_TABLE ? TABLE_BYTES : 0) + warps * WARP_BYTES);  // [2][warps][NT * 8][COLUMN]
    const u8 *table = shared + lane * 4;

    int next_tile = warp < units ? blockIdx.x : tiles, next_unit = warp, bytes;
    const u8 *next;
    auto part_of = [&](int tile) {
        int part = 0;
        while (tile >= parts.part[part].end) part++;
        return part;
    };
    auto first_of = [&](int part) { return part ? parts.part[part - 1].end : 0; };
    auto aim = [&]() {
        if (next_tile >= tiles) return;
        int part = part_of(next_tile);
        bytes = parts.part[part].kind ? Format<TYPE1>::SIZE : Format<TYPE0>::SIZE;
        next = parts.part[part].units + ((long long)(next_tile - first_of(part)) * units + next_unit) * bytes;
    };
    auto request = [&](int slot) {
        if (next_tile < tiles) {
            u8 *to = ring + slot * SLOT;
#if BULK
            if (lane == 0) {
                barrier_expect(barriers + slot * 8, bytes);
                copy_bulk(shared_address(to), next, bytes, barriers + slot * 8);
            }
#else
            for (int i = lane * 16; i < bytes; i += WARP * 16) copy_stream16(to + i, next + i);
#endif
            next_unit += warps;
            next += warps * bytes;
            if (next_unit >= units) {
                next_unit = warp;
                next_tile += gridDim.x;
                aim();
            }
        }
#if !BULK
        copy_async_commit();
#endif
    };
    aim();
#if BULK
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) barrier_init(barriers + i * 8, 1);
        barriers_ready();
    }
    __syncwarp();
#endif
    // Weights do not depend on the previous kernel: the first are on their way before we wait for it.
#pragma unroll
    for (int i = 0; i < DEPTH; i++) request(i);
    start_next();
    if (HAS_TABLE) {
        fill_table((u32 *)shared);
        __syncthreads();
    }
    wait_previous();

    // Columns without a token repeat the last: nobody reads what comes of them.
    const u16 *columns[NT];
#pragma unroll
    for (int j = 0; j < NT; j++) columns[j] = x + (long long)min(j * 8 + g, m - 1) * k + 8 * t;
    int slot = 0, turn = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float acc[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[j][c] = 0.f;
        int part = part_of(tile);
        bool first = TYPE0 == TYPE1 || parts.part[part].kind == 0;
        for (int unit = warp; unit < units; unit += warps) {
#if BULK
            barrier_wait(barriers + slot * 8, parity);
#else
            copy_async_wait<DEPTH - 1>();
            __syncwarp();
#endif
            const u16 *at[NT];
#pragma unroll
            for (int j = 0; j < NT; j++) {
                at[j] = columns[j] + unit * UNIT_K - ((first ? Format<TYPE0>::HALVES : Format<TYPE1>::HALVES) ? 4 * t : 0);
                // One address for all groups, instead of one worked out for each; the compiler no longer knows its space.
                asm volatile("" : "+l"(at[j]));
            }
#ifdef NO_MATH
            acc[0][0] += __uint_as_float(*(u32*)(ring + slot * SLOT + lane * 4));
#else
            if (first) multiply<TYPE0>(acc, ring + slot * SLOT, scales, table, at, k - unit * UNIT_K, lane);
            else multiply<TYPE1>(acc, ring + slot * SLOT, scales, table, at, k - unit * UNIT_K, lane);
#endif
            __syncwarp();
            request(slot);
            if (++slot == DEPTH) {
                slot = 0;
                parity ^= 1;
            }
        }
        // Two areas take turns: whoever still reads the last tile's sums does so before the barrier of this one.
        float *sums = partial + turn * warps * NT * 8 * COLUMN, *mine = sums + warp * NT * 8 * COLUMN;
        turn ^= 1;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) mine[(j * 8 + t * 2 + c % 2) * COLUMN + g + c / 2 * 8] = acc[j][c];
        __syncthreads();
        const Part &of = parts.part[part];
        int row0 = (tile - first_of(part)) * OUTPUTS;
        for (int i = threadIdx.x; i < m * OUTPUTS; i += blockDim.x) {
            int row = row0 + i % OUTPUTS, token = i / OUTPUTS;
            if (row >= of.rows) continue;
            float y = 0.f, up = 0.f;
            for (int p = 0; p < warps; p++) {
                const float *from = sums + (p * NT * 8 + token) * COLUMN + i % OUTPUTS;
                y += from[0];
                if (MODE == 2) up += from[8];
            }
            long long at = (long long)token * n + of.column + row;
            if (MODE == 0) ((u16 *)out)[at] = f32_to_half(y);
            if (MODE == 1) ((u16 *)out)[at] = f32_to_half(half_to_f32(((u16 *)out)[at]) + y);
            if (MODE == 2) ((u16 *)out)[at] = f32_to_half(y / (1.f + __expf(-y)) * up);
            if (MODE == 3) ((float *)out)[at] = y;
        }
    }
#if !BULK
    copy_async_wait<0>();
#endif
}
