// out[r, c] = codes[r, c] * scale, e4m3 to 16 bits: for products of many rows on cards whose library cannot read the codes.
// One block a row. Build flag: TILES = 0: one scale a row; TILES = 1: one for 16 rows and 128 columns.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) dequantize(u16 *out, const u8 *codes, const float *scales, int cols) {
    wait_previous();
    start_next();
    long long row = blockIdx.x;
    const U2 *from = (const U2 *)(codes + row * cols);
    U4 *to = (U4 *)(out + row * cols);
    int groups = (cols + 127) / 128;
    for (int i = threadIdx.x; i < cols / 8; i += 256) {
        float scale = TILES ? scales[row / 16 * groups + i / 16] : scales[row];
        U2 v = from[i];
        u32 y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 pair = j < 2 ? v.x : v.y;
            float lo = e4m3_to_f32((u8)(pair >> (j % 2 * 16))), hi = e4m3_to_f32((u8)(pair >> (j % 2 * 16 + 8)));
            y[j] = half_pack(lo * scale, hi * scale);
        }
        to[i] = U4{y[0], y[1], y[2], y[3]};
    }
}
