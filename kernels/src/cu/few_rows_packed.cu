// y = W x for few rows of x and weights in GGUF's block formats: each weight is read once for all rows.
//
// Shapes: x [m, k] in the model's 16-bit type, W in units (packed.cuh), out [m, n]; k is a multiple of 32. W is up to four
// parts, one below the other, of up to two formats. As in few_rows.cu weights are the A operand of the matrix instruction
// and every token is a column of its own, so its result is bitwise the same for every m, but for INTEGER, which has its own.
//
// Rows may lie in eights (`row_place`): those of x with EIGHTS = 1, where NEAR is 1 with `eights`; with `eights` also what
// MODE 2 leaves.
//
// The operands are codes, which 16-bit floats hold exactly; the sums of a scale's k are then scaled in f32. Formats with a
// minimum also need the sums of x: a matrix instruction with ones for weights.
//
// A block, or a cluster of blocks, takes a run of tiles, and each of its warps a run of their units, as equal as can be: a
// warp that ends in the middle of a tile leaves the rest to the next. What a warp has of a tile that it shares is added at
// the end, in the order of k; a tile that lies within a warp's run is its own. A warp has a ring of DEPTH units in shared
// memory, filled ahead.
//
// Build flags: NT = n8 tiles of tokens (m <= 8 NT). TYPE0, TYPE1 = formats of the parts' kinds 0 and 1. MODE = 0 store 16
// bits, 1 add to the residual, 2 silu(gate) * up where rows 0 to 7 of a tile are gate and 8 to 15 the same rows of up, 3
// store f32. TAIL = 1: k need not be a multiple of 256. NEAR = 1: x and its sums are brought to shared memory first, by every
// block; 2: x is the residual stream, and normed on the way. ONE = 1: there is one row. INTEGER = 1: NEAR, and products in
// whole numbers (integer.cuh). DEPTH. WARPS of a block, BLOCKS of them on a multiprocessor.
#include "packed.cuh"
#define SHARE_ROW 1
#include "near.cuh"
#if INTEGER
#include "integer.cuh"
#endif

#define PARTS_MAX 4
#define COLUMNS_STEP (ONE ? 2 : 1)  // of a lane's sums, which lie in two columns
#define SLOT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SLOT SLOT_MAX(Format<TYPE0>::SIZE, Format<TYPE1>::SIZE)
#define HAS_TABLE (Format<TYPE0>::TABLE || Format<TYPE1>::TABLE)
#define HAS_MINS (Format<TYPE0>::MINS || Format<TYPE1>::MINS)
#define SCALES_BYTES (INTEGER ? 64 : 2 * WARP * 16)  // or places for the norm's sums
#define WARP_BYTES (DEPTH * SLOT + SCALES_BYTES + (DEPTH * 8 + 15) / 16 * 16)
#define OUTPUTS (MODE == 2 ? TILE / 2 : TILE)  // of a tile
#define COLUMN (TILE + 1)                      // padded against bank conflicts
#define GROUP_STEP (EIGHTS ? 8 * GROUP_K : GROUP_K)  // from a group of x to the next
#define UNITS(k) (((k) + UNIT_K - 1) / UNIT_K)
// Rows of x in shared memory and what belongs to them.
#if INTEGER
#define X_ROWS_BYTES(m, k) ((m)*UNITS(k) * X_BYTES)
#else
#define ROW_BYTES(k) (((k)*2 + 127) / 128 * 128 + 64)  // columns g and g + 1 lie in other banks
#define X_ROWS_BYTES(m, k) ((m)*ROW_BYTES(k) + UNITS(k) * (GROUPS / 2) * (((m) + 1) / 2) * 16)
#endif

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

