/*
 * proxy_mpi.c - the proxy between ranks: batches of puts of all sizes and alignments, ended by
 * signals, in both forms, with several lanes and batches in flight, run by the caller and by a
 * thread, with queues and credit so small that every full path is taken.
 *
 * usage: proxy_mpi [TRANSPORT [ROUNDS]]
 *        proxy_mpi --case killed [--progress caller|thread]
 *
 * In the second form the last rank but one is killed; survivors get its error and leave by _exit.
 *
 * What a batch writes is a function of (source, destination, lane, epoch), so the receiver knows
 * it: the whole region is compared, what the puts leave out included. A region, with its counter,
 * carries one batch at a time: the receiver answers by a signal with a counter of its own.
 */
#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/shared.h"
#include "tests/unit/proxy_mpi.h"

static mpix_params params;
static size_t memory_bytes, words_bytes;

static void *memory_get(size_t bytes, int mapped) {
    void *p = NULL;

    if (mapped)
        return mpix_mem_shared_alloc(bytes, &p) == 0 ? p : NULL;
    return calloc(1, bytes);
}

static void memory_put(void *p, int mapped) {
    if (mapped)
        mpix_mem_shared_free(p);
    else
        free(p);
}

static int setup(int mapped) {
    unsigned char *want = malloc((size_t)boot->size);
    int kind;

    lanes = params.lanes;
    for (int r = 0; r < boot->size; r++)
        want[r] = r != boot->rank;
    kind = mpix_proxy_create(boot, &params, want, 2 * BANKS * lanes, 0, &bell, &proxy);
    free(want);
    if (kind)
        return kind;
    memory_bytes = (size_t)boot->size * (size_t)lanes * BANKS * (REGION + SLACK);
    words_bytes = (size_t)boot->size * (size_t)lanes * 16;
    source = memory_get(memory_bytes, mapped);
    target = memory_get(memory_bytes, mapped);
    words = memory_get(words_bytes, mapped);
    image = malloc(REGION);
    streams = calloc((size_t)(boot->size * lanes), sizeof *streams);
    memset(target, 0x5a, memory_bytes);
    kind = mpix_proxy_window(proxy, WIN_SOURCE, source, memory_bytes);
    if (!kind)
        kind = mpix_proxy_window(proxy, WIN_TARGET, target, memory_bytes);
    if (!kind)
        kind = mpix_proxy_window(proxy, WIN_WORDS, words, words_bytes);
    return kind;
}

static void teardown(int mapped) {
    mpix_proxy_free(proxy);
    memory_put(source, mapped);
    memory_put(target, mapped);
    memory_put(words, mapped);
    free(image);
    free(streams);
    proxy = NULL;
    source = target = image = NULL;
    words = NULL;
    streams = NULL;
}

/* settings: "name=value name=value" */
static void apply(const char *settings) {
    char copy[512], *save = NULL;

    snprintf(copy, sizeof copy, "%s", settings);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(word, '=');
        *eq = '\0';
        CHECK(mpix_params_set(&params, word, eq + 1) == 0, "%s=%s", word, eq + 1);
    }
}

