/*
 * world_cpp.cpp - where C++ objects are destroyed: after MPI_Finalize, after their context, in
 * a child of fork.
 *
 *   world_cpp main | static | order | fork | thread
 */
#include <mpix_ep.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

struct layer { /* the members in the order of their use, which is the wrong one for their end */
    std::optional<mpix::memory<float>> rows;
    std::optional<mpix::handle> handle;
    std::optional<mpix::mem> mem;
    std::optional<mpix::ep> ep;
    std::optional<mpix::p2p> p2p;

    void make() {
        int size = 0;
        mpix::config c;
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        c.max_topk = 1;
        c.num_experts = size;
        c.max_tokens = 4;
        c.max_row_bytes = 64;
        c.timeout_s = 30;
        ep.emplace(MPI_COMM_WORLD, c);
        p2p.emplace(MPI_COMM_WORLD);
        rows.emplace(ep->get(), 64);
        handle.emplace(ep->get());
        mem.emplace(p2p->alloc(64));
    }
};

layer global;

/* The parent's objects still work. */
bool works(layer &l) {
    int size = 0;
    std::int32_t id = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Count received = l.handle->route(mpix::span<const std::int32_t>(&id, 1), 1);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mpix::p2p other(MPI_COMM_WORLD);
    return received == (rank == 0 ? size : 0);
}

int in_child(bool by_exit) {
    int status = 0, rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0)
        return 0;
    std::fflush(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        if (by_exit)
            std::exit(0); /* destroys the static objects */
        global = layer();
        _exit(0);
    }
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

} // namespace

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    int level = 0, bad = 0, rank = 0;

    MPI_Init_thread(&argc, &argv,
                    std::strcmp(which, "thread") == 0 ? MPI_THREAD_FUNNELED : MPI_THREAD_SINGLE,
                    &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    layer local; /* ends after MPI_Finalize: what everybody writes first */
    if (std::strcmp(which, "main") == 0) {
        local.make();
    } else if (std::strcmp(which, "static") == 0) {
        global.make();
    } else if (std::strcmp(which, "order") == 0) {
        layer inner;
        inner.make();
    } else if (std::strcmp(which, "fork") == 0) {
        global.make();
        for (bool by_exit : {true, false}) {
            bad += in_child(by_exit) != 0;
            bad += !works(global);
        }
        global = layer();
    } else if (std::strcmp(which, "thread") == 0) {
        /* off the main thread, which alone may call MPI */
        mpix::p2p p2p(MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        std::thread([&] {
            char buffer[64];
            mpix::mem mem = p2p.reg(buffer, sizeof buffer);
            p2p.free(); /* here too: nobody else calls MPI now */
        }).join();
    } else {
        bad = 1;
    }
    std::printf("rank %d: %s %s\n", rank, which, bad ? "FAILED" : "done");
    std::fflush(stdout);
    MPI_Finalize();
    return bad;
}