// Blocks that share their tiles: one where there are no clusters.
struct Cluster {
    int blocks, rank;
};
__device__ __forceinline__ Cluster cluster_of() {
    Cluster c{1, 0};
#if ARCH >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(c.blocks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(c.rank));
#endif
    return c;
}
// Also for what its blocks wrote to their shared memory.
__device__ __forceinline__ void cluster_barrier(Cluster c) {
#if ARCH >= 900
    if (c.blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}
// Where block `rank` has what lies at `p` here.
__device__ __forceinline__ const float *of_block(const float *p, int rank) {
#if ARCH >= 900
    const float *q;
    asm("mapa.u64 %0, %1, %2;" : "=l"(q) : "l"(p), "r"(rank));
    return q;
#else
    return p;
#endif
}

// The eight x of a lane in a group, as the matrix instruction's B operand.
template <bool HALVES> __device__ __forceinline__ U4 load_x(const u16 *from) {
    if (!HALVES) return *(const U4 *)from;
    U2 low = *(const U2 *)from, high = *(const U2 *)(from + 16);
    return U4{low.x, low.y, high.x, high.y};
}

// Sums of a group's x in every column: all rows of the result are the same.
__device__ __forceinline__ void sum_x(float (&sums)[4], const U4 &b) {
    mma_zero(sums, ONE_BITS, ONE_BITS, ONE_BITS, ONE_BITS, b.x, b.y);
    mma(sums, ONE_BITS, ONE_BITS, ONE_BITS, ONE_BITS, b.z, b.w);
}

// acc += W x over one unit. `x`: this lane's first value of column g of each token tile. `x_sums`: with NEAR, the sums of
// the unit's first two groups for this lane's two columns. `scales`: room for the warp's.
template <int T>
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const u8 *unit, float4 *scales, const u8 *table, const u16 *const (&x)[NT],
                                         const float4 *const (&x_sums)[NT], int sums_stride, int left, int lane) {
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
    float4 top, low, ones[NT];
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        U4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) {
#if TAIL
            // Where the row has ended weights are zeros, and any x will do.
            b[j] = load_x<F::HALVES>(x[j] + (group * GROUP_K < left ? group * GROUP_STEP : 0));
#else
            b[j] = load_x<F::HALVES>(x[j] + group * GROUP_STEP);
#endif
#if NEAR
            if (F::MINS && group % 2 == 0) ones[j] = x_sums[j][group / 2 * sums_stride];
#endif
        }
        u32 a[2][4];
        load_codes<T>(a, unit, table, group, lane);
        constexpr int PER_ENTRY = 4 / F::PER_GROUP;
        if (group % PER_ENTRY == 0) {
            top = scales[group / PER_ENTRY * TILE + lane / 4];
            low = scales[group / PER_ENTRY * TILE + lane / 4 + 8];
        }
        const float *of[2] = {&top.x + group % PER_ENTRY * F::PER_GROUP, &low.x + group % PER_ENTRY * F::PER_GROUP};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float sums[4];
            mma_zero(sums, a[0][0], a[1][0], a[0][1], a[1][1], b[j].x, b[j].y);
            if (F::HALVES) {
#pragma unroll
                for (int c = 0; c < 4; c += COLUMNS_STEP) acc[j][c] = fmaf(of[c / 2][0], sums[c], acc[j][c]);
                mma_zero(sums, a[0][2], a[1][2], a[0][3], a[1][3], b[j].z, b[j].w);
            } else {
                mma(sums, a[0][2], a[1][2], a[0][3], a[1][3], b[j].z, b[j].w);
            }
#pragma unroll
            for (int c = 0; c < 4; c += COLUMNS_STEP) acc[j][c] = fmaf(of[c / 2][F::HALVES], sums[c], acc[j][c]);
            if (F::MINS) {
                float of_x[4];
#if NEAR
                of_x[0] = of_x[2] = group % 2 ? ones[j].z : ones[j].x;
                of_x[1] = of_x[3] = group % 2 ? ones[j].w : ones[j].y;
#else
                sum_x(of_x, b[j]);
#endif
#pragma unroll
                for (int c = 0; c < 4; c += COLUMNS_STEP) acc[j][c] = fmaf(of[c / 2][1], of_x[c], acc[j][c]);
            }
        }
    }
}

