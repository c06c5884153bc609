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
    ep::check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
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
        /* experts without rows */
        for (const gpu::Buffer<float> *gradient : {&dgate_, &dup_, &ddown_})
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
        : comm_(comm), config_(config), router_(std::move(router)), experts_(weights),
          hidden_(weights.hidden), topk_(static_cast<std::size_t>(router_.topk())),
          element_(config.dtype == MPIX_EP_BF16 ? 2 : 4),
          ep_(comm, ep_config(config, router_, hidden_)), handle_(ep_), received_(ep_),
          received_dy_(ep_), computed_(ep_), row_slots_(ep_) {
        floats_.resize(config.max_tokens * hidden_);
        send_.resize(config.max_tokens * hidden_ * element_);
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
        tokens_ = tokens;
        router_.forward(x, tokens);
        ids_.set(router_.ids(), tokens * topk_);
        weights_.set(router_.weights(), tokens * topk_);
        lap(times_.router, t);
        route();
        lap(times_.route, t);
        dispatch(x, received_, true);
        lap(times_.dispatch, t);
        if (!expert())
            gpu::sort(local_ids_.data(), rows_ * topk_, experts_.count(), first_.data(),
                      place_.data(), choice_.data());
        gather(received_, x_);
        out_.resize(sorted() * hidden_);
        experts_.forward(offset_, x_.data(), out_.data());
        scatter(true);
        lap(times_.experts, t);
        combine(true, false);
        lap(times_.combine, t);
        return host_result_.data();
    }

    /** As Layer::backward. */
    const float *backward(const float *dy) {
        dispatch(dy, received_dy_, false);
        gather(received_dy_, dy_);
        out_.resize(sorted() * hidden_);
        dweights_.resize(sorted());
        const float *weights = row_weights_.data();
        if (!expert()) {
            sorted_weights_.resize(sorted());
            gpu::gather_values(row_weights_.data(), choice_.data(), sorted(),
                               sorted_weights_.data());
            weights = sorted_weights_.data();
        }
        experts_.backward(offset_, x_.data(), dy_.data(), weights, out_.data(), dweights_.data());
        scatter(false);
        if (!expert())
            gpu::scatter_values(dweights_.data(), place_.data(), rows_ * topk_, row_slots_.data());
        else
            gpu::check(cudaMemcpy(row_slots_.data(), dweights_.data(), sorted() * sizeof(float),
                                  cudaMemcpyDeviceToDevice),
                       "cudaMemcpy");
        combine(false, true);
        router_.backward(tokens_, host_slots_.data(), host_result_.data());
        return host_result_.data();
    }

