/*
 * room.c - ranks that together ask for more memory than there is get NO_MEM (or REMOTE) in time,
 * and nobody is killed.
 *
 *   room --case asks     in a control group, or on a host, as it is: each rank asks for a part of
 *                        what is left, all of them for 1.2 times that
 *   room --case claims   with a tree of the system's files that the test writes: who claims what in
 *                        calls without communication
 *   room --case limits   resource limits of one rank
 *
 * It looks inside the library for what is left, and to put the tree before the names of files.
 */
#include "harness.h"
#include "mpix_p2p.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mem/mem_internal.h"

enum { ROW = 4096 };

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* What all ranks agree on is left, at least. */
static uint64_t left(void) {
    uint64_t n = mpix_mem_available();
    MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    return n;
}

static uint64_t share(void) { return left() * 6 / 5 / (uint64_t)t_size / ROW * ROW; }

static int last_kind(void) {
    MPIX_Error error;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    return error.kind;
}

/* Every rank has failed, for lack of memory or because another has; not all for another's sake. */
static void refused(int code, const char *what) {
    MPIX_Error error;
    MPIX_INIT(&error);
    if (code != MPI_SUCCESS)
        MPIX_Error_last(&error);
    int none = code != MPI_SUCCESS && error.kind == MPIX_ERRK_NO_MEM;
    CHECK(code != MPI_SUCCESS && (none || error.kind == MPIX_ERRK_REMOTE),
          "%s: code %d, kind %d: %s", what, code, error.kind, error.text);
    MPI_Allreduce(MPI_IN_PLACE, &none, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(none, "%s: NO_MEM nowhere", what);
}

/* What was taken in vain is there again. */
static void given_back(uint64_t before) {
    uint64_t n = left();
    CHECK(n > before / 10 * 8, "%llu bytes were left, now %llu", (unsigned long long)before,
          (unsigned long long)n);
}

static int context(int mode, MPI_Count tokens, MPIX_Ep *ep) {
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.mode = mode;
    config.layout = mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    config.max_topk = 1;
    config.num_experts = t_size;
    config.depth = 1;
    config.max_tokens = tokens;
    config.max_recv_rows = mode == MPIX_EP_LL ? 0 : tokens;
    config.max_row_bytes = ROW;
    config.timeout_s = 20;
    *ep = MPIX_EP_NULL;
    return MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, ep);
}

static void asks_alloc(void) {
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_Ep ep;
    char *p;
    t_where("MPIX_P2p_alloc");
    CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p));
    uint64_t before = left(), bytes = share();
    refused(MPIX_P2p_alloc(p2p, (MPI_Count)bytes, MPI_INFO_NULL, &p, &mem), "a P2p_alloc");
    given_back(before);
    if (CHECK_OK(MPIX_P2p_alloc(p2p, (MPI_Count)(bytes / 2), MPI_INFO_NULL, &p, &mem))) {
        memset(p, 1, bytes / 2); /* it is really there */
        CHECK_OK(MPIX_P2p_dereg(&mem));
    }
    CHECK_OK(MPIX_P2p_free(&p2p));
    MPI_Barrier(MPI_COMM_WORLD);
    t_where("MPIX_Ep_alloc");
    REQUIRE(context(MPIX_EP_HT, 16, &ep) == MPI_SUCCESS, "no context");
    before = left(), bytes = share();
    refused(MPIX_Ep_alloc(ep, (MPI_Count)bytes, MPI_INFO_NULL, &p), "an Ep_alloc");
    given_back(before);
    if (CHECK_OK(MPIX_Ep_alloc(ep, (MPI_Count)(bytes / 2), MPI_INFO_NULL, &p)))
        memset(p, 1, bytes / 2);
    CHECK_OK(MPIX_Ep_free(&ep));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Low latency: a handle's banks, which hold 3 rows or more for each token. */
