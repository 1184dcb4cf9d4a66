// The gates of the delta rule for few rows, where the product beside them does not make them on its way (gates.cuh).
//
// Shapes: x [m, k] f16, m <= 16, W [n, k] in the model's 16-bit type, out [m, n]. A block has one output for all rows: its
// weights are on their way to shared memory before the rows are there.
#include "gates.cuh"

#define ROWS_MAX 16
#define THREADS (GATE_WARPS * WARP)

extern "C" __global__ void __launch_bounds__(THREADS) delta_gates(const __grid_constant__ Gates gates, const u16 *x, int m, int k) {
    extern __shared__ __align__(16) u16 weights[];  // [k]
    __shared__ float partial[ROWS_MAX][GATE_WARPS];
    for (int i = threadIdx.x * 8; i < k; i += THREADS * 8)
        copy_async16(shared_address(weights + i), gates.w + (long long)blockIdx.x * k + i);
    copy_async_commit();
    start_next();
    wait_previous();
    copy_async_wait<0>();
    __syncthreads();
    for (int token = 0; token < m; token++) {
        float sum = warp_sum(gate_sum(weights, x + (long long)token * k, k));
        if (threadIdx.x % WARP == 0) partial[token][threadIdx.x / WARP] = sum;
    }
    __syncthreads();
    write_gates(gates, partial, m);
}
