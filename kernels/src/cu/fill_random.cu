// out[i] = bf16 of uniform noise in (-scale, scale), from (seed, i): dummy weights, the same on every card.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) fill_random(u16 *out, u64 count, u64 seed, float scale) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    for (; i < count; i += (u64)gridDim.x * 256) {
        u64 z = (i + seed) * 0x9E3779B97F4A7C15ull;  // SplitMix64 (Steele et al., OOPSLA 2014)
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        out[i] = f32_to_half(((float)(z >> 40) * (1.f / 8388608.f) - 1.f) * scale);
    }
}
