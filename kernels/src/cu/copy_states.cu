// Recurrent states from one number to another, over all layers: seats' states to where they are saved, and back.
//
// buffers: of each layer the address of its matrices [numbers, matrix_units], then of each its ring [numbers, ring_units],
// in units of 16 bytes. Grid: (parts, layers * pairs), 256 threads. A pair's numbers are nobody else's in the launch.
#include "prelude.cuh"

#define PAIRS 16

struct Pairs {
    int2 pair[PAIRS];  // from, to
};

__device__ __forceinline__ void copy_units(u64 base, int2 pair, int units) {
    const U4 *from = (const U4 *)base + (long long)pair.x * units;
    U4 *to = (U4 *)base + (long long)pair.y * units;
    int stride = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < units; i += 4 * stride) {
        U4 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = from[i + j * stride];
#pragma unroll
        for (int j = 0; j < 4; j++) to[i + j * stride] = x[j];
    }
    for (; i < units; i += stride) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(256) copy_states(const u64 *buffers, int layers, int matrix_units, int ring_units, Pairs pairs) {
    wait_previous();
    start_next();
    int layer = blockIdx.y % layers;
    int2 pair = pairs.pair[blockIdx.y / layers];
    copy_units(buffers[layer], pair, matrix_units);
    copy_units(buffers[layers + layer], pair, ring_units);
}
