/*
 * moe_experts.hpp - the experts of one rank: SwiGLU networks through a BLAS.
 *
 *     o = (silu(x Wgate) * (x Wup)) Wdown
 *
 * Rows come sorted by expert: expert e has rows offset[e] .. offset[e + 1] - 1, so an expert is a
 * few matrix products.
 */
#ifndef EXAMPLES_MOE_EXPERTS_HPP
#define EXAMPLES_MOE_EXPERTS_HPP

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

/* Each rank is one thread of computation; a BLAS that starts as many threads as there are cores in
 * every rank would only get in its own way. These are there if the BLAS that the program runs with
 * is OpenBLAS or MKL. */
extern "C" {
void openblas_set_num_threads(int threads) __attribute__((weak));
void MKL_Set_Num_Threads(int threads) __attribute__((weak));
}

namespace moe {

/** Returns whether the BLAS could be told; otherwise it is up to OMP_NUM_THREADS and the like. */
inline bool blas_use_one_thread() {
    if (MKL_Set_Num_Threads)
        MKL_Set_Num_Threads(1);
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    return MKL_Set_Num_Threads || openblas_set_num_threads;
}

/** C [m][n] = alpha op(A) op(B) + beta C, all row-major and dense. */
inline void gemm(bool ta, bool tb, std::size_t m, std::size_t n, std::size_t k, const float *a,
                 const float *b, float beta, float *c) {
    const int im = static_cast<int>(m), in = static_cast<int>(n), ik = static_cast<int>(k);
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, im,
                in, ik, 1.0f, a, ta ? im : ik, b, tb ? ik : in, beta, c, in);
}

struct ExpertWeights {
    std::size_t count = 0, hidden = 0, inner = 0;
    std::vector<float> gate, up; /* [count][hidden][inner] */
    std::vector<float> down;     /* [count][inner][hidden] */
};

class Experts {
public:
    explicit Experts(ExpertWeights weights) : w_(std::move(weights)), g_(w_) {}

    const ExpertWeights &weights() const { return w_; }
    const ExpertWeights &gradient() const { return g_; }

    /** x, out: [offset[count]][hidden]. Keeps what backward needs; backward wants the
     * same x again. */
    void forward(const std::vector<std::size_t> &offset, const float *x, float *out) {
        const std::size_t rows = offset[w_.count], h = w_.hidden, f = w_.inner;
        gate_.resize(rows * f);
        up_.resize(rows * f);
        act_.resize(rows * f);
        for (std::size_t e = 0; e < w_.count; e++) {
            const std::size_t n = offset[e + 1] - offset[e], r = offset[e];
            if (n == 0)
                continue;
            gemm(false, false, n, f, h, x + r * h, &w_.gate[e * h * f], 0, &gate_[r * f]);
            gemm(false, false, n, f, h, x + r * h, &w_.up[e * h * f], 0, &up_[r * f]);
            for (std::size_t i = r * f; i < (r + n) * f; i++)
                act_[i] = gate_[i] / (1.0f + std::exp(-gate_[i])) * up_[i];
            gemm(false, false, n, h, f, &act_[r * f], &w_.down[e * h * f], 0, out + r * h);
        }
    }

    /**
     * dy: for each row the derivative by the layer's output of its token; weight: the row's weight
     * in that output. Sets dx, the experts' gradients, and dweight[row] = dy . out[row], the
     * derivative by the weight.
     */
    void backward(const std::vector<std::size_t> &offset, const float *x, const float *dy,
                  const float *weight, float *dx, float *dweight) {
        const std::size_t rows = offset[w_.count], h = w_.hidden, f = w_.inner;
        dgate_.resize(rows * f);
        dup_.resize(rows * f);
        /* an expert without rows has the gradient zero */
        for (auto *gradient : {&g_.gate, &g_.up, &g_.down})
            std::fill(gradient->begin(), gradient->end(), 0.0f);
        for (std::size_t e = 0; e < w_.count; e++) {
            const std::size_t n = offset[e + 1] - offset[e], r = offset[e], m = e * h * f;
            if (n == 0)
                continue;
            float *dact = &dgate_[r * f]; /* dy Wdown^T, turned into dgate in place */
            gemm(false, true, n, f, h, dy + r * h, &w_.down[m], 0, dact);
            for (std::size_t row = r; row < r + n; row++)
                dweight[row] = row_backward(row, weight[row]);
            /* act_ holds weight * act now */
            gemm(true, false, f, h, n, &act_[r * f], dy + r * h, 0, &g_.down[m]);
            gemm(true, false, h, f, n, x + r * h, &dgate_[r * f], 0, &g_.gate[m]);
            gemm(true, false, h, f, n, x + r * h, &dup_[r * f], 0, &g_.up[m]);
            gemm(false, true, n, h, f, &dgate_[r * f], &w_.gate[m], 0, dx + r * h);
            gemm(false, true, n, h, f, &dup_[r * f], &w_.up[m], 1, dx + r * h);
        }
    }

private:
    /** Through the weight, the product and silu of one row. Returns dy . out = dy . (act Wdown) =
     * (dy Wdown^T) . act */
    float row_backward(std::size_t row, float weight) {
        const std::size_t f = w_.inner;
        double dot = 0;
        for (std::size_t i = row * f; i < (row + 1) * f; i++) {
            const float dact = dgate_[i], sigmoid = 1.0f / (1.0f + std::exp(-gate_[i])),
                        silu = gate_[i] * sigmoid;
            const float act = silu * up_[i];
            dot += static_cast<double>(dact) * static_cast<double>(act);
            act_[i] = weight * act;
            dup_[i] = weight * dact * silu;
            dgate_[i] = weight * dact * up_[i] * sigmoid * (1.0f + gate_[i] * (1.0f - sigmoid));
        }
        return static_cast<float>(dot);
    }

    ExpertWeights w_, g_;
    std::vector<float> gate_, up_, act_; /* [rows][inner] x Wgate, x Wup, silu(gate) * up */
    std::vector<float> dgate_, dup_;
};

} // namespace moe

#endif