// Where a part's output of a token lies; negative: the tile's last rows are none.
__device__ __forceinline__ long long place_of(const Part &part, int row, int token, int n, int eights) {
    return row < part.rows ? row_place(token, part.column + row, n, MODE == 2 && eights) : -1;
}
// With MODE 1 what lies there.
__device__ __forceinline__ u16 read_before(const void *out, long long at) { return MODE == 1 && at >= 0 ? ((const u16 *)out)[at] : 0; }
__device__ __forceinline__ void write(void *out, long long at, float y, float up, u16 before) {
    if (at < 0) return;
    if (MODE == 0) ((u16 *)out)[at] = f32_to_half(y);
    if (MODE == 1) ((u16 *)out)[at] = f32_to_half(half_to_f32(before) + y);
    if (MODE == 2) ((u16 *)out)[at] = f32_to_half(y / (1.f + __expf(-y)) * up);
    if (MODE == 3) ((float *)out)[at] = y;
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    few_rows_packed(void *out, const u16 *x, const __grid_constant__ Parts parts, int m, int n, int k, const u16 *norm, float eps,
                    int eights) {
    extern __shared__ __align__(128) u8 shared[];  // the table, the warps' rings and what belongs to them, x, its sums
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int tiles = parts.part[PARTS_MAX - 1].end, units = UNITS(k);
    u8 *rings = shared + (HAS_TABLE ? TABLE_BYTES : 0), *ring = rings + warp * WARP_BYTES;
    float4 *scales = (float4 *)(ring + DEPTH * SLOT);
    u32 barriers = shared_address(ring) + DEPTH * SLOT + SCALES_BYTES;
    const u8 *table = shared;

    Cluster cluster = cluster_of();
    int clusters = gridDim.x / cluster.blocks, id = blockIdx.x / cluster.blocks, sharers = cluster.blocks * WARPS;
    int first_tile = tiles * id / clusters;
    int own = (tiles * (id + 1) / clusters - first_tile) * units, as = cluster.rank * WARPS + warp;  // the cluster's units
    int unit = own * as / sharers, end = own * (as + 1) / sharers, next = unit;
    auto part_of = [&](int tile) {
        int part = 0;
        while (tile >= parts.part[part].end) part++;
        return part;
    };
    // Where unit `next` lies, and the first unit that is no longer behind it in memory.
    const u8 *from;
    int next_part = -1, part_end = 0, bytes;
    auto request = [&](int slot) {
        if (next < end) {
            if (next >= part_end) {
                next_part = part_of(first_tile + next / units);
                int begin = next_part ? parts.part[next_part - 1].end : 0;
                bytes = parts.part[next_part].kind ? Format<TYPE1>::SIZE : Format<TYPE0>::SIZE;
                from = parts.part[next_part].units + ((long long)(first_tile - begin) * units + next) * bytes;
                part_end = (parts.part[next_part].end - first_tile) * units;
            }
            u8 *to = ring + slot * SLOT;
#if BULK
            if (lane == 0) {
                barrier_expect(barriers + slot * 8, bytes);
                copy_bulk(shared_address(to), from, bytes, barriers + slot * 8);
            }
#else
            for (int i = lane * 16; i < bytes; i += WARP * 16) copy_stream16(to + i, from + i);
#endif
            from += bytes;
            next++;
        }
#if !BULK
        copy_async_commit();
#endif
    };
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
    if (HAS_TABLE) fill_table((u32 *)shared);
#if NEAR == 2
    // The norm's weight waits in registers, or where there are few of them in shared memory behind x: a thread reads what it
    // has copied itself.
#if INTEGER
    u16 *weights = (u16 *)(rings + WARPS * WARP_BYTES + X_ROWS_BYTES(m, k));
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (piece_place(i) < k && puts_piece(m, i)) copy_async16(shared_address(weights + piece_place(i)), norm + piece_place(i));
    copy_async_commit();
    auto weight = [&](int i) { return piece_place(i) < k ? load16(weights + piece_place(i)) : U4{}; };
#else
    U4 weights[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) weights[i] = piece_place(i) < k ? load16(norm + piece_place(i)) : U4{};
    auto weight = [&](int i) { return weights[i]; };
#endif
#endif
    wait_previous();

    // Columns without a token repeat the last: nobody reads what comes of them.
    const u16 *columns[NT];
    const float4 *x_sums[NT] = {};
    int sums_stride = 0;
#if NEAR
    u8 *near = rings + WARPS * WARP_BYTES;
#if INTEGER
    int row_bytes = units * X_BYTES;
    auto put = [&](int token, int place, const U4 &v) { put_x(near + token * row_bytes + place / UNIT_K * X_BYTES, v); };
#else
    int row_bytes = ROW_BYTES(k), pairs = (m + 1) / 2;
    float *sums = (float *)(near + m * row_bytes);  // [groups / 2][pairs][2 groups][2 columns]
    auto put = [&](int token, int place, const U4 &v) {
        if (place < k) *(U4 *)(near + token * row_bytes + place * 2) = v;
        if (HAS_MINS) {
            // As if its groups were columns.
            float of_x[4];
            sum_x(of_x, v);
            float *to = sums + ((place / UNIT_K * (GROUPS / 2) + t) * pairs + token / 2) * 4 + token % 2;
            if (g == 0) to[0] = of_x[0];
            if (g == 0) to[2] = of_x[1];
        }
    };
#endif
#if NEAR == 2
    // Nobody needs the first warp's scales yet.
#if INTEGER
    copy_async_wait<0>();
#endif
    norm_rows(x, m, k, eps, (float(*)[NORM_WARPS])(rings + DEPTH * SLOT), weight, put);
#else
    for (int first = warp; first < units * m; first += PIECES * WARPS) {
        U4 v[PIECES];
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            int i = first + j * WARPS, place = (i % units * WARP + lane) * 8;
            if (i < units * m) v[j] = place < k ? load16(x + row_place(i / units, place, k, eights)) : U4{};
        }
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            int i = first + j * WARPS;
            if (i < units * m) put(i / units, (i % units * WARP + lane) * 8, v[j]);
        }
    }
