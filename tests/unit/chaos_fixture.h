/* chaos_fixture.h - what the files of test_chaos share: the transport over shmem, with this rank as
 * its own peer, and a run of writes. */
#ifndef MPIX_TESTS_CHAOS_FIXTURE_H
#define MPIX_TESTS_CHAOS_FIXTURE_H
#include <check.h>

#include "transport/net.h"

enum { BYTES = 1 << 16, OPS = 24, LEN = 64 };

extern mpix_params params;
extern mpix_net *net;
extern mpix_net_mem *mem;
extern mpix_net_rmem *rmem;
extern char *from, *to;

/* What a run of OPS writes looks like from outside. */
typedef struct seen {
    int order[OPS], norder; /* writes in the order in which they were first seen whole */
    int partial;            /* a write was seen in part */
    int inverted;           /* a later one was whole before an earlier one */
    int arrivals[OPS], narrivals, arrivals_inverted;
    int failed, done; /* completions told; failed: the kind */
    char text[128];
    uint64_t ns, polls;
} seen;

void set(const char *name, const char *value);
void set_seed(int seed);
/* The calls of the set-up; the kind of the first that fails. */
int open_net(void);
void close_net(void);
mpix_net_op write_op(int i, int counted);
/* What has landed of write i: 0 nothing, 1 a part, 2 all. */
int landed(int i);
void poll_once(seen *s);
seen run(int counted, int polls);
void whole(const seen *s, int counted);

void chaos_order_tests(TCase *all);
void chaos_fails_tests(TCase *all);
#endif
