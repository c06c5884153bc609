/*
 * net_shmem_post.c - operations of the transport shmem. An operation is executed when it is posted,
 * by copies and stores; its completion is reported by the next poll.
 *
 * Order. Copies come before the release store of the word, or of the ring's head, and a reader that
 * loads those with acquire sees them. A system call that writes the peer's memory is over before
 * the message that follows it is stored.
 *
 * Waking. As in wait.h: the sleeper announces itself in its page, fences, and polls once more; who
 * has put a message fences, and sends a datagram if it sees the announcement.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "transport/net_shmem.h"

/* ---- messages -------------------------------------------------------------------------------- */

static int shmem_room(const shmem_ring *ring) {
    return atomic_load_explicit(&ring->head, memory_order_relaxed) -
               atomic_load_explicit(&ring->tail, memory_order_acquire) <
           SHMEM_RING;
}

static void shmem_put(shmem_peer *peer, shmem_message message) {
    shmem_ring *ring = peer->out;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    ring->message[head % SHMEM_RING] = message;
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    peer->wake = 1;
}

static void shmem_wake(shmem_net *n, shmem_peer *peer) {
    peer->wake = 0;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&peer->page->sleeping, memory_order_relaxed) &&
        atomic_exchange_explicit(&peer->page->sleeping, 0, memory_order_relaxed))
        (void)!sendto(n->sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&peer->sock,
                      peer->sock_len);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int shmem_call_failed(shmem_net *n, int peer, int err) {
    if (err == ESRCH) {
        n->peers[peer].dead = n->peers[peer].dead_told = 1;
        return -mpix_fail_peer(MPIX_ERRK_PEER, peer, n->hostnames[peer],
                               "process %ld of rank %d has ended", (long)n->peers[peer].pid, peer);
    }
    return -mpix_fail_sys(MPIX_ERRK_TRANSPORT, err,
                          "the memory of rank %d (process %ld) can't be accessed", peer,
                          (long)n->peers[peer].pid);
}

static int shmem_revoked(const shmem_net *n, int peer) {
    return -mpix_fail_peer(MPIX_ERRK_PEER, peer, n->hostnames[peer],
                           "rank %d has taken this memory back: its object has ended or failed",
                           peer);
}

/* One system call; -1 with errno EACCES: the owner has taken its memory back. */
static ssize_t shmem_write(shmem_peer *peer, pid_t pid, const struct iovec *here,
                           const struct iovec *there) {
    ssize_t done;

    if (!mpix_calls_enter(&peer->out->calls, &peer->page->revoked)) {
        errno = EACCES;
        return -1;
    }
    done = process_vm_writev(pid, here, 1, there, 1, 0);
    mpix_calls_leave(&peer->out->calls);
    return done;
}

/* By system call; it may move less than asked for. What was read while the owner took its memory
 * back need not be what was there. */
static int shmem_call(shmem_net *n, const mpix_net_op *op, int write) {
    char *local = op->local;
    uint64_t addr = op->rmem->addr + op->roff, left = op->len;
    shmem_peer *peer = &n->peers[op->peer];

    while (left > 0) {
        struct iovec here = {local, left}, there = {(void *)(uintptr_t)addr, left};
        ssize_t done = write ? shmem_write(peer, op->rmem->pid, &here, &there)
                             : process_vm_readv(op->rmem->pid, &here, 1, &there, 1, 0);
        if (done <= 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EACCES)
            return shmem_revoked(n, op->peer);
        if (done <= 0)
            return shmem_call_failed(n, op->peer, done < 0 ? errno : EFAULT);
        local += done;
        addr += (uint64_t)done;
        left -= (uint64_t)done;
    }
    atomic_thread_fence(memory_order_acquire); /* behind the read */
    return !write && atomic_load_explicit(&peer->page->revoked, memory_order_relaxed)
               ? shmem_revoked(n, op->peer)
               : 0;
}

static int shmem_word(shmem_peer *peer, const mpix_net_op *op) {
    if (op->rmem->map)
        atomic_store_explicit((_Atomic uint64_t *)(void *)(op->rmem->map + op->roff), op->value,
                              memory_order_release);
    else
        shmem_put(peer, (shmem_message){SHMEM_WORD, 0, op->rmem->addr + op->roff, op->value});
    return 0;
}

