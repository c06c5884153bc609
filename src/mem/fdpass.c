/*
 * fdpass.c - descriptors of windows sent over Unix datagram sockets.
 *
 * Each rank has one socket; its address, which the kernel chose in the abstract name space,
 * travelled over MPI, so all sockets exist before anybody sends, and none leaves a name behind.
 * Every rank then does both things at once, without ever blocking in one of them: it sends what can
 * be sent now, and takes what has arrived. A receiver's queue holds few datagrams, but a rank
 * empties its queue whenever it is not sending, and leaves only when it has received everything it
 * expects and sent everything it owes. So a sender always finds room in the end, in any order of
 * scheduling, with any number of ranks per core; the parameter timeout bounds the rest (a peer that
 * died or was stopped).
 *
 * Abstract names are open to every process of the network name space, so a datagram counts only if
 * it carries the random number that the sender's blob has, and anything else is dropped together
 * with the descriptors in it.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/mem_internal.h"
#include "transport/transport.h"

typedef struct fdpass_note {
    uint64_t random[2]; /* of the sender's window */
    int32_t rank, pad;
} fdpass_note;

typedef struct fdpass {
    mpix_boot *boot;
    const mpix_params *params;
    mpix_win *win;
    mpix_win_blob *blobs;
    int sock, kind;       /* kind: the first error */
    int to_send, to_take; /* how many are left */
} fdpass;

int mpix_fdpass_open(mpix_win_blob *blob, int *out) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t len = sizeof addr;
    char hint[128] = "";
    int err, sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (sock < 0) {
        err = errno;
        if (err == EMFILE || err == ENFILE)
            mpix_mem_nofile_hint(hint, sizeof hint);
        return mpix_fail_sys(hint[0] ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT, err,
                             "a Unix socket can't be had%s%s", hint[0] ? "; " : "", hint);
    }
    /* Only the family: the kernel finds a free abstract name. */
    if (bind(sock, (struct sockaddr *)&addr, sizeof addr.sun_family) != 0 ||
        getsockname(sock, (struct sockaddr *)&addr, &len) != 0) {
        err = errno;
        close(sock);
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, err, "a Unix socket got no address");
    }
    len -= (socklen_t)offsetof(struct sockaddr_un, sun_path);
    if (len == 0 || len > sizeof blob->addr) {
        close(sock);
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "the address of a Unix socket has %u bytes",
                         (unsigned)len);
    }
    memcpy(blob->addr, addr.sun_path, len);
    blob->addr_len = (int32_t)len;
    *out = sock;
    return 0;
}

/* Neither sends to nor awaits a peer any more. */
static void fdpass_give_up(fdpass *pass, int peer) {
    pass->to_send -= pass->blobs[peer].owe;
    pass->to_take -= pass->blobs[peer].expect;
    pass->blobs[peer].owe = pass->blobs[peer].expect = 0;
}

static void fdpass_refused(fdpass *pass, int peer, const char *why) {
    if (!pass->kind)
        pass->kind = mpix_fail_peer(
            MPIX_ERRK_UNSUPPORTED, peer, pass->boot->hostnames[peer],
            "windows can't be passed between rank %d and rank %d by socket (%s), nor through /proc",
            pass->boot->rank, peer, why);
    fdpass_give_up(pass, peer);
}

/* One datagram to a peer. 0: sent or given up, 1: no room now. */
static int fdpass_send(fdpass *pass, int peer) {
    const mpix_win_blob *blob = &pass->blobs[peer], *own = &pass->blobs[pass->boot->rank];
    fdpass_note note = {.random = {own->random[0], own->random[1]}, .rank = pass->boot->rank};
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct iovec iov = {&note, sizeof note};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = {.msg_name = &addr,
                         .msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof control.room};
    struct cmsghdr *cmsg;
    char buf[96];

    memcpy(addr.sun_path, blob->addr, (size_t)blob->addr_len);
    msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)blob->addr_len);
    memset(&control, 0, sizeof control);
    cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &pass->win->fd, sizeof(int));

    if (sendmsg(pass->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
        pass->blobs[peer].owe = 0;
        pass->to_send--;
        return 0;
    }
    /* ETOOMANYREFS: as many descriptors of this user are under way as it may have open; they
     * are being taken. */
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM ||
        errno == ETOOMANYREFS)
        return 1;
    fdpass_refused(pass, peer, strerror_r(errno, buf, sizeof buf));
    return 0;
}

/* The first descriptor of a message; further ones, which only a stranger sends, are closed. */
static int fdpass_descriptor(struct msghdr *msg) {
    int first = -1;

    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        size_t n;
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof fd, sizeof fd);
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

