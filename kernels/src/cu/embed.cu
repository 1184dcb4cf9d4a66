// h[row] = table[token[row]]; shapes [rows, hidden] bf16. One block a row.
#include "prelude.cuh"

extern "C" __global__ void embed(u16 *h, const u16 *table, const u32 *row_token, int hidden) {
    wait_previous();
    start_next();
    const U4 *from = (const U4 *)(table + (long long)row_token[blockIdx.x] * hidden);
    U4 *to = (U4 *)(h + (long long)blockIdx.x * hidden);
    for (int i = threadIdx.x; i < hidden / 8; i += blockDim.x) to[i] = from[i];
}
