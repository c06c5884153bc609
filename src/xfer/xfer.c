/* xfer.c - MPIX_Xfer_*: completion of transfers of both APIs. */
#include "config.h"

#include "xfer/xfer.h"

int mpix_xfer_finish(struct mpix_xfer *xfer, mpix_boot **boot) {
    if (!xfer->ops->test(xfer)) {
        mpix_wait wait;
        xfer->ops->wait_start(xfer, &wait);
        do {
            if (!xfer->ops->busy || !xfer->ops->busy(xfer))
                mpix_wait_pause(&wait);
        } while (!xfer->ops->test(xfer));
        mpix_wait_end(&wait);
    }
    return xfer->ops->end(xfer, boot);
}

/* A handle that a caller gave us: null is done, anything else must be in flight. */
static int xfer_check(MPIX_Xfer xfer) {
    if (xfer == MPIX_XFER_NULL || mpix_live_check(xfer, MPIX_LIVE_XFER))
        return 0;
    if (mpix_live_inherited(xfer, MPIX_LIVE_XFER))
        return mpix_live_need(xfer, MPIX_LIVE_XFER, "xfer", "");
    return mpix_fail(MPIX_ERRK_ARG, "xfer",
                     "transfer %p is not in flight (already completed, or not a transfer)",
                     (void *)xfer);
}

static int xfers_check(int n, MPIX_Xfer xfers[]) {
    if (n < 0)
        return mpix_fail(MPIX_ERRK_ARG, "n", "n = %d is negative", n);
    if (n > 0 && !xfers)
        return mpix_fail(MPIX_ERRK_ARG, "xfers", "xfers is NULL with n = %d", n);
    int kind = 0;
    for (int i = 0; i < n && !kind; i++)
        kind = xfer_check(xfers[i]);
    return kind;
}

static int xfer_take(MPIX_Xfer *xfer) {
    mpix_boot *boot = NULL;
    int kind = (*xfer)->ops->end(*xfer, &boot);
    *xfer = MPIX_XFER_NULL;
    return mpix_boot_raise(boot, kind);
}

int PMPIX_Xfer_test(MPIX_Xfer *xfer, int *flag) {
    int kind = 0;
    if (!xfer)
        kind = mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    else if (!flag)
        kind = mpix_fail(MPIX_ERRK_ARG, "flag", "flag is NULL");
    else
        kind = xfer_check(*xfer);
    if (kind)
        return mpix_boot_raise(NULL, kind);
    *flag = *xfer == MPIX_XFER_NULL || (*xfer)->ops->test(*xfer);
    return *flag && *xfer ? xfer_take(xfer) : MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Xfer_test);

int PMPIX_Xfer_wait(MPIX_Xfer *xfer) {
    int kind = xfer ? xfer_check(*xfer) : mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if (*xfer == MPIX_XFER_NULL)
        return MPI_SUCCESS;
    mpix_boot *boot = NULL;
    kind = mpix_xfer_finish(*xfer, &boot);
    *xfer = MPIX_XFER_NULL;
    return mpix_boot_raise(boot, kind);
}
MPIX_WEAK_ALIAS(Xfer_wait);

int PMPIX_Xfer_waitall(int n, MPIX_Xfer xfers[], int codes[]) {
    int kind = xfers_check(n, xfers), first = MPI_SUCCESS;
    if (kind)
        return mpix_boot_raise(NULL, kind);
    MPIX_Error error; /* of the first failure */
    for (int i = 0; i < n; i++) {
        int code = xfers[i] ? PMPIX_Xfer_wait(&xfers[i]) : MPI_SUCCESS;
        if (codes)
            codes[i] = code;
        if (code != MPI_SUCCESS && first == MPI_SUCCESS) {
            first = code;
            error = *mpix_error_tls();
        }
    }
    if (first != MPI_SUCCESS) /* the particulars belong to the code that is returned */
        *mpix_error_tls() = error;
    return first;
}
MPIX_WEAK_ALIAS(Xfer_waitall);

/* The first done transfer, -1: none yet. *live counts those in flight; *busy: there is work to go
 * on with at once. */
static int xfers_poll(int n, MPIX_Xfer xfers[], int *live, int *busy) {
    *live = *busy = 0;
    for (int i = 0; i < n; i++) {
        if (!xfers[i])
            continue;
        (*live)++;
        if (xfers[i]->ops->test(xfers[i]))
            return i;
        *busy |= xfers[i]->ops->busy && xfers[i]->ops->busy(xfers[i]);
    }
    return -1;
}

int PMPIX_Xfer_testany(int n, MPIX_Xfer xfers[], int *index, int *flag) {
    int live, busy, kind = xfers_check(n, xfers);
    if (!kind && !index)
        kind = mpix_fail(MPIX_ERRK_ARG, "index", "index is NULL");
    if (!kind && !flag)
        kind = mpix_fail(MPIX_ERRK_ARG, "flag", "flag is NULL");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    *index = xfers_poll(n, xfers, &live, &busy);
    *flag = *index >= 0 || live == 0;
    return *index >= 0 ? xfer_take(&xfers[*index]) : MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Xfer_testany);

int PMPIX_Xfer_waitany(int n, MPIX_Xfer xfers[], int *index) {
    int live, busy, kind = xfers_check(n, xfers);
    if (!kind && !index)
        kind = mpix_fail(MPIX_ERRK_ARG, "index", "index is NULL");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    *index = xfers_poll(n, xfers, &live, &busy);
    if (*index < 0 && live > 0) {
        /* Transfers of several objects share no doorbell: timed sleeps, unless
         * there is only one. */
        mpix_wait wait;
        for (int i = 0; i < n; i++) {
            if (xfers[i]) {
                xfers[i]->ops->wait_start(xfers[i], &wait);
                break;
            }
        }
        if (live > 1)
            wait.bell = NULL;
        do {
            if (!busy)
                mpix_wait_pause(&wait);
            *index = xfers_poll(n, xfers, &live, &busy);
        } while (*index < 0);
        mpix_wait_end(&wait);
    }
    return *index >= 0 ? xfer_take(&xfers[*index]) : MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Xfer_waitany);