#endif
    __syncthreads();
#if !INTEGER
#pragma unroll
    for (int j = 0; j < NT; j++) {
        columns[j] = (const u16 *)(near + min(j * 8 + g, m - 1) * row_bytes) + 8 * t;
        x_sums[j] = (const float4 *)sums + min(j * 4 + t, pairs - 1);
    }
    sums_stride = pairs;
#endif
#else
#pragma unroll
    for (int j = 0; j < NT; j++) columns[j] = x + row_place(min(j * 8 + g, m - 1), 8 * t, k, EIGHTS);
    if (HAS_TABLE) __syncthreads();
#endif

    // What this warp has of the tile that an earlier warp began, and of the last that it began itself.
    float head[NT][4] = {}, acc[NT][4];
    int slot = 0, parity = 0;
    while (unit < end) {
        int tile = unit / units, at = unit - tile * units, begin = at, stop = min(units, at + end - unit);
        int part = part_of(first_tile + tile);
        bool first = TYPE0 == TYPE1 || parts.part[part].kind == 0;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[j][c] = 0.f;
        unit += stop - at;
#if INTEGER
        float parts_of_y[ONE ? 1 : 2][2] = {};  // of rows g and g + 8
#endif
        for (; at < stop; at++) {
#if BULK
            barrier_wait(barriers + slot * 8, parity);
#else
            copy_async_wait<DEPTH - 1>();
            __syncwarp();
#endif
#if INTEGER
            const u8 *x_at = near + at * X_BYTES;
            int stride = m > 1 ? row_bytes : 0;  // a second row that is not there is the first
            if (first) multiply_whole<TYPE0>(parts_of_y, ring + slot * SLOT, x_at, stride, lane);
            else multiply_whole<TYPE1>(parts_of_y, ring + slot * SLOT, x_at, stride, lane);
#else
            const u16 *x_at[NT];
            const float4 *sums_at[NT];
#pragma unroll
            for (int j = 0; j < NT; j++) {
                x_at[j] = columns[j] + at * GROUPS * GROUP_STEP - ((first ? Format<TYPE0>::HALVES : Format<TYPE1>::HALVES) ? 4 * t : 0);
                sums_at[j] = x_sums[j] + at * (GROUPS / 2) * sums_stride;
            }
            if (first) multiply<TYPE0>(acc, ring + slot * SLOT, scales, table, x_at, sums_at, sums_stride, k - at * UNIT_K, lane);
            else multiply<TYPE1>(acc, ring + slot * SLOT, scales, table, x_at, sums_at, sums_stride, k - at * UNIT_K, lane);
#endif
            __syncwarp();
            request(slot);
            if (++slot == DEPTH) {
                slot = 0;
                parity ^= 1;
            }
        }
#if INTEGER
        // To where the matrix instruction leaves a row's sums.
#pragma unroll
        for (int i = 0; i < (ONE ? 1 : 2); i++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float y = parts_of_y[i][row];
                y += __shfl_xor_sync(FULL, y, 1);
                acc[0][row * 2 + i] = y + __shfl_xor_sync(FULL, y, 2);
            }
#endif
        if (begin > 0) {
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) head[j][c] = acc[j][c];
        } else if (stop == units) {
            const Part &of = parts.part[part];
            int row = (first_tile + tile - (part ? parts.part[part - 1].end : 0)) * OUTPUTS + g;
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    int token = j * 8 + t * 2 + c % 2;
                    if (token >= m || (MODE == 2 && c >= 2)) continue;
                    long long at = place_of(of, row + c / 2 * 8, token, n, eights);
                    write(out, at, acc[j][c], acc[j][c | 2], read_before(out, at));
                }
        }
    }