/* A genuine note: maps what came with it. */
static void fdpass_accept(fdpass *pass, int peer, int fd) {
    mpix_win_blob *blob = &pass->blobs[peer];
    int kind = 0;

    pass->blobs[peer].expect = 0;
    pass->to_take--;
    if (fd < 0) {
        char hint[128];
        mpix_mem_nofile_hint(hint, sizeof hint);
        if (!pass->kind)
            pass->kind =
                mpix_fail_peer(MPIX_ERRK_NO_MEM, peer, pass->boot->hostnames[peer],
                               "there was no descriptor left for the window of rank %d; %s", peer,
                               hint);
        return;
    }
    if (!pass->win->peer_map[peer] && !pass->kind) { /* /proc may have given it already */
        blob->local_fd = fd;
        kind = pass->win->via[peer]->win_map(pass->boot, pass->params, pass->win, peer, blob);
        blob->local_fd = -1;
        pass->kind = kind;
    }
}

/* One datagram that has arrived. 0: taken (or dropped), 1: there is none. */
static int fdpass_take(fdpass *pass) {
    fdpass_note note;
    struct iovec iov = {&note, sizeof note};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(pass->sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int fd;

    if (n < 0)
        return errno == EINTR ? 0 : 1;
    fd = fdpass_descriptor(&msg);
    if (n == (ssize_t)sizeof note && note.rank >= 0 && note.rank < pass->boot->size &&
        pass->blobs[note.rank].expect &&
        memcmp(note.random, pass->blobs[note.rank].random, sizeof note.random) == 0)
        fdpass_accept(pass, note.rank, fd);
    else
        mpix_log(MPIX_LOG_WARN, "a datagram of %zd bytes that is not a rank's was dropped", n);
    if (fd >= 0)
        close(fd);
    return 0;
}

/* Whom this rank owes its descriptor and whose it expects; both sides of a pair come to the same
 * result from the blobs.
 */
static void fdpass_plan(fdpass *pass) {
    const mpix_boot *boot = pass->boot;
    const mpix_win_blob *own = &pass->blobs[boot->rank];

    for (int r = 0; r < boot->size; r++) {
        mpix_win_blob *blob = &pass->blobs[r];
        blob->owe = blob->expect = 0;
        if (r == boot->rank || boot->host_of[r] != boot->host_of[boot->rank])
            continue;
        if (blob->addr_len <= 0 || (size_t)blob->addr_len > sizeof blob->addr)
            continue; /* it got no socket and says so itself */
        blob->owe = own->bytes > 0;
        blob->expect = blob->bytes > 0;
        pass->to_send += blob->owe;
        pass->to_take += blob->expect;
        if (blob->net_ns != own->net_ns && (blob->owe || blob->expect))
            fdpass_refused(pass, r, "they are in different network name spaces");
    }
}

static void fdpass_timed_out(fdpass *pass) {
    for (int r = 0; r < pass->boot->size && !pass->kind; r++)
        if (pass->blobs[r].owe || pass->blobs[r].expect)
            pass->kind = mpix_fail_peer(MPIX_ERRK_TIMEOUT, r, pass->boot->hostnames[r],
                                        "rank %d did not %s a window within %g s (mpix_ep_timeout)",
                                        r, pass->blobs[r].expect ? "send" : "take",
                                        pass->params->timeout);
}

static void fdpass_run(fdpass *pass) {
    uint64_t start = mpix_clock_ns(), limit = mpix_clock_limit(pass->params->timeout);

    while (pass->to_send + pass->to_take > 0) {
        int before = pass->to_send + pass->to_take;
        struct pollfd poller = {.fd = pass->sock, .events = POLLIN};

        for (int i = 1; i < pass->boot->size && pass->to_send; i++) {
            /* Each rank begins with its neighbour, so that they do not all fill the
             * same queue first. */
            int peer = (pass->boot->rank + i) % pass->boot->size;
            if (pass->blobs[peer].owe)
                (void)fdpass_send(pass, peer);
        }
        while (pass->to_take && fdpass_take(pass) == 0)
            ;
        if (pass->to_send + pass->to_take < before)
            continue;
        if (mpix_clock_ns() - start > limit) {
            fdpass_timed_out(pass);
            return;
        }
        /* Room in another's queue can't be waited for, so a sender looks again soon. */
        (void)poll(&poller, pass->to_take ? 1 : 0, pass->to_send ? 1 : 50);
    }
}

int mpix_fdpass_exchange(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                         mpix_win_blob *blobs, int sock) {
    fdpass pass = {.boot = boot, .params = params, .win = win, .blobs = blobs, .sock = sock};

    fdpass_plan(&pass);
    fdpass_run(&pass);
    return pass.kind;
}
