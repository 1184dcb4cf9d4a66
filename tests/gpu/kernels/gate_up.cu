// Hopper's gate and up of 17 to 128 rows alone: checked against a plain kernel, then timed as a chain over the layers of a
// model, beside the library's product without the activation. For work on the kernel itself; whole models are checked by the
// program beside this folder.
//
//   nvcc -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a -DROWS=128 -DGROUPS=3 -DSTAGES=5 -I kernels/src/cu \
//        tests/gpu/kernels/gate_up.cu -lcuda -lcublasLt -o gate_up && ./gate_up [m]
//
// Outputs are poisoned.
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "gate_up_sm90.cu"
#include "harness.cuh"

const int LAYERS = 12, ROUNDS = 5, SHARED = BARRIERS_AT + 16 * STAGES;

// A warp an output.
__global__ void reference(float *out, const u16 *x, const u16 *w, int n, int k) {
    int at = blockIdx.x * 8 + threadIdx.x / WARP, row = blockIdx.y;
    if (at >= n) return;
    float sum = 0.f;
    for (int i = threadIdx.x % WARP; i < k; i += WARP) sum += half_to_f32(x[(long long)row * k + i]) * half_to_f32(w[(long long)at * k + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) out[(long long)row * n + at] = sum;
}

TensorMap argument(const void *from, cuuint64_t rows, cuuint64_t k, cuuint32_t box) {
    CUtensorMap map = tensor_map(from, {k, rows}, {k * 2}, {STEP, box});
    TensorMap out;
    static_assert(sizeof out == sizeof map, "");
    memcpy(&out, &map, sizeof out);
    return out;
}

struct Shape {
    int n, k;
};

void launch(cudaStream_t stream, Shape p, u16 *out, const u16 *w, const u16 *x, int m) {
    CHECK(cudaFuncSetAttribute(gate_up_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = {(unsigned)((p.n + OUTPUTS - 1) / OUTPUTS), 1, 1};
    config.blockDim = {THREADS, 1, 1};
    config.dynamicSmemBytes = SHARED;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    TensorMap w_map = argument(w, 2 * p.n, p.k, OUTPUTS), x_map = argument(x, 128, p.k, ROWS);
    CHECK(cudaLaunchKernelEx(&config, gate_up_sm90, out, w_map, x_map, m, p.n, p.k));
}

bool check(Shape p, int m) {
    int rows = 2 * p.n;
    u16 *w = allocate<u16>((size_t)rows * p.k), *x = allocate<u16>((size_t)128 * p.k), *out = allocate<u16>((size_t)129 * p.n);
    float *wanted = allocate<float>((size_t)128 * rows);
    fill<<<1024, 256>>>(w, (u64)rows * p.k, 1, 0.05f);
    fill<<<1024, 256>>>(x, (u64)128 * p.k, 2, 1.f);
    reference<<<dim3((rows + 7) / 8, m), 256>>>(wanted, x, w, rows, p.k);
    CHECK(cudaMemset(out, 0xff, (size_t)129 * p.n * 2));
    launch(0, p, out, w, x, m);
    CHECK(cudaDeviceSynchronize());
    std::vector<float> y((size_t)m * rows);
    std::vector<u16> h((size_t)129 * p.n);
    CHECK(cudaMemcpy(y.data(), wanted, y.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(h.data(), out, h.size() * 2, cudaMemcpyDeviceToHost));
    double error = 0, norm = 0;
    size_t beyond = 0;
    for (int row = 0; row < m; row++)
        for (int i = 0; i < p.n; i++) {
            double gate = y[(size_t)row * rows + i], want = gate / (1 + exp(-gate)) * y[(size_t)row * rows + p.n + i];
            u32 bits = (u32)h[(size_t)row * p.n + i] << 16;
            float found;
            memcpy(&found, &bits, 4);
            error += (found - want) * (found - want);
            norm += want * want;
        }
    // The row behind the last is as it was.
    for (int i = 0; i < p.n; i++) beyond += h[(size_t)m * p.n + i] != 0xffff;
    double relative = sqrt(error / norm);
    // NaN compares false.
    bool passed = relative < 4e-3 && beyond == 0;
    printf("%s %d x %d x %d: relative error %.2e, beyond %zu\n", passed ? "ok  " : "FAIL", m, p.n, p.k, relative, beyond);
    for (void *q : {(void *)w, (void *)x, (void *)wanted, (void *)out}) CHECK(cudaFree(q));
    return passed;
}

// Microseconds a layer of a captured chain.
double time_chain(const std::function<void(cudaStream_t, int)> &layer) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < LAYERS; i++) layer(stream, i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, ended;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&ended));
    std::vector<float> times;
    for (int i = 0; i < ROUNDS + 2; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        for (int j = 0; j < 5; j++) CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(ended, stream));
        CHECK(cudaEventSynchronize(ended));
        CHECK(cudaEventElapsedTime(&ms, begin, ended));
        times.push_back(ms / 5);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2] * 1e3 / LAYERS;
}

