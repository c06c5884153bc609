/*
 * moe_layer.hpp - an expert-parallel mixture-of-experts layer, forward and backward.
 *
 * Tokens and experts are spread over the ranks; every rank holds the whole router.
 *
 *     forward    router -> route -> dispatch(x) -> experts -> combine -> y
 *     backward   dispatch(dy) -> experts' gradients -> combine -> dx, and by slot values the
 *                router's gradient
 *
 * The backward of combine is a dispatch and the backward of dispatch is a combine, with the routing
 * that is still in the handle.
 *
 * In COMPACT layout a rank gets a token once, whatever number of its experts the token chose: the
 * rank gathers the rows for each expert, weights the experts' outputs and sums them into one row.
 * In EXPERT layout the rows arrive sorted by expert, ready for the matrix products, and combine
 * weights and sums them.
 *
 * In the low-latency mode (MPIX_EP_LL) nothing is exchanged in route; how many rows there are is
 * known after dispatch, so memory is allocated once, for the worst case. SLOTS is used as COMPACT
 * is, with places that may be empty; in EXPERT the experts' rank weights the rows.
 */
#ifndef EXAMPLES_MOE_LAYER_HPP
#define EXAMPLES_MOE_LAYER_HPP

#include "ep_raii.hpp"
#include "moe_experts.hpp"
#include "moe_router.hpp"

#include <cstdint>
#include <cstring>

namespace moe {

inline float from_bf16(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

/** Rounds to nearest even. */
inline std::uint16_t to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value)
        /* rounding could turn a NaN into infinity */
        return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct LayerConfig {
    int mode = MPIX_EP_HT;
    int layout = MPIX_EP_COMPACT;
    int dtype = MPIX_EP_F32; /* of rows on their way: MPIX_EP_F32 or MPIX_EP_BF16. Computation is in
                              * float either way */
    std::size_t max_tokens = 0; /* most tokens of any rank, equal on all ranks */
};

/** Seconds that the phases of the last forward took on this rank. */
struct Times {
    double router = 0, route = 0, dispatch = 0, experts = 0, combine = 0;
};

class Layer {
public:
    /** Collective. experts: this rank's in MPIX_Ep's default placement; comm returns errors
     * (MPI_ERRORS_RETURN). */
    Layer(MPI_Comm comm, const LayerConfig &config, Router router, Experts experts)
        : comm_(comm), config_(config), router_(std::move(router)), experts_(std::move(experts)),
          hidden_(experts_.weights().hidden), topk_(static_cast<std::size_t>(router_.topk())),
          element_(config.dtype == MPIX_EP_BF16 ? 2 : 4),
          ep_(comm, ep_config(config, router_, hidden_)), handle_(ep_), send_(ep_), result_(ep_),
          slots_(ep_), received_(ep_), received_dy_(ep_), computed_(ep_), local_ids_(ep_),
          row_weights_(ep_), row_slots_(ep_) {
        send_.resize(config.max_tokens * hidden_ * element_);
        result_.resize(config.max_tokens * hidden_);
        slots_.resize(config.max_tokens * topk_);
    }

    const Router &router() const { return router_; }
    /** The experts' gradients of the last backward. */
    const ExpertWeights &gradient() const { return experts_.gradient(); }
    const Times &times() const { return times_; }

    /** x: [tokens][hidden] of this rank. Returns y: [tokens][hidden], the layer's until the next
     * call. Collective. */
    const float *forward(const float *x, std::size_t tokens) {
        double t = MPI_Wtime();
        tokens_ = tokens;
        router_.forward(x, tokens);
        lap(times_.router, t);
        route();
        lap(times_.route, t);
        dispatch(x, received_, true);
        lap(times_.dispatch, t);
        if (!expert())
            sort_by_expert();
        const float *in = gather(received_, x_);
        float *out = outputs();
        experts_.forward(offset_, in, out);
        scatter(out, true);
        lap(times_.experts, t);
        combine(true, false);
        lap(times_.combine, t);
        return result_.data();
    }

