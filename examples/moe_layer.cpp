/*
 * moe_layer.cpp - an expert-parallel mixture-of-experts layer on real data, checked, for programs
 * in C++ to copy from.
 *
 *     mpirun -n R moe_layer --data DIR [--dtype f32|bf16] [--mode ht|ll] [--layout
 *     compact|slots|expert] [--memory host|cuda]
 *         [--backward] [--tokens N] [--repeat N]
 *
 * DIR holds the arrays that data/README.md of mpix-ep describes. Tokens and experts are split over
 * any number of ranks. The program computes its own routing and output and compares them with the
 * arrays, and with --backward its gradients with a computation on one rank (moe_reference.hpp).
 * Exit status: 0 all within limits, 1 not, or an error, 2 wrong usage.
 *
 * The layer itself is moe_layer.hpp. Built by hand:
 *     mpicxx -std=c++17 -O2 moe_layer.cpp -lmpixep -lopenblas
 * In GPU memory it is moe_cuda.hpp:  nvcc -std=c++17 -O3 -c moe_kernels.cu,  then
 *     mpicxx -std=c++17 -O2 -DMOE_CUDA moe_layer.cpp moe_kernels.o -lmpixep -lopenblas -lcudart
 */
#include "moe_data.hpp"
#include "moe_layer.hpp"
#ifdef MOE_CUDA
#include "moe_cuda.hpp"
#endif
#include "moe_reference.hpp"
#include "npy.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

struct Options {
    std::string data;
    moe::LayerConfig layer;
    bool backward = false, help = false;
    int memory = MPIX_EP_HOST;
    long tokens = 0; /* 0: all */
    long repeat = 5;
};

struct Comm {
    int rank = 0, size = 1;
};

const char usage[] =
    "usage: moe_layer --data DIR [--dtype f32|bf16] [--mode ht|ll] [--layout "
    "compact|slots|expert]\n"
    "                 [--memory host|cuda] [--backward] [--tokens N] [--repeat N]\n"
    "  --data DIR       folder with x_bf16.npy, router.npy, w_*_bf16.npy, topk_*.npy and y.npy\n"
    "  --dtype TYPE     of rows on their way between ranks (default f32)\n"
    "  --mode MODE      ht: high throughput; ll: low latency (default ht)\n"
    "  --layout LAYOUT  compact, or slots with --mode ll: a row per token and rank (default); "
    "expert: a row per token and expert\n"
    "  --memory MEMORY  of rows and experts: host, or cuda: the GPU, products by cuBLAS"
#ifndef MOE_CUDA
    " (not in this build: it had no cuBLAS)"
#endif
    "\n"
    "  --backward       compute gradients too, and compare them with a computation on one rank\n"
    "  --tokens N       the first N tokens only\n"
    "  --repeat N       timed repetitions (default 5)\n";

long positive(const std::string &option, const std::string &text) {
    char *end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < 1 || value > 1000000000)
        throw std::invalid_argument(option + " takes a number from 1 to 1000000000, not '" + text +
                                    "'");
    return value;
}

int one_of(const std::string &option, const std::string &text,
           std::initializer_list<std::pair<const char *, int>> choices) {
    for (const auto &choice : choices)
        if (text == choice.first)
            return choice.second;
    throw std::invalid_argument(option + " does not take '" + text + "'");
}

Options parse(int argc, char **argv) {
    Options o;
    o.layer.layout = -1;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        const auto value = [&]() -> std::string {
            if (++i >= argc)
                throw std::invalid_argument(name + " takes a value");
            return argv[i];
        };
        if (name == "--data")
            o.data = value();
        else if (name == "--dtype")
            o.layer.dtype = one_of(name, value(), {{"f32", MPIX_EP_F32}, {"bf16", MPIX_EP_BF16}});
        else if (name == "--layout")
            o.layer.layout = one_of(name, value(),
                                    {{"compact", MPIX_EP_COMPACT},
                                     {"slots", MPIX_EP_SLOTS},
                                     {"expert", MPIX_EP_EXPERT}});
        else if (name == "--mode")
            o.layer.mode = one_of(name, value(), {{"ht", MPIX_EP_HT}, {"ll", MPIX_EP_LL}});
        else if (name == "--memory")
            o.memory = one_of(name, value(), {{"host", MPIX_EP_HOST}, {"cuda", MPIX_EP_CUDA}});
        else if (name == "--backward")
            o.backward = true;
        else if (name == "--tokens")
            o.tokens = positive(name, value());
        else if (name == "--repeat")
            o.repeat = positive(name, value());
        else if (name == "--help" || name == "-h")
            o.help = true;
        else
            throw std::invalid_argument("unknown option '" + name + "'");
    }
    if (o.layer.layout < 0)
        o.layer.layout = o.layer.mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    if (o.layer.layout == (o.layer.mode == MPIX_EP_LL ? MPIX_EP_COMPACT : MPIX_EP_SLOTS))
        throw std::invalid_argument("--layout compact is for --mode ht, slots for --mode ll");
    if (o.data.empty() && !o.help)
        throw std::invalid_argument("--data is missing");
