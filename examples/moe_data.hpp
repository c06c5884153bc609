/*
 * moe_data.hpp - the data of the example: each rank's part of the arrays.
 */
#ifndef EXAMPLES_MOE_DATA_HPP
#define EXAMPLES_MOE_DATA_HPP

#include "moe_layer.hpp"
#include "npy.hpp"

namespace moe {

/** A part of a dimension: this rank's. */
struct Part {
    std::size_t first, count;
};

/** Contiguous parts, the first total % size ranks holding one more: also MPIX_Ep's default
 * placement of experts. */
inline Part part_of(std::size_t total, int rank, int size) {
    const std::size_t r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(size);
    return {r * (total / n) + std::min(r, total % n), total / n + (r < total % n ? 1 : 0)};
}

/** Everything this rank reads: its tokens, the router, its experts, and what comes out
 * for its tokens. */
struct Data {
    std::size_t tokens, hidden, experts, inner, topk; /* of all ranks together */
    Part mine, my_experts;
    std::vector<float> x, router, weights, y;
    std::vector<std::int32_t> ids;
    ExpertWeights local;
};

inline std::vector<float> widen(const std::vector<std::uint16_t> &bits) {
    std::vector<float> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(), from_bf16);
    return values;
}

/** Reads this rank's part of the data in a folder; tokens: the first so many, 0 for all. */
inline Data load(const std::string &folder, std::size_t tokens, int rank, int size) {
    Data d;
    npy::File x(folder + "/x_bf16.npy"), router(folder + "/router.npy"),
        gate(folder + "/w_gate_bf16.npy");
    npy::File up(folder + "/w_up_bf16.npy"), down(folder + "/w_down_bf16.npy");
    npy::File ids(folder + "/topk_idx.npy"), weights(folder + "/topk_weights.npy"),
        y(folder + "/y.npy");
    x.expect({0, 0});
    gate.expect({0, x.shape()[1], 0});
    ids.expect({x.shape()[0], 0});
    d.hidden = x.shape()[1];
    d.experts = gate.shape()[0];
    d.inner = gate.shape()[2];
    d.topk = ids.shape()[1];
    up.expect({d.experts, d.hidden, d.inner});
    down.expect({d.experts, d.inner, d.hidden});
    router.expect({d.experts, d.hidden});
    weights.expect(ids.shape());
    y.expect(x.shape());
    d.tokens = tokens ? tokens : x.shape()[0];
    if (d.tokens > x.shape()[0])
        throw std::runtime_error("--tokens " + std::to_string(tokens) + ": there are " +
                                 std::to_string(x.shape()[0]) + " only");
    if (d.tokens == 0 || d.hidden == 0 || d.inner == 0 || d.topk == 0 || d.topk > d.experts)
        throw std::runtime_error(folder +
                                 ": an array is empty, or there are more choices than experts");

    d.mine = part_of(d.tokens, rank, size);
    d.my_experts = part_of(d.experts, rank, size);
    d.x = widen(x.rows<std::uint16_t>(d.mine.first, d.mine.count));
    d.router = router.all<float>();
    d.ids = ids.rows<std::int32_t>(d.mine.first, d.mine.count);
    d.weights = weights.rows<float>(d.mine.first, d.mine.count);
    d.y = y.rows<float>(d.mine.first, d.mine.count);
    const auto mine = [&](npy::File &file) {
        return widen(file.rows<std::uint16_t>(d.my_experts.first, d.my_experts.count));
    };
    d.local = {d.my_experts.count, d.hidden, d.inner, mine(gate), mine(up), mine(down)};
    return d;
}

} // namespace moe

#endif
