/* p2p_data.h - what the files of p2p_data share. */
#ifndef TESTS_P2P_DATA_H
#define TESTS_P2P_DATA_H
#include "harness.h"
#include "mpix_p2p.h"

enum { AREA = 1 << 20, PAD = 64, MAX_RANKS = 64 };

extern MPIX_P2p p2p;
extern t_rng rng;

typedef struct region {
    unsigned char *base;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem at[MAX_RANKS];
    int registered;
} region;

void fill(unsigned char *to, uint64_t seed, size_t n);
void region_new(region *r, size_t bytes, int registered);
void region_end(region *r);
/* A barrier in which this rank still does what its peers ask for. */
void meet(void);
/* From here on no transfer may call MPI; none has. */
void no_mpi_from_here(void);
void no_mpi(const char *what);

void traffic(int rounds, int regs);
void big(void);
#endif