static void asks_handle(void) {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    t_where("a handle of low latency");
    uint64_t before = left();
    int code = context(MPIX_EP_LL, (MPI_Count)(share() / (unsigned)(t_size + 1) / ROW), &ep);
    if (code != MPI_SUCCESS) { /* proxied: more is taken at once */
        refused(code, "MPIX_Ep_create");
    } else {
        refused(MPIX_Ep_handle_create(ep, &h), "a handle");
        CHECK_OK(MPIX_Ep_free(&ep));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    given_back(before);
}

/* High throughput: mapped, a staging bank grows in a call; proxied, all is taken at creation. */
static void asks_call(void) {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    MPIX_Ep_routing routing;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    t_where("a staging bank");
    uint64_t before = left();
    MPI_Count tokens = (MPI_Count)(share() / ROW);
    int code = context(MPIX_EP_HT, tokens, &ep);
    if (code != MPI_SUCCESS) {
        refused(code, "MPIX_Ep_create");
        MPI_Barrier(MPI_COMM_WORLD);
        given_back(before);
        return;
    }
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    /* only read, and never written */
    char *x = calloc((size_t)tokens, ROW), *rows = malloc((size_t)tokens * ROW);
    REQUIRE(ids && x && rows, "no memory for the test's own buffers");
    for (MPI_Count i = 0; i < tokens; i++)
        ids[i] = (t_rank + 1) % t_size;
    CHECK_OK(MPIX_Ep_handle_create(ep, &h));
    MPIX_INIT(&routing);
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    routing.num_tokens = tokens;
    routing.topk = 1;
    routing.ids = ids;
    CHECK_OK(MPIX_Ep_route(h, &routing, NULL));
    in.hidden = ROW / 4;
    in.x.data = x;
    in.x.dtype = MPIX_EP_F32;
    out.capacity_rows = tokens;
    out.x.data = rows;
    refused(MPIX_Ep_dispatch(h, &in, &out), "a dispatch");
    routing.num_tokens = 10; /* and works on */
    CHECK_OK(MPIX_Ep_route(h, &routing, NULL));
    CHECK_OK(MPIX_Ep_dispatch(h, &in, &out));
    CHECK_OK(MPIX_Ep_free(&ep));
    MPI_Barrier(MPI_COMM_WORLD);
    free(ids);
    free(x);
    free(rows);
    given_back(before);
}

static void experts_config(MPIX_Ep_config *config) {
    MPIX_INIT(config);
    config->max_topk = 1;
    config->num_experts = 20000000;
    config->max_tokens = 1;
    config->max_row_bytes = 8;
}

/* The table of owners alone does not fit the group of 100 MiB. The question how much it takes needs
 * no memory: were it asked for the most experts there can be, tables would take more than 16 GB. */
static void asks_experts(void) {
    MPIX_Ep_config config;
    MPIX_Error error;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPI_Count bytes = 0;
    experts_config(&config);
    config.num_experts = 2147483647;
    config.max_recv_rows = 1;
    double start = now();
    CHECK_OK(MPIX_Ep_window_size(&config, t_size, t_size, &bytes));
    CHECK(bytes > 0 && now() - start < 1, "%lld bytes, told after %g s", (long long)bytes,
          now() - start);
    experts_config(&config);
    MPIX_INIT(&error);
    refused(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep), "many experts");
    MPIX_Error_last(&error);
    CHECK(error.kind == MPIX_ERRK_REMOTE || strcmp(error.arg, "config.num_experts") == 0,
          "MPIX_Ep_create: arg %s: %s", error.arg, error.text);
}

/* ---- a tree of the system's files ------------------------------------------------------------ */

static void put(const char *name, const char *text) {
    char path[400];
    snprintf(path, sizeof path, "%s%s", mpix_mem_root, name);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0, "can't write %s", path);
}

/* A host with so many MiB, and a group of version 2 with fewer. */
static void tree_make(int host, int group) {
    char text[100];
    snprintf(text, sizeof text, "MemAvailable: %d kB\nSwapFree: 0 kB\n", host << 10);
    put("/proc/meminfo", text);
    put("/proc/sys/kernel/random/boot_id", "here\n");
    put("/proc/self/cgroup", "0::/job\n");
    snprintf(text, sizeof text, "%lld\n", (long long)group << 20);
    put("/sys/fs/cgroup/job/memory.max", text);
    put("/sys/fs/cgroup/job/memory.current", "0\n");
}

