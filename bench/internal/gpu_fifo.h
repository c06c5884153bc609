/* gpu_fifo.h - the kernels of mpix_gpu_fifo_bench, and what it asks of CUDA. Functions end the
 * program when CUDA fails. */
#ifndef BENCH_GPU_FIFO_H
#define BENCH_GPU_FIFO_H
#ifndef MPIX_DEVICE_ONLY
#define MPIX_DEVICE_ONLY
#endif
#include "mpix_device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GF_FIFOS = 8, GF_MAX_WARPS = 8192 };

/* What a warp's leader did. */
typedef struct gf_sent {
    unsigned long long commands, late; /* queued; claims that found no room in time */
} gf_sent;

typedef struct gf_run {
    int blocks, warps, lanes;        /* lanes: 1 command a claim, or 32 */
    int nfifos, fence, give_up, pad; /* fence: before each store; give_up: a producer ends with its
                                      * first late claim */
    unsigned long long each, timeout_ns, word0; /* each: commands of a warp */
    int numbered, pad2; /* 1: word 0 is the warp's number, word 1 that of the command
                         * among its own */
    mpix_dev_fifo fifo[GF_FIFOS];
    gf_sent *sent; /* pinned, [blocks * warps] */
} gf_run;

/* Round trips: each warp sends a command every period_ns and waits for its number in
 * done[its FIFO]. */
typedef struct gf_trip {
    int blocks, warps, nfifos, bare; /* bare: no FIFO: a word to the host, which sends it back */
    unsigned long long each, period_ns, timeout_ns, word0;
    mpix_dev_fifo fifo[GF_FIFOS];
    const unsigned long long *done[GF_FIFOS];
    unsigned long long *copies; /* GPU memory, zeroed: of queue i, a copy of done at 32 * i, its
                                 * lock 16 words on */
    unsigned long long *flag;
    const unsigned long long *echo; /* bare, pinned: [warps in all][8] */
    unsigned *cycles;               /* pinned: [warps in all][each] */
    unsigned long long *clocks;     /* pinned: cycles and ns of the whole, of warp 0; failures */
} gf_trip;

void *gf_pinned(size_t bytes); /* zeroed */
void gf_pinned_free(void *p);
void gf_fifo_make(mpix_dev_fifo *fifo, unsigned long long slots); /* tail in a line of its own */
void *gf_device(size_t bytes);                                    /* zeroed */
void gf_device_free(void *p);
void gf_fifo_free(mpix_dev_fifo *fifo);
void gf_fifo_heads(const mpix_dev_fifo *fifo, unsigned long long *reserved,
                   unsigned long long *head);
void gf_send(const gf_run *run); /* starts it */
void gf_send_trips(const gf_trip *trip);
int gf_busy(void); /* 1: a kernel runs */
int gf_sms(void);  /* 0: there is no GPU */
const char *gf_name(void);

#ifdef __cplusplus
}
#endif
#endif
