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

#include "moe_exchange.hpp"
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
        return static_cast<std::uint16_t>((bits >> 16) |
                                          0x40u); /* rounding could turn a NaN into infinity */
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

class Layer {
public:
    /** Collective. experts: this rank's in MPIX_Ep's default placement. */
    Layer(MPI_Comm comm, const LayerConfig &config, Router router, Experts experts)
        : router_(std::move(router)), experts_(std::move(experts)),
          hidden_(experts_.weights().hidden), topk_(static_cast<std::size_t>(router_.topk())),
          exchange_(comm, config, MPIX_EP_HOST, router_, hidden_, experts_.weights().count),
          send_(exchange_.alloc<char>(config.max_tokens * exchange_.row_bytes())),
          result_(exchange_.alloc<float>(config.max_tokens * hidden_)),
          slots_(exchange_.alloc<float>(config.max_tokens * topk_)) {}

    const Router &router() const { return router_; }
    /** The experts' gradients of the last backward. */
    const ExpertWeights &gradient() const { return experts_.gradient(); }
    const Times &times() const { return times_; }

    /** x: [tokens][hidden] of this rank. Returns y: [tokens][hidden], the layer's until the next
     * call. Collective. */
    const float *forward(const float *x, std::size_t tokens) {
        double t = MPI_Wtime();
        router_.forward(x, tokens);
        lap(times_.router, t);
        if (exchange_.route(router_.ids(), tokens))
            grow();
        lap(times_.route, t);
        /* With the weights: COMPACT needs them now, both need them in backward;
         * they stay for it. */
        dispatch(x, exchange_.received,
                 {router_.weights(), row_weights_.data(), local_ids_.data()});
        lap(times_.dispatch, t);
        if (!exchange_.expert())
            sort_by_expert();
        const float *in = gather(exchange_.received, x_);
        float *out = outputs();
        experts_.forward(exchange_.offset(), in, out);
        scatter(out, true);
        lap(times_.experts, t);
        exchange_.combine({router_.weights(), row_weights_.data(), result_.data(), nullptr});
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
        dispatch(dy, exchange_.received_dy, {});
        /* x_ holds the experts' inputs still, unless they lie in received as they came. */
        const float *in = in_place() ? floats(exchange_.received) : x_.data();
        const float *din = gather(exchange_.received_dy, dy_);
        float *out = outputs();
        dweights_.resize(exchange_.sorted());
        experts_.backward(exchange_.offset(), in, din, weights_by_row(), out, dweights_.data());
        scatter(out, false);
        slot_values();
        exchange_.combine({nullptr, nullptr, result_.data(), slots_.data()});
        router_.backward(exchange_.tokens(), slots_.data(), result_.data());
        return result_.data();
    }

private:
    /** Whether rows are used for computation where they lie: sorted, and float. */
    bool in_place() const { return exchange_.expert() && !exchange_.bf16(); }

    static float *floats(const mpix::memory<char> &rows) {
        return reinterpret_cast<float *>(rows.data());
    }

    void grow() {
        if (!exchange_.expert())
            exchange_.resize(local_ids_, exchange_.cells());
        exchange_.resize(row_weights_, exchange_.cells());
    }

    void dispatch(const float *rows, const mpix::memory<char> &received,
                  const Exchange::Beside &beside) {
        store(rows, exchange_.tokens() * hidden_, send_.data());
        exchange_.dispatch(send_.data(), received, beside);
    }

    std::size_t choices() const { return exchange_.rows() * topk_; }

    /** COMPACT: gives each (row, choice) of this rank its place among the rows sorted by expert; -1
     * for choices of other ranks. */
    void sort_by_expert() {
        std::vector<std::size_t> next(exchange_.offset().begin(), exchange_.offset().end() - 1);
        place_.assign(choices(), -1);
        for (std::size_t c = 0; c < choices(); c++)
            if (local_ids_.data()[c] >= 0)
                place_[c] = static_cast<std::ptrdiff_t>(
                    next[static_cast<std::size_t>(local_ids_.data()[c])]++);
    }

