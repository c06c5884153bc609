/*
 * moe_cuda.hpp - the layer of moe_layer.hpp with rows, experts and sums in GPU memory.
 *
 * The router stays on the host, in double: choices must not depend on rounding. Its choices and
 * weights go up, the tokens go up as floats; everything between is on the GPU: dispatch, the rows
 * of each expert gathered, the products of all experts by cuBLAS in one call each, the sums of a
 * row's choices, combine. Blocking calls of MPIX_Ep_* are ordered with the default stream, on which
 * the kernels and cuBLAS work.
 */
#ifndef EXAMPLES_MOE_CUDA_HPP
#define EXAMPLES_MOE_CUDA_HPP

#include "moe_cublas.hpp"
#include "moe_kernels.hpp"
#include "moe_layer.hpp"

namespace moe {

/** This rank's GPU: the ranks of a host take them in turn. */
inline void use_gpu(MPI_Comm comm) {
    MPI_Comm host;
    int devices = 0, rank = 0;
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        throw std::runtime_error(
            std::string("--memory cuda: no GPU can be used: ") +
            cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error));
    gpu::check(cudaSetDevice(rank % devices), "cudaSetDevice");
}

/** The experts of one rank on its GPU: as Experts. */
class CudaExperts {
public:
    explicit CudaExperts(const ExpertWeights &weights)
        : count_(weights.count), hidden_(weights.hidden), inner_(weights.inner),
          host_gradient_(weights) {
        gate_.set(weights.gate);
        up_.set(weights.up);
        down_.set(weights.down);
        for (gpu::Buffer<float> *gradient : {&dgate_, &dup_, &ddown_})
            gradient->resize(weights.gate.size());
    }

    std::size_t count() const { return count_; }

    void forward(const std::vector<std::size_t> &offset, const float *x, float *out) {
        const std::size_t n = offset[count_] * inner_;
        for (gpu::Buffer<float> *buffer : {&gate_x_, &up_x_, &act_})
            buffer->resize(n);
        rows_by(false, false, 0, offset, inner_, hidden_, x, gate_, gate_x_.data());
        rows_by(false, false, 0, offset, inner_, hidden_, x, up_, up_x_.data());
        gpu::swiglu(gate_x_.data(), up_x_.data(), n, act_.data());
        rows_by(false, false, 0, offset, hidden_, inner_, act_.data(), down_, out);
    }

    /** As Experts::backward; dweight is in GPU memory too. */
    void backward(const std::vector<std::size_t> &offset, const float *x, const float *dy,
                  const float *weight, float *dx, float *dweight) {
        const std::size_t rows = offset[count_], matrices = count_ * hidden_ * inner_;
        dgate_x_.resize(rows * inner_);
        dup_x_.resize(rows * inner_);
        for (const gpu::Buffer<float> *gradient :
             {&dgate_, &dup_, &ddown_}) /* experts without rows */
            gpu::check(cudaMemset(gradient->data(), 0, matrices * sizeof(float)), "cudaMemset");
        rows_by(false, true, 0, offset, inner_, hidden_, dy, down_, dgate_x_.data());
        gpu::swiglu_backward(gate_x_.data(), up_x_.data(), weight, rows, inner_, act_.data(),
                             dgate_x_.data(), dup_x_.data(), dweight);
        over_rows(offset, inner_, act_.data(), hidden_, dy, ddown_);
        over_rows(offset, hidden_, x, inner_, dgate_x_.data(), dgate_);
        over_rows(offset, hidden_, x, inner_, dup_x_.data(), dup_);
        rows_by(false, true, 0, offset, hidden_, inner_, dgate_x_.data(), gate_, dx);
        rows_by(false, true, 1, offset, hidden_, inner_, dup_x_.data(), up_, dx);
    }

