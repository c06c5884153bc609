/*
 * xfer.h - transfers: the request type of both APIs. An object of either API embeds one in each of
 * its operations; MPIX_Xfer_* works on this part only.
 */
#ifndef MPIX_XFER_XFER_H
#define MPIX_XFER_XFER_H
#include "base/wait.h"
#include "boot/boot.h"

typedef struct mpix_xfer_ops {
    /* Makes progress on the whole object; 1: this transfer is done. Notices deaths
     * and time limits. */
    int (*test)(struct mpix_xfer *xfer);
    /* Prepares the pauses between tests. */
    void (*wait_start)(struct mpix_xfer *xfer, mpix_wait *wait);
    /* Ends a done transfer: gives its memory back, puts its error into the thread's MPIX_Error and
     * returns its kind; *boot is what to raise through. */
    int (*end)(struct mpix_xfer *xfer, mpix_boot **boot);
    /* After a test that was not done: 1: there is other work to go on with, so do not
     * pause. NULL: never. */
    int (*busy)(struct mpix_xfer *xfer);
} mpix_xfer_ops;

struct mpix_xfer {
    const mpix_xfer_ops *ops;
    mpix_live live;
};

/* Blocks until the transfer is done and ends it; returns its kind without raising. */
int mpix_xfer_finish(struct mpix_xfer *xfer, mpix_boot **boot);
#endif
