/*
 * moe_reference.hpp - the same layer and its derivatives once more: one process, double precision,
 * from the formulas.
 *
 * Written apart from the layer on purpose, sharing nothing with it, to judge it:
 *     p = softmax(R x),  S = the topk largest,  w_k = p_k / sum_S p,  y = sum_k w_k E_k(x),
 *     E(x) = (silu(x G) * (x U)) D,  loss = sum over tokens of dy . y
 */
#ifndef EXAMPLES_MOE_REFERENCE_HPP
#define EXAMPLES_MOE_REFERENCE_HPP

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace reference {

using Numbers = std::vector<double>;

/** Sizes and inputs. router [experts][hidden], gate, up [experts][hidden][inner], down
 * [experts][inner][hidden]. */
struct Model {
    std::size_t experts, hidden, inner, topk;
    Numbers router, gate, up, down;
};

struct Result {
    Numbers y, dx, drouter, dgate, dup, ddown; /* shaped as what they belong to */
};

/** One expert applied to one token, with what its derivative needs. */
struct Applied {
    Numbers g, u, a, out;
};

inline double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

inline Applied apply(const Model &m, std::size_t expert, const double *x) {
    Applied r{Numbers(m.inner), Numbers(m.inner), Numbers(m.inner), Numbers(m.hidden)};
    for (std::size_t i = 0; i < m.hidden; i++)
        for (std::size_t j = 0; j < m.inner; j++) {
            r.g[j] += x[i] * m.gate[(expert * m.hidden + i) * m.inner + j];
            r.u[j] += x[i] * m.up[(expert * m.hidden + i) * m.inner + j];
        }
    for (std::size_t j = 0; j < m.inner; j++) {
        r.a[j] = r.g[j] * sigmoid(r.g[j]) * r.u[j];
        for (std::size_t i = 0; i < m.hidden; i++)
            r.out[i] += r.a[j] * m.down[(expert * m.inner + j) * m.hidden + i];
    }
    return r;
}

/** Adds the derivatives of  do . E(x)  by x and the expert's matrices. */
inline void differentiate(const Model &m, std::size_t expert, const double *x, const Applied &f,
                          const Numbers &dout, double *dx, Result &r) {
    Numbers dg(m.inner), du(m.inner);
    for (std::size_t j = 0; j < m.inner; j++) {
        const std::size_t row = (expert * m.inner + j) * m.hidden;
        double da = 0;
        for (std::size_t i = 0; i < m.hidden; i++) {
            da += m.down[row + i] * dout[i];
            r.ddown[row + i] += f.a[j] * dout[i];
        }
        const double s = sigmoid(f.g[j]);
        du[j] = da * f.g[j] * s;
        dg[j] = da * f.u[j] * (s + f.g[j] * s * (1.0 - s));
    }
    for (std::size_t i = 0; i < m.hidden; i++) {
        const std::size_t row = (expert * m.hidden + i) * m.inner;
        double sum = 0;
        for (std::size_t j = 0; j < m.inner; j++) {
            sum += m.gate[row + j] * dg[j] + m.up[row + j] * du[j];
            r.dgate[row + j] += x[i] * dg[j];
            r.dup[row + j] += x[i] * du[j];
        }
        dx[i] += sum;
    }
}

inline Numbers softmax(const Model &m, const double *x) {
    Numbers p(m.experts);
    for (std::size_t e = 0; e < m.experts; e++)
        for (std::size_t i = 0; i < m.hidden; i++)
            p[e] += m.router[e * m.hidden + i] * x[i];
    const double shift = *std::max_element(p.begin(), p.end());
    for (double &v : p)
        v = std::exp(v - shift);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double &v : p)
        v /= sum;
    return p;
}

/** x, dy: [tokens][hidden]. */
inline Result run(const Model &m, std::size_t tokens, const Numbers &x, const Numbers &dy) {
    Result r{Numbers(x.size()),      Numbers(x.size()),    Numbers(m.router.size()),
             Numbers(m.gate.size()), Numbers(m.up.size()), Numbers(m.down.size())};
    for (std::size_t t = 0; t < tokens; t++) {
        const double *xt = &x[t * m.hidden], *dyt = &dy[t * m.hidden];
        const Numbers p = softmax(m, xt);
        std::vector<std::size_t> order(m.experts);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
        order.resize(m.topk);

        double chosen = 0, mean = 0; /* sum of the chosen p; sum of w_k dw_k */
        for (std::size_t e : order)
            chosen += p[e];
        Numbers dw(m.topk), dout(m.hidden), dp(m.experts);
        for (std::size_t k = 0; k < m.topk; k++) {
            const double w = p[order[k]] / chosen;
            const Applied f = apply(m, order[k], xt);
            for (std::size_t i = 0; i < m.hidden; i++) {
                r.y[t * m.hidden + i] += w * f.out[i];
                dw[k] += dyt[i] * f.out[i];
                dout[i] = w * dyt[i];
            }
            mean += w * dw[k];
            differentiate(m, order[k], xt, f, dout, &r.dx[t * m.hidden], r);
        }

        double inner = 0; /* sum of p_e dp_e over all experts, for the derivative of softmax */
        for (std::size_t k = 0; k < m.topk; k++) {
            dp[order[k]] = (dw[k] - mean) / chosen;
            inner += p[order[k]] * dp[order[k]];
        }
        for (std::size_t e = 0; e < m.experts; e++) {
            const double dlogit = p[e] * (dp[e] - inner);
            for (std::size_t i = 0; i < m.hidden; i++) {
                r.dx[t * m.hidden + i] += dlogit * m.router[e * m.hidden + i];
                r.drouter[e * m.hidden + i] += dlogit * xt[i];
            }
        }
    }
    return r;
}

} // namespace reference

#endif