#ifndef MOE_CUDA
    if (o.memory == MPIX_EP_CUDA)
        throw std::invalid_argument("--memory cuda is not in this build: cuBLAS (cublas_v2.h) was "
                                    "not found when it was configured");
#endif
    return o;
}

/** The derivative of some loss by y: numbers in [-1, 1) that depend on the place only (splitmix64),
 * so any rank can make any part. */
std::vector<float> upstream(const moe::Part &tokens, std::size_t hidden) {
    std::vector<float> dy(tokens.count * hidden);
    for (std::size_t i = 0; i < dy.size(); i++) {
        std::uint64_t z = (tokens.first * hidden + i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        /* 24 bits: exact in float, not in bf16 */
        dy[i] = static_cast<float>(z >> 40) / 8388608.0f - 1.0f;
    }
    return dy;
}

/** Whether all ranks' sums of squares say ||a - b|| <= limit ||b||; a NaN says no. Prints on
 * rank 0. Collective. */
template <class A, class B>
bool close(const Comm &comm, const char *what, const A &a, const B &b, std::size_t n,
           double limit) {
    double part[2] = {0, 0}, sum[2];
    for (std::size_t i = 0; i < n; i++) {
        const double want = static_cast<double>(b[i]), error = static_cast<double>(a[i]) - want;
        part[0] += error * error;
        part[1] += want * want;
    }
    moe::check_mpi(MPI_Allreduce(part, sum, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD),
                   "MPI_Allreduce");
    const double error = std::sqrt(sum[0]) / std::sqrt(sum[1]);
    const bool good = error <= limit;
    if (comm.rank == 0)
        std::printf("  %-22s relative error %.2e, limit %.0e  %s\n", what, error, limit,
                    good ? "ok" : "TOO LARGE");
    return good;
}

/** Compares the routing: the choices as ordered lists, the weights to the rounding of a
 * float. Collective. */
bool routing_agrees(const Comm &comm, const moe::Data &d, const moe::Router &router) {
    unsigned long long wrong = 0, wrong_sum = 0;
    double worst = 0, worst_max = 0;
    for (std::size_t t = 0; t < d.mine.count; t++)
        wrong += !std::equal(&d.ids[t * d.topk], &d.ids[t * d.topk] + d.topk,
                             router.ids() + t * d.topk);
    for (std::size_t i = 0; i < d.weights.size(); i++) {
        const double error = std::fabs(
            static_cast<double>(router.weights()[i]) / static_cast<double>(d.weights[i]) - 1.0);
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    moe::check_mpi(MPI_Allreduce(&wrong, &wrong_sum, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM,
                                 MPI_COMM_WORLD),
                   "MPI_Allreduce");
    worst = worst < HUGE_VAL ? worst : HUGE_VAL;
    moe::check_mpi(MPI_Allreduce(&worst, &worst_max, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
                   "MPI_Allreduce");
    /* two roundings of 2^-24 and of sums in another order */
    const bool good = wrong_sum == 0 && worst_max <= 2.5e-7;
    if (comm.rank == 0)
        std::printf(
            "  %-22s %llu of %zu tokens choose other experts, weights differ by %.1e at most  %s\n",
            "routing", wrong_sum, d.tokens, worst_max, good ? "ok" : "WRONG");
    return good;
}

double max_over_ranks(double value) {
    double most = 0;
    moe::check_mpi(MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
                   "MPI_Allreduce");
    return most;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(),
                     values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

/** Runs call repeat times; the time of each is that of the slowest rank. Returns the median in
 * seconds. Collective. */
template <class Call> double timed(long repeat, Call call) {
    std::vector<double> seconds;
    for (long i = 0; i < repeat; i++) {
        moe::check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
        const double start = MPI_Wtime();
        call();
        seconds.push_back(max_over_ranks(MPI_Wtime() - start));
    }
    return median(seconds);
}

void print_speed(const Comm &comm, const char *what, std::size_t tokens, double seconds) {
    if (comm.rank == 0)
        std::printf("  %-22s %.0f tokens/s (%.0f us)\n", what,
                    static_cast<double>(tokens) / seconds, seconds * 1e6);
}

void print_phases(const Comm &comm, const moe::Times &t) {
    const double phases[] = {t.router, t.route, t.dispatch, t.experts, t.combine};
    double most[5];
    moe::check_mpi(MPI_Allreduce(phases, most, 5, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
                   "MPI_Allreduce");
    if (comm.rank == 0)
        std::printf("  %-22s router %.0f, route %.0f, dispatch %.0f, experts %.0f, combine %.0f us "
                    "(slowest rank, last run)\n",
                    "of which", most[0] * 1e6, most[1] * 1e6, most[2] * 1e6, most[3] * 1e6,
                    most[4] * 1e6);
}

/** The reference's inputs, read anew and widened here, so that no error is shared. */
reference::Model reference_model(const Options &o, const moe::Data &d) {
    const auto wide = [&](const char *name) {
        reference::Numbers numbers;
        for (std::uint16_t bits : npy::File(o.data + name).all<std::uint16_t>()) {
            const int exponent = (bits >> 7) & 0xff, fraction = bits & 0x7f;
            const double size = exponent ? std::ldexp(128 + fraction, exponent - 134)
                                         : std::ldexp(fraction, -133);
            numbers.push_back(bits >> 15 ? -size : size);
        }
        return numbers;
    };
    const reference::Numbers router(d.router.begin(), d.router.end());
    return {d.experts,
            d.hidden,
            d.inner,
            d.topk,
            router,
            wide("/w_gate_bf16.npy"),
            wide("/w_up_bf16.npy"),
            wide("/w_down_bf16.npy")};
}

/** Rank 0 gets everybody's part of an array of rows of the given width, in order of ranks; the
 * others nothing. Collective. */
std::vector<float> gather(const Comm &comm, const float *part, std::size_t total,
                          std::size_t width) {
    std::vector<int> counts, places;
    for (int r = 0; r < comm.size; r++) {
        counts.push_back(static_cast<int>(moe::part_of(total, r, comm.size).count * width));
        places.push_back(static_cast<int>(moe::part_of(total, r, comm.size).first * width));
    }
    std::vector<float> all(comm.rank == 0 ? total * width : 0);
    moe::check_mpi(MPI_Gatherv(part, counts[static_cast<std::size_t>(comm.rank)], MPI_FLOAT,
                               all.data(), counts.data(), places.data(), MPI_FLOAT, 0,
                               MPI_COMM_WORLD),
                   "MPI_Gatherv");
    return all;
}

/**
 * Computes gradients and compares them with the reference on rank 0. Collective.
 *
 * Limits: with float rows the layer errs by sums in float only. With bf16 rows dy is rounded once
 * (relative 2^-9 per element at most), and so is what each expert, or each rank, returns; the
 * router's gradient takes differences of numbers that are alike, w_k (dw_k - sum_j w_j dw_j), which
 * magnifies that. 2e-2 leaves room for it, and no room for a wrong term.
 */
template <class AnyLayer>
bool backward_agrees(const Options &o, const Comm &comm, const moe::Data &d, AnyLayer &layer) {
    const std::vector<float> dy = upstream(d.mine, d.hidden);
    const float *dx = nullptr;
    print_speed(comm, "backward", d.tokens,
                timed(o.repeat, [&] { dx = layer.backward(dy.data()); }));

    const std::size_t matrix = d.hidden * d.inner;
    const moe::ExpertWeights &g = layer.gradient();
    const std::vector<float> all_dx = gather(comm, dx, d.tokens, d.hidden),
                             gate = gather(comm, g.gate.data(), d.experts, matrix),
                             up = gather(comm, g.up.data(), d.experts, matrix),
                             down = gather(comm, g.down.data(), d.experts, matrix);
    std::vector<double> router(d.router.size());
    moe::check_mpi(MPI_Reduce(layer.router().gradient().data(), router.data(),
                              static_cast<int>(router.size()), MPI_DOUBLE, MPI_SUM, 0,
                              MPI_COMM_WORLD),
                   "MPI_Reduce");

    reference::Result r;
    std::vector<float> y;
    if (comm.rank == 0) {
        const std::vector<float> x =
            moe::widen(npy::File(o.data + "/x_bf16.npy").rows<std::uint16_t>(0, d.tokens));
        const std::vector<float> all_dy = upstream({0, d.tokens}, d.hidden);
        r = reference::run(reference_model(o, d), d.tokens, {x.begin(), x.end()},
                           {all_dy.begin(), all_dy.end()});
        y = npy::File(o.data + "/y.npy").rows<float>(0, d.tokens);
    }
    const double limit = o.layer.dtype == MPIX_EP_BF16 ? 2e-2 : 1e-5;
    bool good = close(comm, "reference's own y", r.y, y, y.size(), 1e-6);
    good &= close(comm, "gradient of x", all_dx, r.dx, r.dx.size(), limit);
    good &= close(comm, "gradient of router", router, r.drouter, r.drouter.size(), limit);
    good &= close(comm, "gradient of w_gate", gate, r.dgate, r.dgate.size(), limit);
    good &= close(comm, "gradient of w_up", up, r.dup, r.dup.size(), limit);
    good &= close(comm, "gradient of w_down", down, r.ddown, r.ddown.size(), limit);
    return good;
}

/** Runs the layer and checks what comes out. Collective. */
template <class AnyLayer>
bool layer_agrees(const Options &o, const Comm &comm, const moe::Data &d, AnyLayer &layer) {
    /* once untimed: memory is touched, the BLAS wakes up */
    const float *out = layer.forward(d.x.data(), d.mine.count);
    const std::vector<float> first(out, out + d.y.size());
    bool good = routing_agrees(comm, d, layer.router());
    good &= close(comm, "output y", first, d.y, d.y.size(),
                  o.layer.dtype == MPIX_EP_BF16 ? 1e-2 : 1e-5);

    const double seconds = timed(o.repeat, [&] { out = layer.forward(d.x.data(), d.mine.count); });
    good &= close(comm, "repetition", std::vector<float>(out, out + d.y.size()), first,
                  first.size(), 0);
    print_speed(comm, "forward", d.tokens, seconds);
    print_phases(comm, layer.times());
    if (o.backward)
        good &= backward_agrees(o, comm, d, layer);
    return good;
}

/** Loads this rank's part; false: some rank can't, and the first such has said why. Collective, so
 * that no rank has to end another. */
bool load_together(const Options &o, const Comm &comm, moe::Data &d) {
    std::string wrong;
    try {
        d = moe::load(o.data, static_cast<std::size_t>(o.tokens), comm.rank, comm.size);
    } catch (const std::exception &e) {
        wrong = e.what();
    }
    int first = wrong.empty() ? comm.size : comm.rank;
    moe::check_mpi(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
                   "MPI_Allreduce");
    if (first == comm.rank)
        std::fprintf(stderr, "moe_layer: rank %d: %s\n", comm.rank, wrong.c_str());
    return first == comm.size;
}

/** Returns whether everything is within its limits. Collective. */
bool run(const Options &options, const Comm &comm) {
    const bool told = moe::blas_use_one_thread(), cuda = options.memory == MPIX_EP_CUDA;
    moe::Data d;
    if (!load_together(options, comm, d))
        return false;
    Options o = options;
    o.layer.max_tokens = moe::part_of(d.tokens, 0, comm.size).count;
    if (comm.rank == 0)
        std::printf("moe_layer: %zu tokens of %zu values, %zu experts %zu wide, top-%zu; %d ranks, "
                    "%s memory, %s rows, %s layout, %s\n",
                    d.tokens, d.hidden, d.experts, d.inner, d.topk, comm.size,
                    cuda ? "GPU" : "host", o.layer.dtype == MPIX_EP_BF16 ? "bf16" : "f32",
                    o.layer.layout == MPIX_EP_EXPERT  ? "expert"
                    : o.layer.layout == MPIX_EP_SLOTS ? "slots"
                                                      : "compact",
                    told ? "1 BLAS thread per rank" : "BLAS threads as the environment says");

    moe::Router router(d.router, static_cast<int>(d.experts), static_cast<int>(d.hidden),
                       static_cast<int>(d.topk));
    bool good = false;
#ifdef MOE_CUDA
    if (cuda) {
        moe::use_gpu(MPI_COMM_WORLD);
        moe::CudaLayer layer(MPI_COMM_WORLD, o.layer, std::move(router), d.local);
        good = layer_agrees(o, comm, d, layer);
    }
#endif
    if (!cuda) {
        moe::Layer layer(MPI_COMM_WORLD, o.layer, std::move(router), moe::Experts(d.local));
        good = layer_agrees(o, comm, d, layer);
    }
    if (comm.rank == 0)
        std::printf("moe_layer: %s\n", good ? "PASS" : "FAIL");
    return good;
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    /* contexts inherit it; errors become exceptions */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    Comm comm;
    MPI_Comm_rank(MPI_COMM_WORLD, &comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm.size);
    Options options;
    try { /* all ranks have the same arguments: all fail alike, and rank 0 speaks */
        options = parse(argc, argv);
    } catch (const std::invalid_argument &e) {
        if (comm.rank == 0)
            std::fprintf(stderr, "moe_layer: %s\n%s", e.what(), usage);
        MPI_Finalize();
        return 2;
    }
    if (options.help) {
        if (comm.rank == 0)
            std::fputs(usage, stdout);
        MPI_Finalize();
        return 0;
    }
    bool good = false;
    try {
        good = run(options, comm);
    } catch (const std::exception &e) { /* other ranks may wait for this one: end them too */
        std::fprintf(stderr, "moe_layer: rank %d: %s\n", comm.rank, e.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return good ? 0 : 1;
}