static int shmem_add(const mpix_net_op *op) {
    uint64_t old;

    if (!op->rmem->map)
        return -mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                          "an atomic addition over shmem needs memory that can be mapped, which "
                          "that of rank %d can't: "
                          "allocate it by the library",
                          op->peer);
    old = atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)(op->rmem->map + op->roff),
                                    op->value, memory_order_seq_cst);
    if (op->local)
        memcpy(op->local, &old, sizeof old);
    return 0;
}

static int shmem_execute(shmem_net *n, shmem_peer *peer, const mpix_net_op *op) {
    uint64_t len = op->op == MPIX_NET_WORD || op->op == MPIX_NET_ADD ? 8 : op->len;

    if (len > op->rmem->bytes || op->roff > op->rmem->bytes - len)
        return -mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                          "an operation on [%" PRIu64 ", + %" PRIu64 ") of %" PRIu64
                          " bytes of rank %d",
                          op->roff, len, op->rmem->bytes, op->peer);
    switch (op->op) {
    case MPIX_NET_WRITE:
        if (!op->rmem->map)
            return shmem_call(n, op, 1);
        if (len)
            memcpy(op->rmem->map + op->roff, op->local, len);
        return 0;
    case MPIX_NET_READ:
        if (!op->rmem->map)
            return shmem_call(n, op, 0);
        if (len)
            memcpy(op->local, op->rmem->map + op->roff, len);
        return 0;
    case MPIX_NET_WORD: return shmem_word(peer, op);
    default: return shmem_add(op);
    }
}

/* What may put a message needs room for it before anything is done. */
static int shmem_fits(const shmem_net *n, const shmem_peer *peer, const mpix_net_op *op) {
    int message = op->counter >= 0 || (op->op == MPIX_NET_WORD && !op->rmem->map);

    return peer->pending[op->lane] < (uint32_t)n->net.caps.depth &&
           (!message || shmem_room(peer->out));
}

int shmem_post(mpix_net *net, const mpix_net_op *ops, int count) {
    shmem_net *n = (shmem_net *)net;
    int i, result = 0;

    for (i = 0; i < count; i++) {
        shmem_peer *peer = &n->peers[ops[i].peer];
        if (!shmem_fits(n, peer, &ops[i]))
            break;
        result = shmem_execute(n, peer, &ops[i]);
        if (result)
            break;
        if (ops[i].counter >= 0)
            shmem_put(peer,
                      (shmem_message){.what = SHMEM_ARRIVAL, .counter = (uint32_t)ops[i].counter});
        peer->pending[ops[i].lane]++;
        n->dirty++;
    }
    for (int j = 0; j < i; j++)
        if (n->peers[ops[j].peer].wake)
            shmem_wake(n, &n->peers[ops[j].peer]);
    return result ? result : i;
}

/* ---- polling --------------------------------------------------------------------------------- */

/* A process that has ended is told of by its descriptor, even while its parent has not
 * waited for it. */
static void shmem_look_for_deaths(shmem_net *n) {
    for (int i = 0; i < n->nwanted; i++)
        n->fds[i] = (struct pollfd){.fd = n->peers[n->wanted[i]].pidfd, .events = POLLIN};
    (void)poll(n->fds, (nfds_t)n->nwanted, 0);
    for (int i = 0; i < n->nwanted; i++) {
        shmem_peer *peer = &n->peers[n->wanted[i]];
        if (!peer->connected)
            continue;
        if (peer->pidfd >= 0 ? n->fds[i].revents != 0 : kill(peer->pid, 0) != 0 && errno == ESRCH)
            peer->dead = 1;
    }
}

static int shmem_tell_deaths(shmem_net *n, mpix_net_done *done, int max) {
    int stored = 0;

    for (int i = 0; i < n->nwanted && stored < max; i++) {
        shmem_peer *peer = &n->peers[n->wanted[i]];
        if (!peer->dead || peer->dead_told)
            continue;
        peer->dead_told = 1;
        done[stored] = (mpix_net_done){.peer = n->wanted[i], .kind = MPIX_ERRK_PEER};
        snprintf(done[stored++].text, sizeof done->text, "process %ld has ended", (long)peer->pid);
    }
    return stored;
}