    /**
     * For the tokens of the last forward. x: as there; dy: [tokens][hidden], derivative by the
     * layer's output. Returns dx, the layer's until the next call, and sets the gradients of the
     * experts (of this rank) and of the router (what this rank's tokens contribute: sum it over the
     * ranks). Collective.
     */
    const float *backward(const float *dy) {
        dispatch(dy, received_dy_, false);
        /* x_ holds the experts' inputs still, unless they lie in received_ as they came. */
        const float *in = in_place() ? reinterpret_cast<const float *>(received_.data())
                                     : x_.data();
        const float *din = gather(received_dy_, dy_);
        float *out = outputs();
        experts_.backward(offset_, in, din, weights_by_row(), out, dweights_.data());
        scatter(out, false);
        slot_values();
        combine(false, true);
        router_.backward(tokens_, slots_.data(), result_.data());
        return result_.data();
    }

    static MPIX_Ep_config ep_config(const LayerConfig &config, const Router &router,
                                    std::size_t hidden) {
        MPIX_Ep_config c;
        MPIX_INIT(&c);
        c.mode = config.mode;
        c.layout = config.layout;
        c.max_topk = router.topk();
        /* the rows between are zero: harmless in products */
        c.expert_align = config.layout == MPIX_EP_EXPERT ? 8 : 0;
        c.num_experts = router.experts();
        c.max_tokens = static_cast<MPI_Count>(config.max_tokens);
        c.max_row_bytes = static_cast<MPI_Count>(hidden * (config.dtype == MPIX_EP_BF16 ? 2 : 4));
        return c;
    }

    /** Low latency: SLOTS has this many places; EXPERT at most so many rows. local: experts
     * of this rank. */
    static std::size_t most_rows(MPI_Comm comm, const LayerConfig &config, std::size_t topk,
                                 std::size_t local) {
        int size = 1;
        ep::check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
        const std::size_t sent = static_cast<std::size_t>(size) * config.max_tokens;
        return config.layout == MPIX_EP_EXPERT ? sent * std::min(topk, local) + 8 * local : sent;
    }

    static void lap(double &phase, double &since) {
        const double now = MPI_Wtime();
        phase = now - since;
        since = now;
    }

private:
    bool expert() const { return config_.layout == MPIX_EP_EXPERT; }
    bool low_latency() const { return config_.mode == MPIX_EP_LL; }

    /** Whether rows are used for computation where they lie: sorted, and float. */
    bool in_place() const { return expert() && config_.dtype == MPIX_EP_F32; }

    void route() {
        MPIX_Ep_routing routing;
        MPIX_INIT(&routing);
        routing.num_tokens = static_cast<MPI_Count>(tokens_);
        routing.topk = router_.topk();
        routing.ids = router_.ids();

        /* EXPERT: what the name says. COMPACT: rows per expert, made into offsets below. */
        std::vector<MPI_Count> offset(experts_.weights().count + 1);
        MPI_Count total = 0;
        MPIX_Ep_counts counts;
        MPIX_INIT(&counts);
        if (low_latency()) {
            ep::check(MPIX_Ep_route(handle_, &routing, nullptr), "MPIX_Ep_route");
            rows_ = most_rows(comm_, config_, topk_, experts_.weights().count);
            reserve();
            return;
        }
        counts.recv_total = &total;
        (expert() ? counts.expert_offset : counts.recv_per_expert) = offset.data();
        ep::check(MPIX_Ep_route(handle_, &routing, &counts), "MPIX_Ep_route");
        rows_ = static_cast<std::size_t>(total);
        sorted(offset);
        reserve();
    }

    /** Takes the offsets of the experts, or (not EXPERT) their numbers of rows. */
    void sorted(std::vector<MPI_Count> &offset) {
        if (!expert()) {
            MPI_Count sum = 0;
            for (MPI_Count &n : offset)
                sum += std::exchange(n, sum);
        }
        offset_.assign(offset.begin(), offset.end());
        dweights_.resize(offset_.back());
    }

