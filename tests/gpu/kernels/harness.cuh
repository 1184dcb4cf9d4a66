// What the programs beside it share: errors that end them, buffers, noise, tensor maps. The kernel's file comes first.
#pragma once
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
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

// What a card takes when it does the same for a while, as in a long prompt's steps: one launch alone says little of it, since a
// card that draws its limit lowers its clock.
class Sustained {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card = nullptr;
    template <class F> F *find(const char *name) { return (F *)dlsym(library, name); }
    double joules() {
        unsigned long long millijoules = 0;
        find<int(void *, unsigned long long *)>("nvmlDeviceGetTotalEnergyConsumption")(card, &millijoules);
        return millijoules / 1e3;
    }
    double mhz() {
        unsigned clock = 0;
        find<int(void *, int, unsigned *)>("nvmlDeviceGetClockInfo")(card, 1, &clock);
        return clock;
    }

   public:
    Sustained() {
        if (!library) printf("FAIL: libnvidia-ml.so.1 is not there\n"), exit(2);
        find<int()>("nvmlInit_v2")();
        find<int(unsigned, void **)>("nvmlDeviceGetHandleByIndex_v2")(0, &card);
    }
    // Launches for `seconds`; the first 40 % are not counted. `operations` of one launch.
    template <class F> void run(const char *name, double seconds, double operations, F launch) {
        auto now = []() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
        double begun = now(), hot = 0, before = 0, clocks = 0;
        for (int count = 0, looks = 0;; count += 20) {
            double at = now();
            if (!hot && at - begun > 0.4 * seconds) hot = at, before = joules(), count = looks = 0, clocks = 0;
            if (at - begun > seconds) {
                double took = at - hot, drawn = joules() - before, done = operations * count;
                printf("hot  %-20s %.4f ms, %.0f TFLOP/s, %.0f W, %.0f MHz, %.3f J/TFLOP\n", name, took / count * 1e3, done / took / 1e12,
                       drawn / took, clocks / looks, drawn / done * 1e12);
                return;
            }
            for (int i = 0; i < 20; i++) launch();
            CHECK(cudaDeviceSynchronize());
            clocks += mhz(), looks++;
        }
    }
};

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
