// What the programs beside it share: errors that end them, buffers, noise, tensor maps. The kernel's file comes first.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(x)                                                    \
    do {                                                            \
        int rc = (int)(x);                                          \
        if (rc != 0) {                                              \
            printf("FAIL line %d: %s gave %d\n", __LINE__, #x, rc); \
            exit(2);                                                \
        }                                                           \
    } while (0)

template <class T> T *allocate(size_t count) {
    T *to;
    CHECK(cudaMalloc(&to, count * sizeof(T)));
    return to;
}
template <class T> T *on_device(const std::vector<T> &values) {
    T *to;
    CHECK(cudaMalloc(&to, values.size() * sizeof(T) + 64));
    CHECK(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

__device__ u32 mixed_bits(u64 x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return (u32)(x ^ x >> 33);
}

// About normal, of variance `scale` squared: the sum of four uniform numbers.
__global__ void fill(u16 *to, u64 count, u64 seed, float scale) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        float sum = 0.f;
        for (int j = 0; j < 4; j++) sum += (mixed_bits(seed * 0x9E3779B97F4A7C15ull + i * 4 + j) >> 8) / 16777216.f - 0.5f;
        to[i] = f32_to_half(sum * 1.7320508f * scale);
    }
}

#ifdef CUDA_VERSION
inline CUtensorMap tensor_map(const void *from, std::vector<cuuint64_t> lengths, std::vector<cuuint64_t> strides,
                              std::vector<cuuint32_t> box) {
    CUtensorMap map;
    std::vector<cuuint32_t> steps(box.size(), 1);
    CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, box.size(), (void *)from, lengths.data(), strides.data(),
                                 box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}
#endif