    /** Room for the rows of this routing. Allocation is collective, so all ranks grow when one has
     * to: some rows to spare keep that rare. A program that knows a bound sets max_recv_rows and
     * allocates once. */
    void reserve() {
        int grow = rows_ > capacity_, any = 0;
        ep::check_mpi(MPI_Allreduce(&grow, &any, 1, MPI_INT, MPI_MAX, comm_), "MPI_Allreduce");
        if (!any)
            return;
        capacity_ = std::max({capacity_, rows_ + rows_ / 8, std::size_t{1}});
        const std::size_t choices = !expert() ? topk_ : 1;
        received_.resize(capacity_ * hidden_ * element_);
        received_dy_.resize(capacity_ * hidden_ * element_);
        computed_.resize(capacity_ * hidden_ * element_);
        if (!expert())
            local_ids_.resize(capacity_ * topk_);
        row_weights_.resize(capacity_ * choices);
        row_slots_.resize(capacity_ * choices);
    }

    void dispatch(const float *rows, ep::Array<char> &received, bool routed) {
        store(rows, tokens_ * hidden_, send_.data());
        MPIX_Ep_dispatch_in in;
        MPIX_INIT(&in);
        in.hidden = static_cast<MPI_Count>(hidden_);
        in.x.data = send_.data();
        in.x.dtype = config_.dtype;
        MPIX_Ep_dispatch_out out;
        MPIX_INIT(&out);
        out.capacity_rows = static_cast<MPI_Count>(capacity_);
        out.x.data = received.data();
        /* with the weights: COMPACT needs them now, both need them in backward; they stay for it */
        if (routed) {
            in.topk_weights = router_.weights();
            out.topk_weights = row_weights_.data();
            if (!expert())
                out.local_ids = local_ids_.data();
        }
        std::vector<MPI_Count> offset(experts_.weights().count + 1);
        if (low_latency() && routed)
            (expert() ? out.expert_offset : out.recv_per_expert) = offset.data();
        ep::check(MPIX_Ep_dispatch(handle_, &in, &out), "MPIX_Ep_dispatch");
        if (low_latency() && routed) {
            sorted(offset);
            if (expert())
                rows_ = offset_.back();
        }
    }

    /** COMPACT: gives each (row, choice) of this rank its place among the rows sorted by expert; -1
     * for choices of other ranks. */
    void sort_by_expert() {
        std::vector<std::size_t> next(offset_.begin(), offset_.end() - 1);
        place_.assign(rows_ * topk_, -1);
        for (std::size_t c = 0; c < rows_ * topk_; c++)
            if (local_ids_.data()[c] >= 0)
                place_[c] = static_cast<std::ptrdiff_t>(
                    next[static_cast<std::size_t>(local_ids_.data()[c])]++);
    }

    /** The received rows as floats sorted by expert: in buffer, or where they lie if they are
     * that already. */
    const float *gather(const ep::Array<char> &received, std::vector<float> &buffer) {
        if (in_place())
            return reinterpret_cast<const float *>(received.data());
        buffer.resize(offset_.back() * hidden_);
        if (expert())
            load(received.data(), buffer.size(), buffer.data());
        else
            for (std::size_t c = 0; c < rows_ * topk_; c++)
                if (place_[c] >= 0)
                    load(received.data() + c / topk_ * hidden_ * element_, hidden_,
                         buffer.data() + place(c) * hidden_);
        return buffer.data();
    }

    /** Where the experts write: rows sorted by expert. */
    float *outputs() {
        if (in_place())
            return reinterpret_cast<float *>(computed_.data());
        out_.resize(offset_.back() * hidden_);
        return out_.data();
    }