private:
    static MPIX_Ep_config ep_config(const LayerConfig &config, const Router &router,
                                    std::size_t hidden) {
        MPIX_Ep_config c = Layer::ep_config(config, router, hidden);
        c.memkind = MPIX_EP_CUDA;
        return c;
    }

    /** Until here, what was asked of the GPU is done. */
    static void lap(double &phase, double &since) {
        gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        Layer::lap(phase, since);
    }

    bool bf16() const { return config_.dtype == MPIX_EP_BF16; }
    std::size_t sorted() const { return offset_.back(); }
    bool expert() const { return config_.layout == MPIX_EP_EXPERT; }
    bool low_latency() const { return config_.mode == MPIX_EP_LL; }

    void route() {
        MPIX_Ep_routing routing;
        MPIX_INIT(&routing);
        routing.num_tokens = static_cast<MPI_Count>(tokens_);
        routing.topk = router_.topk();
        routing.ids = ids_.data();

        std::vector<MPI_Count> offset(experts_.count() + 1);
        MPI_Count total = 0;
        MPIX_Ep_counts counts;
        MPIX_INIT(&counts);
        if (low_latency()) { /* what comes is known after dispatch */
            ep::check(MPIX_Ep_route(handle_, &routing, nullptr), "MPIX_Ep_route");
            rows_ = Layer::most_rows(comm_, config_, topk_, experts_.count());
            reserve();
            return;
        }
        counts.recv_total = &total;
        (expert() ? counts.expert_offset : counts.recv_per_expert) = offset.data();
        ep::check(MPIX_Ep_route(handle_, &routing, &counts), "MPIX_Ep_route");
        rows_ = static_cast<std::size_t>(total);
        take_offsets(offset);
        reserve();
    }

    /** As Layer::sorted. */
    void take_offsets(std::vector<MPI_Count> &offset) {
        if (!expert()) {
            MPI_Count sum = 0;
            for (MPI_Count &n : offset)
                sum += std::exchange(n, sum);
        }
        offset_.assign(offset.begin(), offset.end());
        first_.set(std::vector<std::int64_t>(offset.begin(), offset.end()));
        choice_.resize(sorted());
    }

    /** As Layer::reserve. */
    void reserve() {
        int grow = rows_ > capacity_, any = 0;
        ep::check_mpi(MPI_Allreduce(&grow, &any, 1, MPI_INT, MPI_MAX, comm_), "MPI_Allreduce");
        if (any) {
            capacity_ = std::max({capacity_, rows_ + rows_ / 8, std::size_t{1}});
            const std::size_t choices = capacity_ * (expert() ? 1 : topk_);
            received_.resize(capacity_ * hidden_ * element_);
            received_dy_.resize(capacity_ * hidden_ * element_);
            computed_.resize(capacity_ * hidden_ * element_);
            row_slots_.resize(choices);
            row_weights_.resize(choices);
            local_ids_.resize(choices);
            place_.resize(choices);
        }
    }

    void dispatch(const float *rows, const ep::Array<char> &received, bool routed) {
        floats_.set(rows, tokens_ * hidden_);
        gpu::store(floats_.data(), tokens_ * hidden_, send_.data(), bf16());
        MPIX_Ep_dispatch_in in;
        MPIX_INIT(&in);
        in.hidden = static_cast<MPI_Count>(hidden_);
        in.x.data = send_.data();
        in.x.dtype = config_.dtype;
        MPIX_Ep_dispatch_out out;
        MPIX_INIT(&out);
        out.capacity_rows = static_cast<MPI_Count>(capacity_);
        out.x.data = received.data();
        if (routed) {
            in.topk_weights = weights_.data();
            out.topk_weights = row_weights_.data();
            if (!expert())
                out.local_ids = local_ids_.data();
        }
        std::vector<MPI_Count> offset(experts_.count() + 1);
        if (low_latency() && routed)
            (expert() ? out.expert_offset : out.recv_per_expert) = offset.data();
        ep::check(MPIX_Ep_dispatch(handle_, &in, &out), "MPIX_Ep_dispatch");
        if (low_latency() && routed) {
            take_offsets(offset);
            if (expert())
                rows_ = sorted();
        }
    }

    /** The received rows as floats sorted by expert. */
    void gather(const ep::Array<char> &received, gpu::Buffer<float> &buffer) {
        buffer.resize(sorted() * hidden_);
        if (expert())
            gpu::load(received.data(), sorted() * hidden_, buffer.data(), bf16());
        else
            gpu::gather_rows(received.data(), bf16(), choice_.data(), topk_, sorted(), hidden_,
                             buffer.data());
    }

    /** As Layer::scatter. */
    void scatter(bool weighted) {
        if (expert())
            gpu::store(out_.data(), sorted() * hidden_, computed_.data(), bf16());
        else
            gpu::scatter_rows(out_.data(), place_.data(), weighted ? row_weights_.data() : nullptr,
                              rows_, topk_, hidden_, computed_.data(), bf16());
    }

    void combine(bool weighted, bool with_slots) {
        MPIX_Ep_combine_in in;
        MPIX_INIT(&in);
        in.hidden = static_cast<MPI_Count>(hidden_);
        in.x.data = computed_.data();
        in.x.dtype = config_.dtype;
        if (weighted && expert() && low_latency())
            in.row_weights = row_weights_.data();
        else if (weighted && expert())
            in.topk_weights = weights_.data();
        if (with_slots)
            in.slot_values = row_slots_.data();
        MPIX_Ep_combine_out out;
        MPIX_INIT(&out);
        out.y.data = result_.data();
        out.y.dtype = MPIX_EP_F32;
        if (with_slots)
            out.slot_values = slots_.data();
        ep::check(MPIX_Ep_combine(handle_, &in, &out), "MPIX_Ep_combine");
        result_.get(host_result_.data(), tokens_ * hidden_);
        if (with_slots)
            slots_.get(host_slots_.data(), tokens_ * topk_);
    }

    MPI_Comm comm_;
    LayerConfig config_;
    Router router_;
    CudaExperts experts_;
    std::size_t hidden_, topk_, element_;
    ep::Context ep_;
    ep::Handle handle_;
    ep::Array<char> received_, received_dy_, computed_; /* peers reach these */
    ep::Array<float> row_slots_;
    gpu::Buffer<float> floats_, result_, weights_, slots_; /* [max_tokens] rows, or choices */
    gpu::Buffer<char> send_;
    gpu::Buffer<std::int32_t> ids_;
    gpu::Buffer<int> local_ids_;
    gpu::Buffer<float> row_weights_;
    gpu::Buffer<std::int64_t> first_, place_, choice_;            /* offset_; see moe_kernels.hpp */
    gpu::Buffer<float> x_, dy_, out_, sorted_weights_, dweights_; /* sorted by expert */
    std::size_t tokens_ = 0, rows_ = 0, capacity_ = 0;
    std::vector<std::size_t> offset_;
    std::vector<float> host_result_, host_slots_;
    Times times_;
};

} // namespace moe

#endif