    /** Of the last backward. */
    const ExpertWeights &gradient() {
        dgate_.get(host_gradient_.gate.data(), host_gradient_.gate.size());
        dup_.get(host_gradient_.up.data(), host_gradient_.up.size());
        ddown_.get(host_gradient_.down.data(), host_gradient_.down.size());
        return host_gradient_;
    }

private:
    /** out [rows][n] = in [rows][k] op(matrix of the row's expert) + beta out. */
    void rows_by(bool ta, bool tb, float beta, const std::vector<std::size_t> &offset,
                 std::size_t n, std::size_t k, const float *in, const gpu::Buffer<float> &matrix,
                 float *out) {
        std::vector<gpu::Product> group;
        for (std::size_t e = 0; e < count_; e++)
            group.push_back({offset[e + 1] - offset[e], n, k, in + offset[e] * k,
                             matrix.data() + e * n * k, out + offset[e] * n});
        blas_.run(ta, tb, beta, group);
    }
    /** matrix of each expert [m][n] = a [its rows][m]^T b [its rows][n]. */
    void over_rows(const std::vector<std::size_t> &offset, std::size_t m, const float *a,
                   std::size_t n, const float *b, const gpu::Buffer<float> &matrix) {
        std::vector<gpu::Product> group;
        for (std::size_t e = 0; e < count_; e++)
            group.push_back({m, n, offset[e + 1] - offset[e], a + offset[e] * m, b + offset[e] * n,
                             matrix.data() + e * m * n});
        blas_.run(true, false, 0, group);
    }

    std::size_t count_, hidden_, inner_;
    gpu::Blas blas_;
    gpu::Buffer<float> gate_, up_, down_, dgate_, dup_, ddown_; /* weights, and their gradients */
    gpu::Buffer<float> gate_x_, up_x_, act_, dgate_x_, dup_x_;  /* [rows][inner] */
    ExpertWeights host_gradient_;
};

class CudaLayer {
public:
    /** As Layer; call use_gpu first. */
    CudaLayer(MPI_Comm comm, const LayerConfig &config, Router router, const ExpertWeights &weights)
        : router_(std::move(router)), experts_(weights), hidden_(weights.hidden),
          topk_(static_cast<std::size_t>(router_.topk())),
          exchange_(comm, config, MPIX_EP_CUDA, router_, hidden_, weights.count) {
        floats_.resize(config.max_tokens * hidden_);
        send_.resize(config.max_tokens * exchange_.row_bytes());
        result_.resize(config.max_tokens * hidden_);
        ids_.resize(config.max_tokens * topk_);
        weights_.resize(config.max_tokens * topk_);
        slots_.resize(config.max_tokens * topk_);
        host_result_.resize(config.max_tokens * hidden_);
        host_slots_.resize(config.max_tokens * topk_);
    }

    const Router &router() const { return router_; }
    const ExpertWeights &gradient() { return experts_.gradient(); }
    const Times &times() const { return times_; }

    /** As Layer::forward: x and the result are in host memory. */
    const float *forward(const float *x, std::size_t tokens) {
        double t = MPI_Wtime();
        router_.forward(x, tokens);
        ids_.set(router_.ids(), tokens * topk_);
        weights_.set(router_.weights(), tokens * topk_);
        lap(times_.router, t);
        if (exchange_.route(ids_.data(), tokens))
            grow();
        lap(times_.route, t);
        dispatch(x, exchange_.received, {weights_.data(), row_weights_.data(), local_ids_.data()});
        take_offsets();
        lap(times_.dispatch, t);
        if (!exchange_.expert())
            gpu::sort(local_ids_.data(), choices(), experts_.count(), first_.data(), place_.data(),
                      choice_.data());
        gather(exchange_.received, x_);
        out_.resize(exchange_.sorted() * hidden_);
        experts_.forward(exchange_.offset(), x_.data(), out_.data());
        scatter(true);
        lap(times_.experts, t);
        combine({weights_.data(), row_weights_.data(), result_.data(), nullptr});
        lap(times_.combine, t);
        return host_result_.data();
    }

