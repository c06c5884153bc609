/* verbs_fixture.h - what the files of test_verbs share: a group of ranks on paper, and a transport
 * opened on the mocked devices. */
#ifndef MPIX_TESTS_VERBS_FIXTURE_H
#define MPIX_TESTS_VERBS_FIXTURE_H
#include <check.h>
#include <stdio.h>

#include "tests/unit/mock_verbs.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/wire.h"

enum { FIX_RANKS = 4 };

typedef struct fixture {
    mpix_boot boot;
    mpix_params params;
    unsigned char want[FIX_RANKS];
    char hostnames[FIX_RANKS][64];
    mpix_net *net;
    verbs_net *v; /* the same */
    unsigned char memory[1 << 16] __attribute__((aligned(4096)));
    mpix_net_mem *mem;
    mpix_net_rmem *rmem[FIX_RANKS];
} fixture;

extern fixture fix;

void fix_setup(void);    /* rank 0 of 4, wants all others; no device yet */
void fix_teardown(void); /* closes what is open; nothing may be left behind */
int fix_open(void);
void fix_devices(const char *list); /* the parameter net_devices */
/* Open must succeed; connects, registers memory and opens keys. open_one: of one device, mlx5_0. */
void fix_reopen(void);
void fix_open_one(void);
/* Connects all peers as if each had the same devices. */
void fix_connect(void);
/* The blob a peer would send, if it were made as this rank is. */
void fix_blob(int peer, verbs_blob *blob);
mpix_net_op fix_write(int peer, int lane, uint64_t loff, uint64_t roff, uint64_t len);
mpix_net_op fix_word(int peer, int lane, uint64_t roff, uint64_t value);
extern mpix_net_done fix_done[64]; /* what the last poll gave */
int fix_post(const mpix_net_op *ops, int n);
int fix_poll(void);
mock_qp *fix_qp(int peer, int lane);
/* The last error of this thread is of that kind and says all of the words (NULL at the end). */
void fix_error(int kind, int expected, ...);

TCase *verbs_device_case(void);
TCase *verbs_connect_case(void);
TCase *verbs_mem_case(void);
TCase *verbs_post_case(void);
TCase *verbs_poll_case(void);
TCase *verbs_event_case(void);
#endif
