/*
 * moe_cublas.hpp - matrix products of many experts in GPU memory, by cuBLAS in one call; and
 * memory of the GPU.
 *
 * cuBLAS is loaded when it is needed: the same program runs in host memory where there is no GPU.
 */
#ifndef EXAMPLES_MOE_CUBLAS_HPP
#define EXAMPLES_MOE_CUBLAS_HPP

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace moe {
namespace gpu {

inline void check(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

/** Memory of the GPU that only grows. */
template <class T> class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { cudaFree(data_); }

    /** Room for count elements; what was there is lost if the buffer grows. */
    void resize(std::size_t count) {
        if (count <= count_ && data_)
            return;
        check(cudaFree(data_), "cudaFree");
        data_ = nullptr;
        check(cudaMalloc(&data_, (count + 1) * sizeof(T)), "cudaMalloc");
        count_ = count;
    }
    void set(const T *from, std::size_t count) {
        resize(count);
        check(cudaMemcpy(data_, from, count * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    void set(const std::vector<T> &from) { set(from.data(), from.size()); }
    void get(T *to, std::size_t count) const {
        check(cudaMemcpy(to, data_, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    T *data() const { return static_cast<T *>(data_); }

private:
    void *data_ = nullptr;
    std::size_t count_ = 0;
};

/** One product of a group, row-major and dense: C [m][n] = op(A) op(B) + beta C. */
struct Product {
    std::size_t m, n, k;
    const float *a, *b;
    float *c;
};

class Blas {
public:
    Blas() {
        const std::string file = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
        void *lib = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
#ifdef MOE_CUDA_LIBS
        if (!lib)
            lib = dlopen((MOE_CUDA_LIBS "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
#endif
        if (!lib)
            throw std::runtime_error("--memory cuda: " + file +
                                     " can't be loaded (is its folder in LD_LIBRARY_PATH?)");
        find(lib, "cublasDestroy_v2", destroy_);
#if CUBLAS_VERSION >= 120500
        find(lib, "cublasSgemmGroupedBatched", grouped_);
#else
        find(lib, "cublasSgemm_v2", gemm_);
#endif
        decltype(&cublasCreate_v2) create;
        find(lib, "cublasCreate_v2", create);
        done(create(&handle_), "cublasCreate");
    }
    ~Blas() { destroy_(handle_); }
    Blas(const Blas &) = delete;
    Blas &operator=(const Blas &) = delete;

    /** All products of the group. Empty ones leave C alone, also where k = 0. */
    void run(bool ta, bool tb, float beta, const std::vector<Product> &group) {
        std::vector<Product> some;
        for (const Product &p : group)
            if (p.m > 0 && p.n > 0 && p.k > 0)
                some.push_back(p);
        if (!some.empty())
            multiply(ta, tb, beta, some);
    }

private:
    template <class F> static void find(void *lib, const char *name, F &function) {
        void *p = dlsym(lib, name);
        if (!p)
            throw std::runtime_error(std::string("cuBLAS lacks ") + name);
        function = reinterpret_cast<F>(p);
    }
    static void done(cublasStatus_t status, const char *call) {
        if (status != CUBLAS_STATUS_SUCCESS)
            throw std::runtime_error(std::string(call) + ": cuBLAS status " +
                                     std::to_string(static_cast<int>(status)));
    }

    /* cuBLAS is column-major: a row-major matrix is its transpose there, and C^T =
     * op(B)^T op(A)^T. */
#if CUBLAS_VERSION >= 120500
    void multiply(bool ta, bool tb, float beta, const std::vector<Product> &group) {
        const std::size_t n = group.size();
        std::vector<cublasOperation_t> opa(n, tb ? CUBLAS_OP_T : CUBLAS_OP_N),
            opb(n, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
        std::vector<int> m, cols, k, lda, ldb, ldc, one(n, 1);
        std::vector<float> alpha(n, 1.0f), betas(n, beta);
        std::vector<const void *> pointers(3 * n);
        for (std::size_t i = 0; i < n; i++) {
            const Product &p = group[i];
            m.push_back(static_cast<int>(p.n));
            cols.push_back(static_cast<int>(p.m));
            k.push_back(static_cast<int>(p.k));
            lda.push_back(static_cast<int>(tb ? p.k : p.n));
            ldb.push_back(static_cast<int>(ta ? p.m : p.k));
            ldc.push_back(static_cast<int>(p.n));
            pointers[i] = p.b;
            pointers[n + i] = p.a;
            pointers[2 * n + i] = p.c;
        }
        pointers_.set(pointers);
        const float *const *a = as<const float>(0), *const *b = as<const float>(n);
        float *const *c = as<float>(2 * n);
        done(grouped_(handle_, opa.data(), opb.data(), m.data(), cols.data(), k.data(),
                      alpha.data(), a, lda.data(), b, ldb.data(), betas.data(), c, ldc.data(),
                      static_cast<int>(n), one.data()),
             "cublasSgemmGroupedBatched");
    }
    template <class T> T *const *as(std::size_t first) const {
        return reinterpret_cast<T *const *>(static_cast<void *>(pointers_.data() + first));
    }
    decltype(&cublasSgemmGroupedBatched) grouped_;
    Buffer<const void *> pointers_;
#else
    void multiply(bool ta, bool tb, float beta, const std::vector<Product> &group) {
        const float one = 1.0f;
        for (const Product &p : group)
            done(gemm_(handle_, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                       static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k), &one,
                       p.b, static_cast<int>(tb ? p.k : p.n), p.a, static_cast<int>(ta ? p.m : p.k),
                       &beta, p.c, static_cast<int>(p.n)),
                 "cublasSgemm");
    }
    decltype(&cublasSgemm_v2) gemm_;
#endif
    decltype(&cublasDestroy_v2) destroy_;
    cublasHandle_t handle_ = nullptr;
};

} // namespace gpu
} // namespace moe

#endif