struct Library {
    cublasLtHandle_t handle;
    void *workspace = allocate<u8>(64 << 20);
    Library() { CHECK(cublasLtCreate(&handle)); }
    // out[m, n] = x W^T by the candidate of that rank; false where there is none.
    bool run(cudaStream_t stream, int m, int n, int k, const u16 *x, const u16 *w, u16 *out, int candidate) {
        cublasLtMatmulDesc_t desc;
        cublasLtMatrixLayout_t a, b, c;
        cublasLtMatmulPreference_t preference;
        cublasOperation_t turned = CUBLAS_OP_T;
        size_t bytes = 64 << 20;
        CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned));
        CHECK(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, k, n, k));
        CHECK(cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, k, m, k));
        CHECK(cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, n, m, n));
        CHECK(cublasLtMatmulPreferenceCreate(&preference));
        CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
        cublasLtMatmulHeuristicResult_t found[8];
        int count = 0;
        CHECK(cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, preference, 8, found, &count));
        float one = 1.f, zero = 0.f;
        bool ran = candidate < count && cublasLtMatmul(handle, desc, &one, w, a, x, b, &zero, out, c, out, c, &found[candidate].algo, workspace, bytes, stream) == 0;
        cublasLtMatmulPreferenceDestroy(preference);
        for (auto layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
        cublasLtMatmulDescDestroy(desc);
        return ran;
    }
};

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    int m = argc > 1 ? atoi(argv[1]) : ROWS, failed = 0;
    for (Shape p : {Shape{12288, 4096}, {1544, 328}, {200, 64}})
        for (int rows : {m, m - 3}) failed += !check(p, rows);
    if (failed) return 1;
    const Shape p = {12288, 4096};
    size_t count = (size_t)2 * p.n * p.k;
    std::vector<u16 *> w(LAYERS);
    for (auto &to : w) {
        to = allocate<u16>(count);
        fill<<<1024, 256>>>(to, count, 5, 0.02f);
    }
    u16 *x = allocate<u16>(128 * p.k), *out = allocate<u16>(128 * 2 * p.n);
    fill<<<1024, 256>>>(x, 128 * p.k, 9, 1.f);
    auto report = [&](const char *what, double us) { printf("%-8s %8.2f us  %5.2f TB/s\n", what, us, count * 2.0 / us / 1e6); };
    report("own", time_chain([&](cudaStream_t s, int l) { launch(s, p, out, w[l], x, m); }));
    Library library;
    double best = 1e9;
    for (int candidate = 0; candidate < 8; candidate++) {
        if (!library.run(0, m, 2 * p.n, p.k, x, w[0], out, candidate)) break;
        best = std::min(best, time_chain([&](cudaStream_t s, int l) { library.run(s, m, 2 * p.n, p.k, x, w[l], out, candidate); }));
    }
    report("library", best);
    return 0;
}
