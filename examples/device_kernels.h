/* device_kernels.h - the kernels of device_halo.c. */
#ifndef EXAMPLES_DEVICE_KERNELS_H
#define EXAMPLES_DEVICE_KERNELS_H
#include "mpix_device.h"

enum { COLUMNS = 256 };

/* The window of each rank: rows to be sent and rows received, twice each for odd and even steps,
 * then the ring's result. */
typedef struct window {
    double send[2][2][COLUMNS]; /* [step & 1][to the rank above, below] */
    double recv[2][2][COLUMNS]; /* [step & 1][from the rank above, below] */
    unsigned char gathered[];   /* [ranks][bytes] */
} window;

typedef struct neighbours {
    int above, below;
    MPIX_Device_rmem above_at, below_at; /* their windows */
    MPIX_Device_mem here;
} neighbours;

#ifdef __cplusplus
extern "C" {
#endif
/* u: GPU memory, [2][rows + 2][COLUMNS], both filled with the beginning. Returns when the kernel
 * has ended: 0 or MPIX_DEVICE_*, or 100 + CUDA's. */
int halo_run(MPIX_Device device, const neighbours *n, double *u, int rows, int steps);
/* This rank's part is in its place of `gathered`. */
int ring_run(MPIX_Device device, const neighbours *n, int bytes);
#ifdef __cplusplus
}
#endif
#endif
