/*
 * moe_router.hpp - the router of a mixture-of-experts layer:
 * which experts a token takes, with what weight, and the way back.
 *
 * It works on the tokens of one rank; every rank holds the whole router. Everything is in double:
 * choices must not depend on rounding (two logits of the test data differ by 1e-7).
 */
#ifndef EXAMPLES_MOE_ROUTER_HPP
#define EXAMPLES_MOE_ROUTER_HPP

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

class Router {
public:
    /** matrix: [experts][hidden]. */
    Router(const std::vector<float> &matrix, int experts, int hidden, int topk)
        : experts_(experts), hidden_(hidden), topk_(topk), matrix_(matrix.begin(), matrix.end()),
          gradient_(matrix.size()) {}

    int topk() const { return topk_; }
    int experts() const { return experts_; }
    const std::int32_t *ids() const { return ids_.data(); }  /* [tokens][topk] */
    const float *weights() const { return weights_.data(); } /* [tokens][topk] */
    /* [experts][hidden], of this rank's tokens */
    const std::vector<double> &gradient() const { return gradient_; }

    void forward(const float *x, std::size_t tokens) {
        const std::size_t choices = tokens * static_cast<std::size_t>(topk_);
        x_.assign(x, x + tokens * static_cast<std::size_t>(hidden_));
        logits_.resize(tokens * static_cast<std::size_t>(experts_));
        /* never NULL: that would mean "not given" */
        ids_.resize(std::max<std::size_t>(choices, 1));
        weights_.resize(std::max<std::size_t>(choices, 1));
        exact_.resize(choices);
        if (tokens > 0)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(tokens), experts_,
                        hidden_, 1.0, x_.data(), hidden_, matrix_.data(), hidden_, 0.0,
                        logits_.data(), experts_);
        for (std::size_t t = 0; t < tokens; t++)
            choose(&logits_[t * static_cast<std::size_t>(experts_)],
                   t * static_cast<std::size_t>(topk_));
    }

    /**
     * Given dw = the derivative by each weight, adds to dx what comes through the weights and sets
     * the router's gradient.
     *
     * The weights are a softmax over the chosen logits (see choose), so dlogit_k = w_k
     * (dw_k - sum_j w_j dw_j) for the chosen ones and nothing for the others.
     */
    void backward(std::size_t tokens, const float *dw, float *dx) {
        const std::size_t hidden = static_cast<std::size_t>(hidden_);
        std::fill(gradient_.begin(), gradient_.end(), 0.0);
        std::vector<double> row(hidden);
        for (std::size_t t = 0; t < tokens; t++) {
            const std::size_t first = t * static_cast<std::size_t>(topk_);
            double mean = 0;
            for (std::size_t c = first; c < first + static_cast<std::size_t>(topk_); c++)
                mean += exact_[c] * static_cast<double>(dw[c]);
            for (std::size_t i = 0; i < hidden; i++)
                row[i] = static_cast<double>(dx[t * hidden + i]);
            for (std::size_t c = first; c < first + static_cast<std::size_t>(topk_); c++) {
                const double dlogit = exact_[c] * (static_cast<double>(dw[c]) - mean);
                const std::size_t expert = static_cast<std::size_t>(ids_[c]) * hidden;
                for (std::size_t i = 0; i < hidden; i++) {
                    row[i] += dlogit * matrix_[expert + i];
                    gradient_[expert + i] += dlogit * x_[t * hidden + i];
                }
            }
            for (std::size_t i = 0; i < hidden; i++)
                dx[t * hidden + i] = static_cast<float>(row[i]);
        }
    }

private:
    /** The topk largest logits in order, ties by lowest index. In softmax over all experts,
     * renormalised over the chosen ones, the sum over all experts cancels: what remains is the
     * softmax over the chosen. */
    void choose(double *logits, std::size_t first) {
        double largest = 0, sum = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(topk_); k++) {
            /* the first of equal ones */
            const double *best = std::max_element(logits, logits + experts_);
            if (k == 0)
                largest = *best;
            ids_[first + k] = static_cast<std::int32_t>(best - logits);
            exact_[first + k] = std::exp(*best - largest);
            sum += exact_[first + k];
            logits[ids_[first + k]] = -HUGE_VAL;
        }
        for (std::size_t k = 0; k < static_cast<std::size_t>(topk_); k++) {
            exact_[first + k] /= sum;
            weights_[first + k] = static_cast<float>(exact_[first + k]);
        }
    }

    int experts_, hidden_, topk_;
    std::vector<double> matrix_, gradient_;
    std::vector<double> x_, logits_; /* [tokens][hidden], kept for backward; [tokens][experts] */
    std::vector<std::int32_t> ids_;
    std::vector<float> weights_;
    std::vector<double> exact_; /* the weights before rounding */
};

} // namespace moe

#endif