static void trees(int together) {
    char root[] = "/tmp/mpix-room-XXXXXX";
    if (t_rank == 0 || !together)
        REQUIRE(mkdtemp(root), "no folder");
    if (together)
        MPI_Bcast(root, sizeof root, MPI_CHAR, 0, MPI_COMM_WORLD);
    snprintf(mpix_mem_root, sizeof mpix_mem_root, "%s", root);
    if (t_rank == 0 || !together)
        tree_make(1000, 100);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void trees_remove(int together) {
    char command[300];
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(command, sizeof command, "rm -rf %s", mpix_mem_root);
    if (t_rank == 0 || !together)
        REQUIRE(system(command) == 0, "%s", command);
    mpix_mem_root[0] = '\0';
}

/* What is left of the limit that is the lowest but for the host's, in MiB; -1: the host's is
 * the only one. */
static int lowest_group(void) {
    mpix_mem_room room;
    uint64_t least = UINT64_MAX;
    mpix_mem_room_read(&room);
    for (int i = 1; i < room.n; i++)
        least = room.limit[i].left < least ? room.limit[i].left : least;
    return room.n > 1 ? (int)(least >> 20) : -1;
}

/* Groups of both versions, nested, with and without swap; numbers in MiB are made bytes. */
static void readings(void) {
    typedef struct {
        const char *name;
        int mib;
        const char *text;
    } file;
    static const struct {
        const char *what;
        file files[6];
        int left;
    } steps[] = {
        {"no group", {{"/proc/self/cgroup", 0, "0::/a/b\n"}}, -1},
        {"none of it here", {{"/sys/fs/cgroup/a/memory.current", 10, NULL}}, -1},
        {"the parent's limit", {{"/sys/fs/cgroup/a/memory.max", 110, NULL}}, 100},
        {"max",
         {{"/sys/fs/cgroup/a/b/memory.max", 0, "max\n"},
          {"/sys/fs/cgroup/a/b/memory.current", 10, NULL}},
         100},
        {"the lower of two", {{"/sys/fs/cgroup/a/b/memory.max", 50, NULL}}, 40},
        {"pages of files",
         {{"/sys/fs/cgroup/a/b/memory.stat", 0, "anon 5\ninactive_file 1048576\n"}},
         41},
        {"used up", {{"/sys/fs/cgroup/a/b/memory.current", 60, NULL}}, 1},
        {"swap", {{"/proc/meminfo", 0, "MemAvailable: 2048000 kB\nSwapFree: 20480 kB\n"}}, 21},
        {"a limit of swap",
         {{"/sys/fs/cgroup/a/b/memory.swap.max", 15, NULL},
          {"/sys/fs/cgroup/a/b/memory.swap.current", 5, NULL}},
         11},
        {"version 1, seen from inside a container",
         {{"/proc/self/cgroup", 0, "3:cpu,memory:/docker/x\n0::/\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", 80, NULL},
          {"/sys/fs/cgroup/memory/memory.usage_in_bytes", 50, NULL},
          {"/sys/fs/cgroup/memory/memory.swappiness", 0, "0\n"}},
         30},
        {"that may swap", {{"/sys/fs/cgroup/memory/memory.swappiness", 0, "60\n"}}, 50},
        {"with a limit of both",
         {{"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", 95, NULL},
          {"/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", 55, NULL}},
         40},
        {"no limit",
         {{"/sys/fs/cgroup/memory/memory.limit_in_bytes", 0, "9223372036854771712\n"}},
         -1},
    };
    trees(0);
    put("/sys/fs/cgroup/job/memory.max", "max\n");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (const file *f = steps[i].files; f->name && f < steps[i].files + 6; f++) {
            char bytes[32];
            snprintf(bytes, sizeof bytes, "%lld\n", (long long)f->mib << 20);
            put(f->name, f->text ? f->text : bytes);
        }
        t_where("readings: %s", steps[i].what);
        CHECK(lowest_group() == steps[i].left, "%d MiB are left, expected %d", lowest_group(),
              steps[i].left);
    }
    trees_remove(0);
}

/* One rank claims 70 MiB of 100 and takes its time; another, which wants as much, gets it only if
 * it is under another limit. */