    /** The received rows as floats sorted by expert: in buffer, or where they lie if they are
     * that already. */
    const float *gather(const mpix::memory<char> &received, std::vector<float> &buffer) {
        if (in_place())
            return floats(received);
        buffer.resize(exchange_.sorted() * hidden_);
        if (exchange_.expert())
            load(received.data(), buffer.size(), buffer.data());
        else
            for (std::size_t c = 0; c < choices(); c++)
                if (place_[c] >= 0)
                    load(received.data() + c / topk_ * exchange_.row_bytes(), hidden_,
                         buffer.data() + place(c) * hidden_);
        return buffer.data();
    }

    /** Where the experts write: rows sorted by expert. */
    float *outputs() {
        if (in_place())
            return floats(exchange_.computed);
        out_.resize(exchange_.sorted() * hidden_);
        return out_.data();
    }

    /** Brings the experts' outputs into the layout and dtype that combine takes. COMPACT: one row,
     * the (weighted) sum, per token. */
    void scatter(const float *out, bool weighted) {
        if (in_place())
            return;
        if (exchange_.expert()) {
            store(out, exchange_.rows() * hidden_, exchange_.computed.data());
            return;
        }
        std::vector<float> sum(hidden_);
        for (std::size_t row = 0; row < exchange_.rows(); row++) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (std::size_t c = row * topk_; c < (row + 1) * topk_; c++) {
                if (place_[c] < 0)
                    continue;
                const float *one = out + place(c) * hidden_,
                            w = weighted ? row_weights_.data()[c] : 1.0f;
                for (std::size_t i = 0; i < hidden_; i++)
                    sum[i] += w * one[i];
            }
            store(sum.data(), hidden_, exchange_.computed.data() + row * exchange_.row_bytes());
        }
    }

    /** The weights that came along, sorted by expert. */
    const float *weights_by_row() {
        if (exchange_.expert())
            return row_weights_.data();
        sorted_weights_.resize(exchange_.sorted());
        for (std::size_t c = 0; c < choices(); c++)
            if (place_[c] >= 0)
                sorted_weights_[place(c)] = row_weights_.data()[c];
        return sorted_weights_.data();
    }

    /** The derivatives by the weights, as combine brings them back to each token's choices. */
    void slot_values() {
        if (exchange_.expert())
            std::copy(dweights_.begin(), dweights_.end(), exchange_.row_slots.data());
        else
            for (std::size_t c = 0; c < choices(); c++)
                exchange_.row_slots.data()[c] = place_[c] < 0 ? 0.0f : dweights_[place(c)];
    }

    std::size_t place(std::size_t choice) const { return static_cast<std::size_t>(place_[choice]); }

    void load(const char *from, std::size_t n, float *to) const {
        if (!exchange_.bf16())
            std::copy_n(reinterpret_cast<const float *>(from), n, to);
        else
            std::transform(reinterpret_cast<const std::uint16_t *>(from),
                           reinterpret_cast<const std::uint16_t *>(from) + n, to, from_bf16);
    }

    void store(const float *from, std::size_t n, char *to) const {
        if (!exchange_.bf16())
            std::copy_n(from, n, reinterpret_cast<float *>(to));
        else
            std::transform(from, from + n, reinterpret_cast<std::uint16_t *>(to), to_bf16);
    }

    Router router_;
    Experts experts_;
    std::size_t hidden_, topk_;
    Exchange exchange_;
    mpix::memory<char> send_;            /* [max_tokens][hidden] of dtype */
    mpix::memory<float> result_, slots_; /* [max_tokens][hidden], [max_tokens][topk] */
    mpix::memory<int> local_ids_;        /* COMPACT [rows][topk] */
    mpix::memory<float> row_weights_;    /* [cells] */
    std::vector<std::ptrdiff_t> place_;  /* COMPACT [rows][topk] */
    std::vector<float> x_, dy_, out_, sorted_weights_, dweights_; /* sorted by expert */
    Times times_;
};

} // namespace moe

#endif