#if !BULK
    copy_async_wait<0>();
#endif
    // The ring is read: its place takes the sums of tiles that warps share, [head, last][m][COLUMN].
    float *mine = (float *)ring;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int token = j * 8 + t * 2 + c % 2, row = g + c / 2 * 8;
            if (token < m) {
                mine[token * COLUMN + row] = head[j][c];
                mine[(m + token) * COLUMN + row] = acc[j][c];
            }
        }
    // Of the tiles that warps share a thread has some outputs: it looks what lies there while others still multiply.
    auto shared_place = [&](int i) {
        int row = i % OUTPUTS, token = i / OUTPUTS % m, tile = first_tile + i / OUTPUTS / m;
        int part = part_of(tile), begin = part ? parts.part[part - 1].end : 0;
        return place_of(parts.part[part], (tile - begin) * OUTPUTS + row, token, n, eights);
    };
    int first = cluster.rank * WARPS * WARP + threadIdx.x, count = own / units * m * OUTPUTS;
    long long at = first < count ? shared_place(first) : -1;
    u16 before = read_before(out, at);
    cluster_barrier(cluster);
    for (int i = first; i < count; i += sharers * WARP) {
        int row = i % OUTPUTS, token = i / OUTPUTS % m, tile = i / OUTPUTS / m;
        if (i != first) {
            at = shared_place(i);
            before = read_before(out, at);
        }
        // The last warp whose run begins at or before a unit has it.
        int from = ((tile * units + 1) * sharers - 1) / own, to = ((tile + 1) * units * sharers - 1) / own;
        if (from == to) continue;
        float y = 0.f, up = 0.f;
        for (int w = from; w <= to; w++) {
            const float *sums = (const float *)(rings + w % WARPS * WARP_BYTES) + ((w == from ? m : 0) + token) * COLUMN + row;
            if (cluster.blocks > 1) sums = of_block(sums, w / WARPS);
            y += sums[0];
            if (MODE == 2) up += sums[8];
        }
        write(out, at, y, up, before);
    }
    // Nobody leaves while another still reads what it left.
    if (cluster.blocks > 1) cluster_barrier(cluster);
}
