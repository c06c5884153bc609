/*
 * net_pair.c - a network transport alone, without the proxy, between all ranks of MPI_COMM_WORLD.
 *
 *   net_pair [-t TRANSPORT] [-r ROUNDS] [-b] [-m MAX_BYTES]
 *       default: verbs, 3 rounds, 1 MiB; -b: latency and bandwidth too
 *
 * Every rank writes to every other at the same time: writes of many sizes behind which a word
 * follows, counted writes, reads, atomic adds, a full queue, sleeping until something arrives. Data
 * are checked byte by byte. Parameters come from MPIX_EP_*. Status 0 if all checks passed.
 */
#include "tests/rdma-vm/net_pair.h"

#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct net_pair t;

volatile uint64_t *word_at(int from, int which) {
    return (volatile uint64_t *)(t.base + word_offset(from, which));
}

static unsigned char pattern(int from, int to, int seed, size_t i) {
    return (unsigned char)((i * 2654435761u >> 7) + i + (size_t)from * 37 + (size_t)to * 101 +
                           (size_t)seed * 13);
}

int die(const char *what, int kind) {
    fprintf(stderr, "rank %d: %s failed, kind %d: %s\n", t.rank, what, kind,
            mpix_error_tls()->text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

int progress(void) {
    mpix_net_done done[32];
    mpix_net_arrival arrivals[32];
    int n = t.ops->poll(t.net, done, 32), m = t.ops->poll_arrivals(t.net, arrivals, 32);

    for (int i = 0; i < n; i++) {
        if (done[i].kind) {
            fprintf(stderr, "rank %d: lane %d to %d: %s\n", t.rank, done[i].lane, done[i].peer,
                    done[i].text);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        t.done[done[i].peer][done[i].lane] += done[i].n;
        CHECK(t.done[done[i].peer][done[i].lane] <= t.posted[done[i].peer][done[i].lane],
              "more completions than operations");
    }
    for (int i = 0; i < m; i++) {
        if (arrivals[i].counter == MPIX_NET_STORED)
            continue;
        CHECK(arrivals[i].counter < COUNTED, "counter %u", arrivals[i].counter);
        t.arrived[arrivals[i].peer][arrivals[i].counter % COUNTED]++;
    }
    return n + m;
}

void post(const mpix_net_op *op) {
    int taken;
    UNTIL((taken = t.ops->post(t.net, op, 1)) != 0);
    if (taken < 0)
        die("post", -taken);
    t.posted[op->peer][op->lane]++;
}

mpix_net_op op_of(int what, int peer, int lane, size_t loff, size_t roff, size_t len) {
    return (mpix_net_op){.op = (uint8_t)what,
                         .peer = peer,
                         .lane = lane,
                         .mem = t.mem,
                         .local = t.base + loff,
                         .rmem = t.rmem[peer],
                         .roff = roff,
                         .len = len,
                         .counter = -1};
}

static void post_word(int peer, int lane, int which, uint64_t value) {
    mpix_net_op op = {.op = MPIX_NET_WORD,
                      .peer = peer,
                      .lane = lane,
                      .rmem = t.rmem[peer],
                      .roff = word_offset(t.rank, which),
                      .value = value,
                      .counter = -1};
    post(&op);
}

void drain(void) {
    for (int p = 0; p < t.size; p++)
        for (int l = 0; l < t.net->caps.lanes; l++)
            UNTIL(t.done[p][l] == t.posted[p][l]);
}

#define PEERS(p) \
    for (int p = 0; p < t.size; p++) \
        if (p != t.rank)

/* All ranks get here with everything done; nobody stops polling while another still needs it. */
void barrier(int which) {
    static uint64_t epoch;
    epoch++;
    PEERS (p)
        post_word(p, 0, which, epoch);
    PEERS (p)
        UNTIL(*word_at(p, which) >= epoch);
    drain();
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void setup(const char *name) {
    unsigned char want[MAX_RANKS], *out, *in;
    int kind;

    t.ops = mpix_net_find(name);
    if (!t.ops) {
        fprintf(stderr, "transport %s is not in this build\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int p = 0; p < t.size; p++)
        want[p] = p != t.rank;
    if ((kind = t.ops->open(t.boot, &t.params, want, &t.net)))
        die("open", kind);
    t.ops = t.net->ops; /* a transport that is a module has a table of its own */
    out = calloc((size_t)t.size, t.ops->address_bytes);
    in = calloc((size_t)t.size, t.ops->address_bytes);
    PEERS (p)
        if ((kind = t.ops->address(t.net, p, out + (size_t)p * t.ops->address_bytes)))
            die("address", kind);
    MPI_Alltoall(out, (int)t.ops->address_bytes, MPI_BYTE, in, (int)t.ops->address_bytes, MPI_BYTE,
                 t.boot->comm);
    PEERS (p)
        if ((kind = t.ops->connect(t.net, p, in + (size_t)p * t.ops->address_bytes)))
            die("connect", kind);
    free(out);
    free(in);
    t.window = 64 * 1024 + 2 * (size_t)t.size * t.max;
    t.base = mmap(NULL, t.window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t.base == MAP_FAILED || (kind = t.ops->mem_reg(t.net, t.base, t.window, &t.mem)))
        die("mem_reg", kind);
    out = calloc(1, t.ops->key_bytes);
    in = calloc((size_t)t.size, t.ops->key_bytes);
    t.ops->mem_key(t.net, t.mem, out);
    MPI_Allgather(out, (int)t.ops->key_bytes, MPI_BYTE, in, (int)t.ops->key_bytes, MPI_BYTE,
                  t.boot->comm);
    PEERS (p)
        if ((kind = t.ops->rmem_open(t.net, p, in + (size_t)p * t.ops->key_bytes, &t.rmem[p])))
            die("rmem_open", kind);
    free(out);
    free(in);
    if (t.rank == 0)
        printf("# %s on %s, %s, MTU %d, lanes %d, depth %d, max_op %llu, %s\n", t.ops->name,
               t.net->caps.device, t.net->caps.address, t.net->caps.mtu, t.net->caps.lanes,
               t.net->caps.depth, (unsigned long long)t.net->caps.max_op, t.net->caps.why);
}

static void teardown(void) {
    PEERS (p)
        t.ops->rmem_close(t.net, t.rmem[p]);
    t.ops->mem_dereg(t.net, t.mem);
    t.ops->close(t.net);
    munmap(t.base, t.window);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void fill(int to, int seed, size_t len) {
    for (size_t i = 0; i < len; i++)
        t.base[source_offset(to) + i] = pattern(t.rank, to, seed, i);
}

static void compare(int from, int seed, size_t at, size_t len, const char *what) {
    size_t wrong = 0;
    for (size_t i = 0; i < len; i++)
        wrong += t.base[landing_offset(from) + at + i] != pattern(from, t.rank, seed, i);
    CHECK(wrong == 0, "%s of %zu bytes from %d: %zu bytes are wrong", what, len, from, wrong);
}

static const size_t sizes[] = {0,    1,    2,    3,    7,     8,     15,     16,     31,
                               63,   64,   65,   100,  255,   256,   1000,   1023,   1024,
                               1025, 4095, 4096, 4097, 14336, 65536, 100001, 262144, 1048576};

static void test_writes(void) {
    uint64_t seq = 0;
    for (int r = 0; r < t.rounds; r++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes && sizes[s] + 8 <= t.max; s++) {
            size_t shift = (size_t)r % 8; /* destinations at any alignment */
            seq++;
            PEERS (p) {
                int lane = (int)(seq % (uint64_t)t.net->caps.lanes);
                mpix_net_op op = op_of(MPIX_NET_WRITE, p, lane, source_offset(p),
                                       landing_offset(t.rank) + shift, sizes[s]);
                fill(p, (int)seq, sizes[s]);
                post(&op);
                if (!t.net->caps.ordered)
                    drain();
                post_word(p, lane, 0, seq);
            }
            PEERS (p) {
                UNTIL(*word_at(p, 0) >= seq);
                __atomic_thread_fence(__ATOMIC_ACQUIRE);
                compare(p, (int)seq, shift, sizes[s], "write");
            }
            PEERS (p)
                post_word(p, 0, 1, seq); /* the landing area may be written again */
            PEERS (p)
                UNTIL(*word_at(p, 1) >= seq);
            drain();
        }
    }
}

/* The parts of a batch go over all lanes; each is counted. */
static void test_counted(void) {
    enum { PART = 1000 };
    if (!t.net->caps.counted) {
        CHECK(t.net->caps.target_works, "the transport has no counted writes");
        return;
    }
    for (int r = 0; r < t.rounds; r++) {
        PEERS (p) {
            int n = (int)(t.max / PART) < COUNTED ? (int)(t.max / PART) : COUNTED;
            fill(p, 1000 + r, (size_t)n * PART);
            for (int k = 0; k < n; k++) {
                mpix_net_op op = op_of(MPIX_NET_WRITE, p, k % t.net->caps.lanes,
                                       source_offset(p) + (size_t)k * PART,
                                       landing_offset(t.rank) + (size_t)k * PART,
                                       k % 5 == 4 ? 0 : PART);
                op.counter = r % COUNTED;
                post(&op);
            }
        }
        PEERS (p) {
            int n = (int)(t.max / PART) < COUNTED ? (int)(t.max / PART) : COUNTED;
            size_t wrong = 0;
            UNTIL(t.arrived[p][r % COUNTED] >= n);
            CHECK(t.arrived[p][r % COUNTED] == n, "%ld arrivals instead of %d",
                  t.arrived[p][r % COUNTED], n);
            t.arrived[p][r % COUNTED] = 0;
            for (int k = 0; k < n; k++)
                for (size_t i = (size_t)k * PART; k % 5 != 4 && i < (size_t)(k + 1) * PART; i++)
                    wrong += t.base[landing_offset(p) + i] != pattern(p, t.rank, 1000 + r, i);
            CHECK(wrong == 0, "counted from %d: %zu bytes are wrong", p, wrong);
        }
        barrier(2);
    }
}

static void test_reads(void) {
    for (size_t s = 1; s < sizeof sizes / sizeof *sizes && sizes[s] <= t.max; s++) {
        PEERS (p)
            fill(p, (int)s, sizes[s]);
        barrier(2);
        PEERS (p) {
            mpix_net_op op = op_of(MPIX_NET_READ, p, (int)s % t.net->caps.lanes, landing_offset(p),
                                   source_offset(t.rank), sizes[s]);
            post(&op);
        }
        drain();
        PEERS (p)
            compare(p, (int)s, 0, sizes[s], "read");
        barrier(2);
    }
}

/* Everybody adds to words of everybody else; the sums, and the old values of one's own adds,
 * which must grow. */
static void test_adds(void) {
    enum { ADDS = 20, OLD = 4 };
    uint64_t sum = 0;

    *word_at(0, 8) = 0;
    barrier(2);
    for (int k = 0; k < ADDS; k++) {
        PEERS (p) {
            mpix_net_op op = op_of(MPIX_NET_ADD, p, 0, word_offset(t.rank, OLD), word_offset(0, 8),
                                   8);
            uint64_t before = k ? *word_at(t.rank, OLD) : 0;
            op.value = (uint64_t)t.rank + 1 + (1ull << 40);
            post(&op);
            drain();
            CHECK(t.size > 2 || k == 0 || *word_at(t.rank, OLD) > before, "old values do not grow");
        }
    }
    barrier(2);
    PEERS (p)
        sum += ADDS * ((uint64_t)p + 1 + (1ull << 40));
    CHECK(*word_at(0, 8) == sum, "sum %llx instead of %llx", (unsigned long long)*word_at(0, 8),
          (unsigned long long)sum);
}

/* More operations than a lane holds, several in one call: taken in order, none lost. */
static void test_full(void) {
    int next = (t.rank + 1) % t.size, total = 4 * t.net->caps.depth, taken = 0, least = OPS;
    mpix_net_op ops[OPS];

    while (taken < total) {
        int n = total - taken < OPS ? total - taken : OPS, got;
        for (int i = 0; i < n; i++) {
            ops[i] = op_of(MPIX_NET_WORD, next, t.net->caps.lanes - 1, 0, word_offset(t.rank, 3),
                           8);
            ops[i].value = (uint64_t)(taken + i + 1);
        }
        got = t.ops->post(t.net, ops, n);
        if (got < 0)
            die("post", -got);
        t.posted[next][t.net->caps.lanes - 1] += got;
        taken += got;
        least = got < least ? got : least;
        if (got < n)
            progress();
        if (got == 0)
            sched_yield();
    }
    drain();
    CHECK(least < OPS, "the queue was never full");
    UNTIL(*word_at((t.rank + t.size - 1) % t.size, 3) == (uint64_t)total);
    barrier(2);
}

/* Rank 0 sleeps until rank 1 has written; notification was armed before the last look. */
static void test_sleep(void) {
    int fd = -1, kind;

    barrier(2);
    if (t.rank == 1) {
        mpix_net_op op = op_of(MPIX_NET_WRITE, 0, 0, source_offset(0), landing_offset(1), 16);
        usleep(200000);
        op.counter = t.net->caps.counted ? 7 : -1;
        post(&op);
        if (!t.net->caps.counted)
            post_word(0, 0, 7, 1);
        drain();
    } else if (t.rank == 0) {
        int woken = 0;
        while (t.arrived[1][7] == 0 && *word_at(1, 7) == 0 && woken < 100) {
            if ((kind = t.ops->arm(t.net, &fd)))
                die("arm", kind);
            if (progress())
                continue;
            if (fd >= 0) {
                struct pollfd p = {.fd = fd, .events = POLLIN};
                CHECK(poll(&p, 1, 20000) == 1, "nothing woke the sleeper");
                t.ops->ack(t.net);
            } else {
                usleep(1000);
            }
            woken++;
        }
        CHECK(t.arrived[1][7] == t.net->caps.counted &&
                  *word_at(1, 7) == (uint64_t)!t.net->caps.counted,
              "no arrival");
        CHECK(fd < 0 || woken < 20, "woken %d times", woken);
    }
    barrier(2);
}

int main(int argc, char **argv) {
    const char *name = "verbs";
    int bench = 0, o, kind, failed = 0;
    MPI_Request left;

    check_mpi_init(&argc, &argv);
    t.rounds = 3;
    t.max = 1 << 20;
    while ((o = getopt(argc, argv, "t:r:m:b")) != -1) {
        switch (o) {
        case 't': name = optarg; break;
        case 'r': t.rounds = atoi(optarg); break;
        case 'm': t.max = (size_t)atol(optarg); break;
        case 'b': bench = 1; break;
        default: MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.size);
    if (t.size < 2 || t.size > MAX_RANKS) {
        fprintf(stderr, "net_pair needs 2 to %d ranks\n", MAX_RANKS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if ((kind = mpix_params_read(&t.params)) || (kind = mpix_boot_create(MPI_COMM_WORLD, &t.boot)))
        die("start", kind);
    setup(name);
    test_writes();
    test_counted();
    test_reads();
    test_adds();
    test_full();
    test_sleep();
    if (bench) {
        bench_latency(0, 500);
        bench_latency(2, 500);
        bench_latency(14336, 200);
        for (size_t len = 4096; len <= t.max && len <= 1048576; len *= 4) {
            bench_bandwidth(len, 8 << 20, 0);
            bench_bandwidth(len, 8 << 20, 1);
        }
    }
    barrier(2);
    MPI_Ibarrier(MPI_COMM_WORLD, &left);
    /* a peer's last operations may need this rank's work */
    UNTIL((MPI_Test(&left, &failed, MPI_STATUS_IGNORE), failed));
    teardown();
    mpix_boot_free(t.boot, 0);
    failed = check_report("net_pair");
    MPI_Finalize();
    return failed;
}