/* From the lane on where the last call had no more room, so that busy lanes do not keep
 * the others out. */
static int shmem_peer_poll(shmem_net *n, int rank, mpix_net_done *done, int max) {
    shmem_peer *peer = &n->peers[rank];
    int stored = 0;

    for (; n->next_lane < n->net.caps.lanes && stored < max; n->next_lane++) {
        uint32_t *pending = &peer->pending[n->next_lane];
        if (*pending == 0)
            continue;
        done[stored].peer = rank;
        done[stored].lane = n->next_lane;
        done[stored].kind = 0;
        done[stored++].n = (int)*pending;
        n->dirty -= (int)*pending;
        *pending = 0;
    }
    return stored;
}

int shmem_poll(mpix_net *net, mpix_net_done *done, int max) {
    shmem_net *n = (shmem_net *)net;
    uint64_t now = mpix_clock_ns();
    int stored = 0;

    for (int i = 0; n->dirty > 0 && i <= n->nwanted && stored < max; i++) {
        stored += shmem_peer_poll(n, n->wanted[n->next_peer], done + stored, max - stored);
        /* it has no more; the first one is visited again for the lanes before next_lane */
        if (stored < max) {
            n->next_lane = 0;
            n->next_peer = n->next_peer + 1 < n->nwanted ? n->next_peer + 1 : 0;
        }
    }
    if (now - n->deaths_ns > SHMEM_DEATHS_NS) {
        n->deaths_ns = now;
        shmem_look_for_deaths(n);
        stored += shmem_tell_deaths(n, done + stored, max - stored);
    }
    return stored;
}

/* A word that a peer could not store itself. It names memory that is registered, or else it
 * is not for us. */
static void shmem_store_word(shmem_net *n, const shmem_message *message) {
    for (const mpix_net_mem *mem = n->mems; mem; mem = mem->next) {
        uint64_t base = (uint64_t)(uintptr_t)mem->base;
        if (message->addr >= base && mem->bytes >= 8 && message->addr - base <= mem->bytes - 8 &&
            message->addr % 8 == 0) {
            atomic_store_explicit((_Atomic uint64_t *)(uintptr_t)message->addr, message->value,
                                  memory_order_release);
            n->stored = 1;
            return;
        }
    }
}

static int shmem_take(shmem_net *n, int rank, mpix_net_arrival *arrivals, int max) {
    shmem_ring *ring = n->peers[rank].in;
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed),
             head = atomic_load_explicit(&ring->head, memory_order_acquire), at;
    int stored = 0;

    for (at = tail; at != head && stored < max; at++) {
        const shmem_message *message = &ring->message[at % SHMEM_RING];
        if (message->what == SHMEM_ARRIVAL)
            arrivals[stored++] = (mpix_net_arrival){rank, message->counter};
        else
            shmem_store_word(n, message);
    }
    if (at != tail)
        atomic_store_explicit(&ring->tail, at, memory_order_release);
    return stored;
}

/* Each call begins with another peer, so that a busy one does not keep the others out. Who sleeps
 * until a word changes is told that some did. */
int shmem_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    shmem_net *n = (shmem_net *)net;
    int stored = 0;

    for (int i = 0; i < n->nwanted && stored < max; i++)
        stored += shmem_take(n, n->wanted[(n->next_ring + i) % n->nwanted], arrivals + stored,
                             max - stored);
    n->next_ring = n->nwanted ? (n->next_ring + 1) % n->nwanted : 0;
    if (n->stored && stored < max) {
        n->stored = 0;
        arrivals[stored++] = (mpix_net_arrival){n->rank, MPIX_NET_STORED};
    }
    return stored;
}

int shmem_arm(mpix_net *net, int *fd) {
    shmem_net *n = (shmem_net *)net;

    atomic_store_explicit(&n->page->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    *fd = n->sock;
    return 0;
}

void shmem_ack(mpix_net *net) {
    shmem_net *n = (shmem_net *)net;
    char byte;

    atomic_store_explicit(&n->page->sleeping, 0, memory_order_relaxed);
    while (recv(n->sock, &byte, 1, MSG_DONTWAIT) >= 0)
        ;
}
