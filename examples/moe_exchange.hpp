/*
 * moe_exchange.hpp - what of an expert-parallel layer is alike in host and GPU memory: a context,
 * the memory that peers reach, and the calls that bring rows to the experts and sums back.
 */
#ifndef EXAMPLES_MOE_EXCHANGE_HPP
#define EXAMPLES_MOE_EXCHANGE_HPP

#include "mpix_ep.hpp"
#include "moe_router.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace moe {

/** Turns an error code of MPI into an exception. */
inline void check_mpi(int code, const char *call) {
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(call) + ": " + text);
}

struct LayerConfig {
    int mode = MPIX_EP_HT;
    int layout = MPIX_EP_COMPACT;
    /** Of rows on their way: MPIX_EP_F32 or MPIX_EP_BF16. Computation is in float either way. */
    int dtype = MPIX_EP_F32;
    std::size_t max_tokens = 0; /* most tokens of any rank, equal on all ranks */
};

/** Seconds that the phases of the last forward took on this rank. */
struct Times {
    double router = 0, route = 0, dispatch = 0, experts = 0, combine = 0;
};

inline void lap(double &phase, double &since) {
    const double now = MPI_Wtime();
    phase = now - since;
    since = now;
}

class Exchange {
public:
    /** Collective. memory: MPIX_EP_HOST or MPIX_EP_CUDA; experts: how many this rank has. */
    Exchange(MPI_Comm comm, const LayerConfig &config, int memory, const Router &router,
             std::size_t hidden, std::size_t experts)
        : comm_(comm), config_(config), hidden_(hidden),
          topk_(static_cast<std::size_t>(router.topk())), experts_(experts),
          ep_(comm, settings(config, memory, router, hidden)), handle_(ep_) {}

    bool expert() const { return config_.layout == MPIX_EP_EXPERT; }
    bool low_latency() const { return config_.mode == MPIX_EP_LL; }
    bool bf16() const { return config_.dtype == MPIX_EP_BF16; }
    std::size_t hidden() const { return hidden_; }
    std::size_t topk() const { return topk_; }
    std::size_t row_bytes() const { return hidden_ * (bf16() ? 2 : 4); }
    std::size_t max_tokens() const { return config_.max_tokens; }
    /** Of the last batch: tokens here, rows received, and where each expert's begin when sorted. */
    std::size_t tokens() const { return tokens_; }
    std::size_t rows() const { return rows_; }
    std::size_t sorted() const { return offset_.back(); }
    const std::vector<std::size_t> &offset() const { return offset_; }
    /** Cells of arrays with one per row, or (not EXPERT) per row and choice. */
    std::size_t cells() const { return capacity_ * (expert() ? 1 : topk_); }

    template <class T> mpix::memory<T> alloc(std::size_t count) { return ep_.alloc<T>(count); }
    /** Gives memory another size; what it held is lost. All ranks do it in the same order. */
    template <class T> void resize(mpix::memory<T> &memory, std::size_t count) {
        if (memory.data())
            memory.dealloc();
        memory = ep_.alloc<T>(count);
    }

    /** Routes the choices; true: there is more room than before, so arrays must
     * grow. Collective. */
    bool route(const std::int32_t *ids, std::size_t tokens) {
        mpix::routing routing;
        routing.num_tokens = static_cast<MPI_Count>(tokens);
        routing.topk = static_cast<int>(topk_);
        routing.ids = ids;
        tokens_ = tokens;
        if (low_latency()) { /* what comes is known after dispatch */
            handle_.route(routing);
            rows_ = most_rows();
            return reserve();
        }
        std::vector<MPI_Count> offset(experts_ + 1);
        MPI_Count total = 0;
        mpix::counts counts;
        counts.recv_total = &total;
        (expert() ? counts.expert_offset : counts.recv_per_expert) = offset.data();
        handle_.route(routing, &counts);
        rows_ = static_cast<std::size_t>(total);
        take_offsets(offset);
        return reserve();
    }

    /** What travels with the rows and where it goes; nothing, where rows of a routing
     * follow others. */
    struct Beside {
        const float *weights = nullptr; /* [tokens][topk] */
        float *row_weights = nullptr;   /* [cells] */
        int *local_ids = nullptr;       /* [cells], not in EXPERT */
    };