    /** Brings the experts' outputs into the layout and dtype that combine takes. COMPACT: one row,
     * the (weighted) sum, per token. */
    void scatter(const float *out, bool weighted) {
        if (in_place())
            return;
        if (expert()) {
            store(out, rows_ * hidden_, computed_.data());
            return;
        }
        std::vector<float> sum(hidden_);
        for (std::size_t row = 0; row < rows_; row++) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (std::size_t c = row * topk_; c < (row + 1) * topk_; c++) {
                if (place_[c] < 0)
                    continue;
                const float *one = out + place(c) * hidden_,
                            w = weighted ? row_weights_.data()[c] : 1.0f;
                for (std::size_t i = 0; i < hidden_; i++)
                    sum[i] += w * one[i];
            }
            store(sum.data(), hidden_, computed_.data() + row * hidden_ * element_);
        }
    }

    /** The weights that came along, sorted by expert. */
    const float *weights_by_row() {
        if (expert())
            return row_weights_.data();
        sorted_weights_.resize(offset_.back());
        for (std::size_t c = 0; c < rows_ * topk_; c++)
            if (place_[c] >= 0)
                sorted_weights_[place(c)] = row_weights_.data()[c];
        return sorted_weights_.data();
    }

    /** The derivatives by the weights, as combine brings them back to each token's choices. */
    void slot_values() {
        if (expert())
            std::copy(dweights_.begin(), dweights_.end(), row_slots_.data());
        else
            for (std::size_t c = 0; c < rows_ * topk_; c++)
                row_slots_.data()[c] = place_[c] < 0 ? 0.0f : dweights_[place(c)];
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
            in.topk_weights = router_.weights();
        if (with_slots)
            in.slot_values = row_slots_.data();
        MPIX_Ep_combine_out out;
        MPIX_INIT(&out);
        out.y.data = result_.data();
        out.y.dtype = MPIX_EP_F32; /* sums are in float: no reason to round them */
        if (with_slots)
            out.slot_values = slots_.data();
        ep::check(MPIX_Ep_combine(handle_, &in, &out), "MPIX_Ep_combine");
    }

    std::size_t place(std::size_t choice) const { return static_cast<std::size_t>(place_[choice]); }

    void load(const char *from, std::size_t n, float *to) const {
        if (config_.dtype == MPIX_EP_F32)
            std::copy_n(reinterpret_cast<const float *>(from), n, to);
        else
            std::transform(reinterpret_cast<const std::uint16_t *>(from),
                           reinterpret_cast<const std::uint16_t *>(from) + n, to, from_bf16);
    }

    void store(const float *from, std::size_t n, char *to) const {
        if (config_.dtype == MPIX_EP_F32)
            std::copy_n(from, n, reinterpret_cast<float *>(to));
        else
            std::transform(from, from + n, reinterpret_cast<std::uint16_t *>(to), to_bf16);
    }

    MPI_Comm comm_;
    LayerConfig config_;
    Router router_;
    Experts experts_;
    std::size_t hidden_, topk_, element_; /* element: bytes of one on its way */
    ep::Context ep_;
    ep::Handle handle_;
    ep::Array<char> send_; /* [max_tokens][hidden] of dtype */
    /* [max_tokens][hidden], [max_tokens][topk] */
    ep::Array<float> result_, slots_;
    /* [capacity][hidden] of dtype: from dispatch, for combine */
    ep::Array<char> received_, received_dy_, computed_;
    ep::Array<int> local_ids_; /* COMPACT [capacity][topk] */
    /* COMPACT [capacity][topk], EXPERT [capacity] */
    ep::Array<float> row_weights_, row_slots_;
    std::size_t tokens_ = 0, rows_ = 0, capacity_ = 0;
    std::vector<std::size_t> offset_;   /* [local experts + 1] first row of each expert among
                                         * the sorted ones */
    std::vector<std::ptrdiff_t> place_; /* COMPACT [rows][topk] */
    std::vector<float> x_, dy_, out_, sorted_weights_, dweights_; /* sorted by expert */
    Times times_;
};

} // namespace moe

#endif
