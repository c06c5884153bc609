/* proxy_mpi.h - what the files of proxy_mpi share: streams of batches between all ranks. */
#ifndef MPIX_TESTS_PROXY_MPI_H
#define MPIX_TESTS_PROXY_MPI_H
#include "mpi_check.h"
#include "proxy/proxy.h"

enum { BANKS = 3, REGION = 40000, SLACK = 16, PUTS = 12, TIMEOUT_S = 60 };
enum { WIN_SOURCE = 1, WIN_TARGET = 3, WIN_WORDS = 0 };

typedef struct put {
    uint64_t loff, roff, len;
} put;

typedef struct batch {
    int n;
    put puts[PUTS];
} batch;

/* One direction of a pair on a lane. */
typedef struct stream {
    batch out; /* of epoch `sent` + 1, while it is being queued */
    int building, next;
    uint64_t sent, received, answered; /* epochs: signalled, verified, for which the
                                        * answer is queued */
    uint64_t seq[BANKS];               /* number of the signal that last used the bank */
    uint64_t answer;                   /* number of the last answer */
} stream;

extern mpix_boot *boot;
extern mpix_proxy *proxy;
extern mpix_doorbell bell;
extern int lanes;
extern char *source, *target, *image;
extern uint64_t *words; /* [peer][lane][2]: data, answer; one writer each */
extern stream *streams;

size_t word_at(int peer, int lane, int answer);
uint64_t word(int peer, int lane, int answer);
int answer_counter(int lane, uint64_t epoch);
/* All streams until everything is through. Returns 0, or the kind of the first failure. */
int exchange(uint64_t rounds);
#endif