    void dispatch(const void *rows, const mpix::memory<char> &received, const Beside &beside) {
        mpix::dispatch_in in;
        in.hidden = static_cast<MPI_Count>(hidden_);
        in.x.data = const_cast<void *>(rows);
        in.x.dtype = config_.dtype;
        in.topk_weights = beside.weights;
        mpix::dispatch_out out;
        out.capacity_rows = static_cast<MPI_Count>(capacity_);
        out.x.data = received.data();
        out.topk_weights = beside.row_weights;
        out.local_ids = expert() ? nullptr : beside.local_ids;
        std::vector<MPI_Count> offset(experts_ + 1);
        const bool counted = low_latency() && beside.weights;
        if (counted)
            (expert() ? out.expert_offset : out.recv_per_expert) = offset.data();
        handle_.dispatch(in, out);
        if (!counted)
            return;
        take_offsets(offset);
        if (expert())
            rows_ = sorted();
    }

    /** What weights the rows in EXPERT, and where the sums go. */
    struct Sums {
        const float *topk_weights = nullptr, *row_weights = nullptr; /* LL takes the latter */
        float *y = nullptr;
        float *slots = nullptr; /* [tokens][topk], of row_slots(), or none */
    };

    /** Sums the rows of computed(); sums are in float: no reason to round them. */
    void combine(const Sums &sums) {
        mpix::combine_in in;
        in.hidden = static_cast<MPI_Count>(hidden_);
        in.x.data = computed.data();
        in.x.dtype = config_.dtype;
        if (expert())
            (low_latency() ? in.row_weights : in.topk_weights) = low_latency() ? sums.row_weights
                                                                               : sums.topk_weights;
        if (sums.slots)
            in.slot_values = row_slots.data();
        mpix::combine_out out;
        out.y.data = sums.y;
        out.y.dtype = MPIX_EP_F32;
        out.slot_values = sums.slots;
        handle_.combine(in, out);
    }

private:
    static mpix::config settings(const LayerConfig &config, int memory, const Router &router,
                                 std::size_t hidden) {
        mpix::config c;
        c.mode = config.mode;
        c.layout = config.layout;
        c.memkind = memory;
        c.max_topk = router.topk();
        /* The rows between are zero: harmless in products. */
        c.expert_align = config.layout == MPIX_EP_EXPERT ? 8 : 0;
        c.num_experts = router.experts();
        c.max_tokens = static_cast<MPI_Count>(config.max_tokens);
        c.max_row_bytes = static_cast<MPI_Count>(hidden * (config.dtype == MPIX_EP_BF16 ? 2 : 4));
        return c;
    }

    /** Low latency: SLOTS has this many places; EXPERT at most so many rows. */
    std::size_t most_rows() const {
        int size = 1;
        check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
        const std::size_t sent = static_cast<std::size_t>(size) * config_.max_tokens;
        return expert() ? sent * std::min(topk_, experts_) + 8 * experts_ : sent;
    }

    /** Takes the offsets of the experts, or (not EXPERT) their numbers of rows. */
    void take_offsets(std::vector<MPI_Count> &offset) {
        MPI_Count sum = 0;
        for (MPI_Count &n : offset)
            if (!expert())
                sum += std::exchange(n, sum);
        offset_.assign(offset.begin(), offset.end());
    }

    /** Room for the rows of this routing. Allocation is collective, so all ranks grow when one has
     * to: some rows to spare keep that rare. A program that knows a bound sets max_recv_rows and
     * allocates once. */
    bool reserve() {
        int grow = rows_ > capacity_, any = 0;
        check_mpi(MPI_Allreduce(&grow, &any, 1, MPI_INT, MPI_MAX, comm_), "MPI_Allreduce");
        if (!any)
            return false;
        capacity_ = std::max({capacity_, rows_ + rows_ / 8, std::size_t{1}});
        resize(received, capacity_ * row_bytes());
        resize(received_dy, capacity_ * row_bytes());
        resize(computed, capacity_ * row_bytes());
        resize(row_slots, cells());
        return true;
    }

    MPI_Comm comm_;
    LayerConfig config_;
    std::size_t hidden_, topk_, experts_;
    mpix::ep ep_;
    mpix::handle handle_;
    std::size_t tokens_ = 0, rows_ = 0, capacity_ = 0;
    std::vector<std::size_t> offset_; /* [local experts + 1] first row of each among sorted ones */

public:
    mpix::memory<char> received, received_dy, computed; /* rows from dispatch, for combine */
    mpix::memory<float> row_slots;                      /* [cells], for combine */
};

} // namespace moe

#endif