    /** As Layer::backward. */
    const float *backward(const float *dy) {
        const std::size_t sorted = exchange_.sorted();
        dispatch(dy, exchange_.received_dy, {});
        gather(exchange_.received_dy, dy_);
        out_.resize(sorted * hidden_);
        dweights_.resize(sorted);
        const float *weights = row_weights_.data();
        if (!exchange_.expert()) {
            sorted_weights_.resize(sorted);
            gpu::gather_values(row_weights_.data(), choice_.data(), sorted, sorted_weights_.data());
            weights = sorted_weights_.data();
        }
        experts_.backward(exchange_.offset(), x_.data(), dy_.data(), weights, out_.data(),
                          dweights_.data());
        scatter(false);
        if (!exchange_.expert())
            gpu::scatter_values(dweights_.data(), place_.data(), choices(),
                                exchange_.row_slots.data());
        else
            gpu::check(cudaMemcpy(exchange_.row_slots.data(), dweights_.data(),
                                  sorted * sizeof(float), cudaMemcpyDeviceToDevice),
                       "cudaMemcpy");
        combine({nullptr, nullptr, result_.data(), slots_.data()});
        slots_.get(host_slots_.data(), exchange_.tokens() * topk_);
        router_.backward(exchange_.tokens(), host_slots_.data(), host_result_.data());
        return host_result_.data();
    }

private:
    /** Until here, what was asked of the GPU is done. */
    static void lap(double &phase, double &since) {
        gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        moe::lap(phase, since);
    }

    std::size_t choices() const { return exchange_.rows() * topk_; }

    void grow() {
        row_weights_.resize(exchange_.cells());
        local_ids_.resize(exchange_.cells());
        place_.resize(exchange_.cells());
    }

    /** Where each expert's rows begin, for the kernels. */
    void take_offsets() {
        const std::vector<std::size_t> &offset = exchange_.offset();
        first_.set(std::vector<std::int64_t>(offset.begin(), offset.end()));
        choice_.resize(exchange_.sorted());
    }

    void dispatch(const float *rows, const mpix::memory<char> &received,
                  const Exchange::Beside &beside) {
        const std::size_t n = exchange_.tokens() * hidden_;
        floats_.set(rows, n);
        gpu::store(floats_.data(), n, send_.data(), exchange_.bf16());
        exchange_.dispatch(send_.data(), received, beside);
    }

    /** The received rows as floats sorted by expert. */
    void gather(const mpix::memory<char> &received, gpu::Buffer<float> &buffer) {
        const std::size_t sorted = exchange_.sorted();
        buffer.resize(sorted * hidden_);
        if (exchange_.expert())
            gpu::load(received.data(), sorted * hidden_, buffer.data(), exchange_.bf16());
        else
            gpu::gather_rows(received.data(), exchange_.bf16(), choice_.data(), topk_, sorted,
                             hidden_, buffer.data());
    }

    /** As Layer::scatter. */
    void scatter(bool weighted) {
        char *to = exchange_.computed.data();
        if (exchange_.expert())
            gpu::store(out_.data(), exchange_.sorted() * hidden_, to, exchange_.bf16());
        else
            gpu::scatter_rows(out_.data(), place_.data(), weighted ? row_weights_.data() : nullptr,
                              exchange_.rows(), topk_, hidden_, to, exchange_.bf16());
    }

    void combine(const Exchange::Sums &sums) {
        exchange_.combine(sums);
        result_.get(host_result_.data(), exchange_.tokens() * hidden_);
    }

    Router router_;
    CudaExperts experts_;
    std::size_t hidden_, topk_;
    Exchange exchange_;
    gpu::Buffer<float> floats_, result_, weights_, slots_; /* [max_tokens] rows, or choices */
    gpu::Buffer<char> send_;
    gpu::Buffer<std::int32_t> ids_;
    gpu::Buffer<int> local_ids_;
    gpu::Buffer<float> row_weights_;
    gpu::Buffer<std::int64_t> first_, place_, choice_;            /* offsets; see moe_kernels.hpp */
    gpu::Buffer<float> x_, dy_, out_, sorted_weights_, dweights_; /* sorted by expert */
    std::vector<float> host_result_, host_slots_;
    Times times_;
};

} // namespace moe

#endif
