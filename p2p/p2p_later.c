/* p2p_later.c - calls for GPU memory, which this version declares but does not have. */
#include "config.h"

#include "p2p/p2p.h"

static int later(mpix_p2p *p2p, const char *call) {
    return p2p_raise(p2p, mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                                    "%s: point-to-point is for host memory in this version of mpix-ep (%s); copy from and to the GPU around "
                                    "the ordinary calls",
                                    call, PACKAGE_VERSION));
}

static int later_iov(const MPIX_P2p_iov iov[], int n, const char *call) {
    mpix_p2p *p2p = NULL;
    int peer, kind = p2p_check(iov, n, 1, &p2p, &peer);

    return kind ? p2p_raise(p2p, kind) : later(p2p, call);
}

int PMPIX_P2p_put_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    (void)stream;
    return later_iov(iov, n, "MPIX_P2p_put_enqueue");
}
MPIX_WEAK_ALIAS(P2p_put_enqueue);

int PMPIX_P2p_get_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    (void)stream;
    return later_iov(iov, n, "MPIX_P2p_get_enqueue");
}
MPIX_WEAK_ALIAS(P2p_get_enqueue);

int PMPIX_P2p_put_notify_enqueue(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add, void *stream) {
    (void)slot, (void)add, (void)stream;
    return later_iov(iov, n, "MPIX_P2p_put_notify_enqueue");
}
MPIX_WEAK_ALIAS(P2p_put_notify_enqueue);

int PMPIX_P2p_get_device(MPIX_P2p p2p, void *device_handle) {
    (void)device_handle;
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL, mpix_fail(MPIX_ERRK_ARG, "p2p", "p2p is NULL or freed"));
    return later(p2p, "MPIX_P2p_get_device");
}
MPIX_WEAK_ALIAS(P2p_get_device);