static void run(const char *settings, int mapped, uint64_t rounds) {
    mpix_params saved = params;
    uint64_t messages = 0, bytes = 0, start = mpix_clock_ns();
    int kind;

    apply(settings);
    kind = setup(mapped);
    CHECK(kind == 0, "rank %d: %s: %s", boot->rank, settings, mpix_error_tls()->text);
    if (!kind) {
        /* No more threads than lanes to peers. */
        int ways = (boot->size - 1) * lanes,
            threads = params.proxy_threads < ways ? params.proxy_threads : ways;
        CHECK(params.proxy_threads == 0 || ways == 0 || mpix_proxy_threads(proxy) == threads,
              "%s: %d threads, %d were expected", settings, mpix_proxy_threads(proxy), threads);
        kind = exchange(rounds);
        CHECK(kind == 0, "rank %d: %s: %s", boot->rank, settings, mpix_error_tls()->text);
        for (int r = 0; r < boot->size; r++) {
            CHECK(mpix_proxy_failed(proxy, r, NULL) == 0, "rank %d says that %d failed", boot->rank,
                  r);
            if (r == boot->rank)
                continue;
            mpix_proxy_counts(proxy, r, &messages, &bytes);
            CHECK(messages >= 2 * rounds, "rank %d to %d: %llu messages", boot->rank, r,
                  (unsigned long long)messages);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        teardown(mapped);
    }
    if (boot->rank == 0)
        printf("%-9s %-8s %6.0f ms  %s\n", kind ? "FAILED" : "ok", mapped ? "mapped" : "ordinary",
               (double)(mpix_clock_ns() - start) / 1e6, settings);
    params = saved;
}

/* Threads that sleep are woken by what arrives, not by the bound of a sleep: the best of some round
 * trips is far below it. */
static void wake(void) {
    mpix_params saved = params;
    uint64_t best = UINT64_MAX, seq, start;
    int kind;

    apply("proxy=thread signal=counted");
    kind = setup(1);
    CHECK(kind == 0, "%s", mpix_error_tls()->text);
    for (uint64_t i = 1; i <= 20 && !kind && boot->rank < 2 && boot->size > 1; i++) {
        int peer = 1 - boot->rank;
        if (boot->rank == 0)
            usleep(5000); /* everybody is asleep */
        start = mpix_clock_ns();
        while (boot->rank == 1 && word(0, 0, 0) < i)
            usleep(10);
        CHECK(mpix_proxy_signal(proxy, peer, 0, WIN_WORDS, word_at(boot->rank, 0, 0), i,
                                (uint32_t)(i % 2), 0, &seq) == 1,
              "%s", mpix_error_tls()->text);
        while (boot->rank == 0 && word(1, 0, 0) < i && mpix_clock_ns() - start < 20000000000u)
            usleep(10);
        best = mpix_clock_ns() - start < best ? mpix_clock_ns() - start : best;
    }
    CHECK(boot->size < 2 || boot->rank > 0 || best < 20000000, "the best round trip took %llu ns",
          (unsigned long long)best);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!kind)
        teardown(1);
    params = saved;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int create_kind(const char *settings, int counters) {
    mpix_params saved = params;
    unsigned char *want = malloc((size_t)boot->size);
    mpix_proxy *p = NULL;
    int kind;

    apply(settings);
    for (int r = 0; r < boot->size; r++)
        want[r] = r != boot->rank;
    kind = mpix_proxy_create(boot, &params, want, counters, 0, NULL, &p);
    if (!kind)
        mpix_proxy_free(p);
    CHECK(kind == 0 || p == NULL, "an output was set on failure");
    free(want);
    params = saved;
    return kind;
}

static void refusals(void) {
    int last = boot->rank == boot->size - 1, kind;

    mpix_log_configure(MPIX_LOG_NONE, "");
    kind = create_kind("transport=pigeon", 4);
    CHECK(kind == MPIX_ERRK_UNSUPPORTED && strstr(mpix_error_tls()->text, "pigeon"), "%d: %s", kind,
          mpix_error_tls()->text);
    kind = create_kind("transport=shmem max_op=63", 4);
    CHECK(kind == MPIX_ERRK_ARG && strstr(mpix_error_tls()->text, "63"), "%d: %s", kind,
          mpix_error_tls()->text);
    kind = create_kind("lanes=1", 65536);
    CHECK(kind == MPIX_ERRK_UNSUPPORTED && strstr(mpix_error_tls()->text, "65536"), "%d: %s", kind,
          mpix_error_tls()->text);
    kind = create_kind("transport=shmem proxy=caller proxy_threads=2", 4);
    CHECK(kind == MPIX_ERRK_UNSUPPORTED && strstr(mpix_error_tls()->text, "mpix_ep_proxy_threads"),
          "%d: %s", kind, mpix_error_tls()->text);
    if (boot->size > 1) {
        /* The rank that differs from rank 0 gets ARG, the others learn of it. */
        const int differs = last ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE;
        kind = create_kind(last ? "proxy_threads=2" : "proxy_threads=3", 4);
        CHECK(kind == differs && strstr(mpix_error_tls()->text, "mpix_ep_proxy_threads"), "%d: %s",
              kind, mpix_error_tls()->text);
        kind = create_kind(last ? "lanes=2" : "lanes=1", 4);
        CHECK(kind == differs && strstr(mpix_error_tls()->text, "mpix_ep_lanes"), "%d: %s", kind,
              mpix_error_tls()->text);
        kind = create_kind(last ? "signal=counted" : "signal=auto", 4);
        CHECK(kind == differs && strstr(mpix_error_tls()->text, "mpix_ep_signal"), "%d: %s", kind,
              mpix_error_tls()->text);
        kind = create_kind("transport=shmem", last ? 5 : 4);
        CHECK(kind == differs, "%d: %s", kind, mpix_error_tls()->text);
        kind = create_kind("transport=shmem", last ? 65536 : 4);
        CHECK(kind == (last ? MPIX_ERRK_UNSUPPORTED : MPIX_ERRK_REMOTE), "%d: %s", kind,
              mpix_error_tls()->text);
        kind = create_kind(last ? "transport=null" : "transport=shmem", 4);
        CHECK(kind == differs && strstr(mpix_error_tls()->text, "shmem"), "%d: %s", kind,
              mpix_error_tls()->text);
    }
    mpix_log_configure(params.log_level, params.log_file);
    CHECK(create_kind("", 0) == 0, "%s", mpix_error_tls()->text);
}

/* Arguments that no correct caller gives: refused, and nothing is queued. */
static void misuse(void) {
    uint64_t seq = 77;
    int peer = (boot->rank + 1) % boot->size;

    mpix_log_configure(MPIX_LOG_NONE, "");
    CHECK(mpix_proxy_put(proxy, boot->rank, 0, WIN_SOURCE, 0, WIN_TARGET, 0, 1, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "own rank");
    CHECK(mpix_proxy_put(proxy, boot->size, 0, WIN_SOURCE, 0, WIN_TARGET, 0, 1, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "no rank");
    CHECK(mpix_proxy_put(proxy, peer, lanes, WIN_SOURCE, 0, WIN_TARGET, 0, 1, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "no lane");
    CHECK(mpix_proxy_put(proxy, peer, 0, 6, 0, WIN_TARGET, 0, 1, 0, &seq) == -MPIX_ERRK_INTERNAL,
          "no local window");
    CHECK(mpix_proxy_put(proxy, peer, 0, WIN_SOURCE, 0, 6, 0, 1, 0, &seq) == -MPIX_ERRK_INTERNAL,
          "no remote window");
    CHECK(mpix_proxy_put(proxy, peer, 0, WIN_SOURCE, memory_bytes, WIN_TARGET, 0, 1, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "local end");
    CHECK(mpix_proxy_put(proxy, peer, 0, WIN_SOURCE, 0, WIN_TARGET, UINT64_MAX, 2, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "remote end");
    CHECK(mpix_proxy_put(proxy, peer, 0, WIN_SOURCE, 0, WIN_TARGET, 0, memory_bytes + 1, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "length");
    CHECK(mpix_proxy_signal(proxy, peer, 0, WIN_WORDS, 4, 1, 0, 0, &seq) == -MPIX_ERRK_INTERNAL,
          "alignment");
    CHECK(mpix_proxy_signal(proxy, peer, 0, WIN_WORDS, words_bytes, 1, 0, 0, &seq) ==
              -MPIX_ERRK_INTERNAL,
          "word");
    CHECK(seq == 77, "a number was given");
    mpix_log_configure(params.log_level, params.log_file);
}

/* Cycles of creation, in turn with a few batches; windows are registered again under the
 * same numbers. */
static void cycles(int n) {
    int fds = -1, maps = -1;

    for (int i = 0; i < n; i++) {
        mpix_params saved = params;
        int kind;
        apply(i % 4 == 0   ? "proxy=thread signal=counted"
              : i % 4 == 1 ? "signal=counted"
              : i % 4 == 2 ? "proxy=thread"
                           : "lanes=2");
        kind = setup(1);
        CHECK(kind == 0, "cycle %d: %s", i, mpix_error_tls()->text);
        if (kind)
            return;
        if (i % 20 == 0) {
            if (boot->size > 1)
                misuse();
            CHECK(exchange(1) == 0, "cycle %d: %s", i, mpix_error_tls()->text);
            kind = mpix_proxy_window(proxy, WIN_SOURCE, i % 40 ? source : NULL,
                                     i % 40 ? memory_bytes : 0);
            CHECK(kind == 0, "cycle %d: %s", i, mpix_error_tls()->text);
        }
        teardown(1);
        params = saved;
        if (i == 3) {
            fds = check_open_files();
            maps = check_windows();
        }
    }
    CHECK(check_open_files() == fds, "%d descriptors, %d at the start", check_open_files(), fds);
    CHECK(check_windows() == maps, "%d mappings, %d at the start", check_windows(), maps);
}

/* ---- death ----------------------------------------------------------------------------------- */

/*
 * Survivors leave together: one that left while another still looked for the victim could be
 * found dead in its place. Each tells every other by a signal with a number that no batch has,
 * into the word of answers, which has no reader left but the other's `exchange`, for which it is
 * an answer to everything.
 */
static void meet(int victim) {
    const uint64_t done = UINT64_C(1) << 40;
    uint64_t start = mpix_clock_ns(), seq[boot->size];
    int waiting = 1;

    memset(seq, 0, sizeof seq);
    while (waiting && mpix_clock_ns() - start < 20000000000u) {
        waiting = 0;
        for (int r = 0; r < boot->size; r++) {
            if (r == boot->rank || r == victim)
                continue;
            if (!seq[r] && mpix_proxy_signal(proxy, r, 0, WIN_WORDS, word_at(boot->rank, 0, 1),
                                             done, (uint32_t)answer_counter(0, 0), 0, &seq[r]) <= 0)
                seq[r] = 0;
            if (mpix_proxy_failed(proxy, r, NULL) == 0) /* or it has met everybody and is gone */
                waiting |= !seq[r] || mpix_proxy_completed(proxy, r, 0) < seq[r];
            waiting |= word(r, 0, 1) != done;
        }
        mpix_proxy_step(proxy);
        usleep(100);
    }
    CHECK(!waiting, "rank %d waits for the other survivors", boot->rank);
}

/* The victim leaves in the middle; everybody who exchanges with it gets PEER with its rank, soon;
 * freeing does not wait for it. */
static int killed(const char *progress) {
    int victim = boot->size - 2, kind = 0, failed = 0;
    uint64_t start;
    MPIX_Error error;

    mpix_log_configure(MPIX_LOG_NONE, "");
    apply(strcmp(progress, "threads") == 0  ? "proxy_threads=3 lanes=4 signal=counted"
          : strcmp(progress, "thread") == 0 ? "proxy=thread signal=counted"
                                            : "signal=counted");
    if (setup(1) != 0)
        return 1;
    kind = exchange(2);
    CHECK(kind == 0, "before: %s", mpix_error_tls()->text);
    if (boot->rank == victim)
        raise(SIGKILL);
    start = mpix_clock_ns();
    while (!failed && mpix_clock_ns() - start < 20000000000u) {
        mpix_proxy_step(proxy);
        failed = mpix_proxy_failed(proxy, victim, &error);
        usleep(100);
    }
    CHECK(failed == MPIX_ERRK_PEER && error.rank == victim && error.kind == MPIX_ERRK_PEER &&
              error.host[0],
          "%d: %s", failed, error.text);
    kind = exchange(1000);
    CHECK(kind == MPIX_ERRK_PEER && mpix_error_tls()->rank == victim, "after: %d %s", kind,
          mpix_error_tls()->text);
    for (int r = 0; r < boot->size; r++)
        CHECK(r == victim || r == boot->rank || mpix_proxy_failed(proxy, r, NULL) == 0, "rank %d",
              r);
    mpix_proxy_dump(proxy);
    meet(victim);
    start = mpix_clock_ns();
    teardown(1);
    CHECK(mpix_clock_ns() - start < 2000000000u, "free took %llu ns",
          (unsigned long long)(mpix_clock_ns() - start));
    printf("rank %d: passed, %d failures\n", boot->rank, check_failures);
    fflush(stdout);
    _exit(check_failures != 0);
}

int main(int argc, char **argv) {
    static const char *const forms[] = {"signal=auto", "signal=counted"};
    static const char tiny[] = "lanes=3 max_op=1000 fifo_slots=2 proxy_depth=1 proxy_descs=1 "
                               "credit_ops=1 credit_bytes=100";
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 30;
    char settings[512];
    int result;

    check_mpi_init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot) || mpix_params_read(&params))
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (argc > 2 && strcmp(argv[1], "--case") == 0)
        return killed(argc > 4 ? argv[4] : "caller");
    if (argc > 1)
        apply((snprintf(settings, sizeof settings, "transport=%s", argv[1]), settings));
    for (int form = 0; form < 2; form++)
        for (int thread = 0; thread < 2; thread++) {
            static const char *const who[] = {"proxy=caller", "proxy=thread"};
            snprintf(settings, sizeof settings, "%s %s", forms[form], who[thread]);
            run(settings, 1, rounds);
            snprintf(settings, sizeof settings, "%s %s lanes=2 max_op=4096", forms[form],
                     who[thread]);
            run(settings, 0, rounds);
            snprintf(settings, sizeof settings, "%s %s %s", forms[form], who[thread], tiny);
            run(settings, form == thread, rounds / 3 + 1);
            if (!thread)
                continue;
            /* lanes and peers spread over several; over a given transport the least of it */
            for (int n = 2; n <= 3; n++) {
                if (argc < 2 || n == 2 + form) {
                    snprintf(settings, sizeof settings, "%s proxy_threads=%d lanes=%d max_op=4096",
                             forms[form], n, 7 - n);
                    run(settings, n == 3, rounds / 2 + 1);
                }
                if (argc >= 2)
                    continue;
                snprintf(settings, sizeof settings, "%s proxy_threads=%d", forms[form], n);
                run(settings, n == 2, rounds / 2 + 1);
                snprintf(settings, sizeof settings, "%s %s proxy_threads=%d", forms[form], tiny, n);
                run(settings, form == n - 2, rounds / 3 + 1);
            }
        }
    /* Who runs the proxy may differ from rank to rank, the number of parts must not. */
    run(boot->rank % 2 ? "proxy=thread lanes=4" : "proxy=caller lanes=4", 1, rounds / 3 + 1);
    wake();
    refusals();
    if (argc < 2)
        cycles(200);
    result = check_report("proxy_mpi");
    mpix_boot_free(boot, 0);
    check_leaks();
    MPI_Finalize();
    return result;
}
