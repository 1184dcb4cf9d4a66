// In front of the chunked delta rule: conv[row] = silu(taps u) over the row and the three tokens before it, with the heads
// of q and k at length 1 (q then divided by sqrt(KEY_DIM)). One warp takes a head of ROWS rows.
//
// conv [rows, CHANNELS] in 16 bits; mix, rings and taps as in `delta_step`. Tokens before a run's first row are in the
// seat's ring. Grid: (rows / ROWS, heads of q, k and v / 4), 128 threads. KEY_DIM equals VALUE_DIM.
#include "prelude.cuh"

#define ROWS 16
#define LANE (KEY_DIM / WARP)

extern "C" __global__ void __launch_bounds__(128) delta_conv(u16 *conv, const u16 *mix, int mix_width, const u16 *rings, const float *taps,
                                                             const int *row_seat, const int *row_position, int rows) {
    wait_previous();
    start_next();
    int lane = threadIdx.x % WARP, head = blockIdx.y * 4 + threadIdx.x / WARP, first = blockIdx.x * ROWS;
    if (head >= CHANNELS / KEY_DIM) return;
    int channel = head * KEY_DIM + lane * LANE;
    float w[LANE][4];
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        float4 x = *(const float4 *)(taps + (channel + i) * 4);
        w[i][0] = x.x, w[i][1] = x.y, w[i][2] = x.z, w[i][3] = x.w;
    }
    // u of the four newest tokens, the newest last.
    float u[4][LANE] = {};
    int seat = -1, position = -2;
    auto load = [&](float(&to)[LANE], const u16 *from) {
#pragma unroll
        for (int i = 0; i < LANE; i += 2) {
            u32 x = *(const u32 *)(from + i);
            to[i] = half_lo(x);
            to[i + 1] = half_hi(x);
        }
    };
    for (int row = first; row < min(first + ROWS, rows); row++) {
        int row_is = row_seat[row], at = row_position[row];
        if (row_is == seat && at == position + 1) {
#pragma unroll
            for (int back = 0; back < 3; back++)
#pragma unroll
                for (int i = 0; i < LANE; i++) u[back][i] = u[back + 1][i];
        } else {
            // The first row here, or of a run: the tokens before it are rows of the same run, or in the ring.
#pragma unroll
            for (int back = 1; back < 4; back++) {
                bool same = row >= back && row_seat[row - back] == row_is && row_position[row - back] == at - back;
                if (at < back) {
#pragma unroll
                    for (int i = 0; i < LANE; i++) u[3 - back][i] = 0.f;
                } else if (same) {
                    load(u[3 - back], mix + (long long)(row - back) * mix_width + channel);
                } else {
                    load(u[3 - back], rings + ((long long)row_is * 4 + ((at - back) & 3)) * CHANNELS + channel);
                }
            }
        }
        load(u[3], mix + (long long)row * mix_width + channel);
        seat = row_is, position = at;
        float c[LANE], sum = 0.f;
#pragma unroll
        for (int i = 0; i < LANE; i++) {
            c[i] = w[i][3] * u[3][i] + w[i][2] * u[2][i] + w[i][1] * u[1][i] + w[i][0] * u[0][i];
            c[i] /= 1.f + __expf(-c[i]);
            sum += c[i] * c[i];
        }
        if (head < 2 * KEY_HEADS) {
            float scale = rsqrtf(warp_sum(sum) + 1e-6f) * (head < KEY_HEADS ? rsqrtf((float)KEY_DIM) : 1.f);
#pragma unroll
            for (int i = 0; i < LANE; i++) c[i] *= scale;
        }
#pragma unroll
        for (int i = 0; i < LANE; i += 2) *(u32 *)(conv + (long long)row * CHANNELS + channel + i) = half_pack(c[i], c[i + 1]);
    }
}
