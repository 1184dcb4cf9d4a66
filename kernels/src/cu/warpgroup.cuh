// Hopper's products of a warpgroup (wgmma) and its copies of boxes through tensor maps.
//
// Operands in shared memory are K-major with the 128-byte swizzle: rows of 64 values, a row's 16-byte chunk c at
// c ^ (row % 8).
#pragma once
#include "prelude.cuh"

#ifdef TL_F16
#define WGMMA_TYPES "f32.f16.f16"
#else
#define WGMMA_TYPES "f32.bf16.bf16"
#endif

// --- products: D[64, n] (+)= A[64, 16] B[n, 16]^T; a thread has n / 2 sums ---------------------------------------------

#define PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PLACES_32 PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PLACES_64                                                                                                        \
    PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "    \
              "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PLACES_128                                                                                                       \
    PLACES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "    \
              "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "  \
              "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "    \
              "%121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)

// Both operands in shared memory; `accumulate` 0: D is written anew.
#define PRODUCT_SHARED(N, COUNT, PLACES, A, B, ACCUMULATE, ...)                                                          \
    __device__ __forceinline__ void product_shared(float (&d)[COUNT], u64 a, u64 b, int accumulate) {                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"                                             \
                     "wgmma.mma_async.sync.aligned.m64n" N "k16." WGMMA_TYPES " {" PLACES "}, " A ", " B ", p, 1, 1, 0, 0;\n}" \
                     : __VA_ARGS__                                                                                       \
                     : "l"(a), "l"(b), "r"(accumulate));                                                                 \
    }
PRODUCT_SHARED("32", 16, PLACES_16, "%16", "%17", "%18", SUMS_8(0), SUMS_8(8))
PRODUCT_SHARED("64", 32, PLACES_32, "%32", "%33", "%34", SUMS_32(0))
PRODUCT_SHARED("128", 64, PLACES_64, "%64", "%65", "%66", SUMS_64(0))

// A in registers, as a product before leaves it.
#define PRODUCT_REGISTERS(N, COUNT, PLACES, A, B, ACCUMULATE, ...)                                                       \
    __device__ __forceinline__ void product_registers(float (&d)[COUNT], const u32 (&a)[4], u64 b, int accumulate = 1) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"                                             \
                     "wgmma.mma_async.sync.aligned.m64n" N "k16." WGMMA_TYPES " {" PLACES "}, {" A "}, " B ", p, 1, 1, 0;\n}" \
                     : __VA_ARGS__                                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                             \
    }
PRODUCT_REGISTERS("64", 32, PLACES_32, "%32, %33, %34, %35", "%36", "%37", SUMS_32(0))
PRODUCT_REGISTERS("128", 64, PLACES_64, "%64, %65, %66, %67", "%68", "%69", SUMS_64(0))
PRODUCT_REGISTERS("256", 128, PLACES_128, "%128, %129, %130, %131", "%132", "%133", SUMS_64(0), SUMS_64(64))

__device__ __forceinline__ void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void product_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What the compiler knows of these registers ends here: it moves no use of them across.
template <int N> __device__ __forceinline__ void settled(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A K-major operand with rows of 128 bytes: groups of 8 rows are 1,024 bytes apart.
__device__ __forceinline__ u64 operand(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// A place in a ring of stages, and the parity of its turn.
template <int STAGE_COUNT> struct Place {
    u32 stage, parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGE_COUNT) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// --- copies of boxes, reported to a barrier in shared memory -----------------------------------------------------------

__device__ __forceinline__ void copy_box2(u32 to, const void *map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_box3(u32 to, const void *map, int x, int y, int z, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// A tensor map as an argument of a kernel: const, and __grid_constant__.
struct alignas(64) TensorMap {
    u64 words[16];
};
