// act = silu(G x) * (U x) for up to ROWS rows of x on Hopper: each weight is read once for all of them, through tensor maps.
//
// Shapes: x [m, k], act [m, n]; the weights [2 n, k] are the rows of G, then those of U; k and n multiples of 8. A block
// makes OUTPUTS columns of act: half of its rows of weights are G's, half U's, and each of GROUPS warpgroups multiplies 64 of
// them. One thread copies weights and x, 64 values of k at a time, into a ring of STAGES; weights do not depend on the kernel
// before, so the ring fills with them while that one ends. In the end the sums meet in the ring. Rows from m to ROWS are
// computed of whatever is there, and not stored. Grid: a block for each OUTPUTS columns.
//
// Build flags: ROWS = 32, 64 or 128; GROUPS = 1 to 3; STAGES.
#include "warpgroup.cuh"

#define CONSUMERS (128 * GROUPS)
#define THREADS (CONSUMERS + WARP)
#define STEP 64
#define OUTPUTS (32 * GROUPS)
#define HALF_BYTES (OUTPUTS * STEP * 2)
#define STAGE_BYTES (2 * HALF_BYTES + ROWS * STEP * 2)
#define PITCH (2 * OUTPUTS + 4)  // of a row of sums: a warp's lanes write to different banks
#define BARRIERS_AT (STAGES * STAGE_BYTES)
#define FULL_AT(s) (barriers + 8 * (s))
#define FREE_AT(s) (barriers + 8 * (STAGES + (s)))
static_assert(ROWS * PITCH * 4 <= BARRIERS_AT, "in the end the ring holds the sums");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gate_up_sm90(u16 *act, const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap x, int m, int n, int k) {
    extern __shared__ __align__(1024) u8 shared[];
    u32 base = shared_address(shared), barriers = base + BARRIERS_AT;
    int n0 = blockIdx.x * OUTPUTS, steps = (k + STEP - 1) / STEP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(FULL_AT(s), 1);
            barrier_init(FREE_AT(s), CONSUMERS / WARP);
        }
        barriers_ready();
    }
    __syncthreads();
    start_next();
    if (warp == CONSUMERS / WARP) {
        if (lane != 0) return;
        auto copy_weights = [&](int i, u32 s) {
            u32 to = base + s * STAGE_BYTES;
            barrier_expect(FULL_AT(s), STAGE_BYTES);
            copy_box2(to, &weights, i * STEP, n0, FULL_AT(s));
            copy_box2(to + HALF_BYTES, &weights, i * STEP, n + n0, FULL_AT(s));
        };
        auto copy_x = [&](int i, u32 s) { copy_box2(base + s * STAGE_BYTES + 2 * HALF_BYTES, &x, i * STEP, 0, FULL_AT(s)); };
        int ahead = min(STAGES, steps);
        for (int i = 0; i < ahead; i++) copy_weights(i, i);
        wait_previous();
        for (int i = 0; i < ahead; i++) copy_x(i, i);
        Place<STAGES> place = {0, 1};
        for (int i = ahead; i < steps; i++, place.advance()) {
            barrier_wait(FREE_AT(place.stage), place.parity ^ 1);
            copy_weights(i, place.stage);
            copy_x(i, place.stage);
        }
        return;
    }
    wait_previous();
    int group = warp / 4;
    auto release = [&](u32 s) {
        if (lane == 0) barrier_arrive(FREE_AT(s));
    };
    float sum[ROWS / 2];
    Place<STAGES> place = {0, 0};
    u32 before = 0;
    for (int i = 0; i < steps; i++, place.advance()) {
        u32 stage = base + place.stage * STAGE_BYTES;
        barrier_wait(FULL_AT(place.stage), place.parity);
        u64 a = operand(stage + group * 8192), b = operand(stage + 2 * HALF_BYTES);
        product_fence();
#pragma unroll
        for (int j = 0; j < STEP / 16; j++) product_shared(sum, a + j * 2, b + j * 2, i > 0 || j > 0);
        product_commit();
        if (i > 0) {
            product_wait<1>();
            release(before);
        }
        before = place.stage;
    }
    product_wait<0>();
    settled(sum);
    auto meet = []() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); };
    meet();
    float *sums = (float *)shared, *to = sums + 2 * (lane % 4) * PITCH + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) to[(8 * i + c % 2) * PITCH + c / 2 * 8] = sum[4 * i + c];
    meet();
    // Eight outputs a thread.
    const int across = OUTPUTS / 8;
    int at = threadIdx.x % across * 8, end = n0 + at < n ? m : 0;
#pragma unroll 4
    for (int row = threadIdx.x / across; row < end; row += CONSUMERS / across) {
        const float *gate = sums + row * PITCH + at, *up = gate + OUTPUTS;
        U4 packed;
        u32 *p = (u32 *)&packed;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 g = ((const float2 *)gate)[j], u = ((const float2 *)up)[j];
            p[j] = half_pack(g.x / (1.f + __expf(-g.x)) * u.x, g.y / (1.f + __expf(-g.y)) * u.y);
        }
        *(U4 *)(act + (long long)row * n + n0 + at) = packed;
    }
}
