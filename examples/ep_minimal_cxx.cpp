/*
 * ep_minimal_cxx.cpp - the smallest complete C++ program: route, dispatch, experts, combine, and a
 * check of the result.
 *
 * Two experts per rank; each of a rank's tokens chooses two experts, weighted 0.75, 0.25. Expert e
 * multiplies by e + 1.
 */
#include <mpix_ep.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

static int run(int rank, int size) {
    constexpr std::size_t tokens = 100, hidden = 64, topk = 2, local = 2;
    std::vector<std::int32_t> ids(tokens * topk);
    std::vector<float> weights(tokens * topk), x(tokens * hidden), y(tokens * hidden);
    for (std::size_t t = 0; t < tokens; t++) {
        ids[t * topk] = (rank + 3 * static_cast<int>(t)) % (static_cast<int>(local) * size);
        ids[t * topk + 1] = (ids[t * topk] + 1) % (static_cast<int>(local) * size);
        weights[t * topk] = 0.75f, weights[t * topk + 1] = 0.25f;
        for (std::size_t i = 0; i < hidden; i++)
            x[t * hidden + i] = static_cast<float>(t + i);
    }

    mpix::config config;
    config.layout = MPIX_EP_EXPERT;
    config.max_topk = topk, config.num_experts = static_cast<int>(local) * size;
    config.max_tokens = tokens, config.max_row_bytes = hidden * sizeof(float);
    mpix::ep ep(MPI_COMM_WORLD, config);
    mpix::handle handle(ep);

    MPI_Count rows = 0, offset[local + 1]; /* of each expert's first row */
    mpix::routing routing;
    mpix::counts counts;
    routing.num_tokens = tokens, routing.topk = topk, routing.ids = ids.data();
    counts.recv_total = &rows, counts.expert_offset = offset;
    handle.route(routing, &counts);

    /* peers write into it and read from it directly */
    auto received = ep.alloc<float>(static_cast<std::size_t>(rows) * hidden);
    handle.dispatch<float>(x, hidden, received);
    for (std::size_t e = 0; e < local; e++) /* the experts */
        for (float &value : mpix::span<float>(received).subspan(
                 static_cast<std::size_t>(offset[e]) * hidden,
                 static_cast<std::size_t>(offset[e + 1] - offset[e]) * hidden))
            value *= static_cast<float>(rank * static_cast<int>(local) + static_cast<int>(e) + 1);
    handle.combine<float>(received, hidden, y, weights);

    int wrong = 0;
    for (std::size_t t = 0; t < tokens; t++)
        for (std::size_t i = 0; i < hidden; i++) { /* quarters of small integers: exact in float */
            float value = x[t * hidden + i], first = static_cast<float>(ids[t * topk] + 1),
                  second = static_cast<float>(ids[t * topk + 1] + 1);
            wrong += y[t * hidden + i] != 0.75f * first * value + 0.25f * second * value;
        }
    try { /* errors are exceptions, also where MPI's default would end the program */
        handle.route(mpix::span<const std::int32_t>(ids.data(), tokens * topk), 1);
        wrong++; /* twice as many tokens as the context has room for */
    } catch (const mpix::error &error) {
        wrong += error.kind() != MPIX_ERRK_ARG;
    }
    return wrong;
}

int main(int argc, char **argv) {
    int rank, size, wrong = 1, all_wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    try {
        wrong = run(rank, size);
    } catch (const std::exception &error) {
        /* the other ranks may be anywhere: only an end is left */
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        std::printf("C++, %d ranks: %s\n", size, all_wrong ? "WRONG" : "ok");
    MPI_Finalize();
    return all_wrong != 0;
}