static void claims(int together) {
    enum { BYTES = 70 << 20 };
    mpix_params params;
    mpix_boot *boot;
    mpix_win *win;
    t_where("claims, ranks in %s", together ? "one group" : "groups of their own");
    trees(together);
    REQUIRE(!mpix_params_read(&params) && !mpix_boot_create(MPI_COMM_WORLD, &boot), "no boot");
    int kind = mpix_win_create(boot, &params, BYTES, MPIX_WIN_COMMIT, &win);
    CHECK((kind != 0) == together, "at creation: kind %d: %s", kind,
          kind ? mpix_error_tls()->text : "");
    if (!kind)
        mpix_win_free(win);
    REQUIRE(!mpix_win_create(boot, &params, BYTES, 0, &win), "no window");
    for (int first = 0; first < t_size; first++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (t_rank == first)
            CHECK(!mpix_claim_take(win, BYTES, "test"), "rank %d: %s", t_rank,
                  mpix_error_tls()->text);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now();
        if (t_rank != first) {
            kind = mpix_win_commit(win, 0, BYTES);
            CHECK((kind == MPIX_ERRK_NO_MEM) == together, "rank %d behind rank %d: kind %d: %s",
                  t_rank, first, kind, kind ? mpix_error_tls()->text : "");
            CHECK(now() - begin < 10, "it took %.1f s", now() - begin);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (t_rank == first)
            mpix_claim_give(BYTES);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    mpix_win_free(win);
    mpix_boot_free(boot, 0);
    trees_remove(together);
}

/* All ask at once, for what one of them can have: one is granted it, not more, and nobody
 * waits for ever. */
static void claims_race(void) {
    enum { ROUNDS = 2, BYTES = 60 << 20 };
    mpix_params params;
    mpix_boot *boot;
    mpix_win *win;
    t_where("claims at once");
    trees(1);
    REQUIRE(!mpix_params_read(&params) && !mpix_boot_create(MPI_COMM_WORLD, &boot) &&
                !mpix_win_create(boot, &params, BYTES, 0, &win),
            "no window");
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        int granted = !mpix_claim_take(win, BYTES, "test"), sum;
        MPI_Allreduce(&granted, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == 1, "%d ranks have 60 MiB of 100", sum);
        if (granted)
            mpix_claim_give(BYTES);
        MPI_Barrier(MPI_COMM_WORLD);
        if (CHECK(!mpix_claim_take(win, BYTES / 2 / (unsigned)t_size, "test"),
                  "what all can have: %s", mpix_error_tls()->text))
            mpix_claim_give(BYTES / 2 / (unsigned)t_size);
    }
    mpix_win_free(win);
    mpix_boot_free(boot, 0);
    trees_remove(1);
}

/* ---- resource limits ------------------------------------------------------------------------- */

static uint64_t mapped_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The last rank has a limit while objects are made: they are, or the errors are these. */
static void limited(int resource, const char *name, uint64_t bytes) {
    struct rlimit old, limit;
    MPIX_P2p p2p = MPIX_P2P_NULL;
    MPIX_P2p_mem mem;
    MPIX_Ep ep;
    char *p;
    t_where("%s %llu", name, (unsigned long long)bytes);
    getrlimit(resource, &old);
    limit = old;
    limit.rlim_cur = bytes < old.rlim_max ? bytes : old.rlim_max;
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == t_size - 1)
        setrlimit(resource, &limit);
    int code = MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p), kind = code ? last_kind() : 0;
    int again = !kind && (code = MPIX_P2p_alloc(p2p, 32 << 20, MPI_INFO_NULL, &p, &mem))
                    ? last_kind()
                    : 0;
    int made = context(MPIX_EP_HT, 2000, &ep), made_kind = made ? last_kind() : 0;
    if (t_rank == t_size - 1)
        setrlimit(resource, &old);
    const int expected = t_rank == t_size - 1 ? MPIX_ERRK_NO_MEM : MPIX_ERRK_REMOTE;
    CHECK(!kind || kind == expected, "MPIX_P2p_create: kind %d", kind);
    CHECK(!again || again == expected, "MPIX_P2p_alloc: kind %d", again);
    CHECK(!made || made_kind == expected, "MPIX_Ep_create: kind %d", made_kind);
    if (!made)
        CHECK_OK(MPIX_Ep_free(&ep));
    if (!kind)
        CHECK_OK(MPIX_P2p_free(&p2p));
}

static void limits(void) {
    for (int mib = 1; mib <= 64; mib *= 8) {
        limited(RLIMIT_AS, "RLIMIT_AS", mapped_bytes() + ((uint64_t)mib << 20));
        limited(RLIMIT_FSIZE, "RLIMIT_FSIZE", (uint64_t)mib << 19);
        limited(RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", (uint64_t)mib << 16);
    }
    limited(RLIMIT_DATA, "RLIMIT_DATA", (uint64_t)64 << 20);
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "room");
    const char *what = t_option_text(argc, argv, "--case", "asks");
    t_watchdog(120);
    t_where("%s", what);
    if (strcmp(what, "asks") == 0) {
        asks_alloc();
        asks_handle();
        asks_call();
    } else if (strcmp(what, "claims") == 0) {
        readings();
        claims(1);
        claims(0);
        claims_race();
        trees(1);
        asks_experts();
        trees_remove(1);
    } else if (strcmp(what, "limits") == 0) {
        limits();
    } else {
        t_die(__FILE__, __LINE__, "unknown case %s", what);
    }
    return t_end();
}
