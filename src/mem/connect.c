/*
 * connect.c - how the ranks of a window come to map each other's memory.
 *
 * Every rank describes its memory in a blob; blobs are exchanged over MPI. The quick way to a
 * peer's descriptor is to open /proc/<pid>/fd/<fd>. It needs one pid name space and the right to
 * look at the peer (same user, not undumpable), so it may be refused to some pairs. Then all ranks
 * of that host use the other way, descriptors sent over Unix sockets: a rank can't receive from a
 * peer that does not know it should send. Which way is agreed on by a reduction over all ranks, one
 * bit per host; it is also the agreement on success in the usual case.
 *
 *   blobs (allgather) -> /proc by each rank alone -> bits (reduction) -> [addresses
 *   (allgather) -> sockets] ->
 * [agreement]
 *
 * The owner keeps its descriptor open until the end, so /proc and the sockets give the right
 * memory; the random number in the first page proves it. Descriptors of peers are closed as soon as
 * the memory is mapped.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/mem_internal.h"
#include "transport/transport.h"

/* ---- one peer -------------------------------------------------------------------------------- */

/* The reason of a failed open, with the remedy where there is one. */
static int proc_refused(const char *path, int err, char *why, size_t len) {
    char hint[128] = "", buf[96];

    if (err == EMFILE || err == ENFILE)
        mpix_mem_nofile_hint(hint, sizeof hint);
    snprintf(why, len, "%s: %s%s%s", path, strerror_r(err, buf, sizeof buf), hint[0] ? "; " : "",
             hint);
    errno = err;
    return -1;
}

/*
 * The path is opened without effect first (O_PATH): should it be another process's after all,
 * opening for writing could do something to a device or a pipe there. Only if device and inode are
 * the ones in the blob, it is opened in earnest.
 */
int mpix_win_open_proc(const mpix_win_blob *blob, char *why, size_t len) {
    char path[64], self[64];
    struct stat st;
    int probe, fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", blob->pid, blob->fd);
    probe = open(path, O_PATH | O_CLOEXEC);
    if (probe < 0)
        return proc_refused(path, errno, why, len);
    if (fstat(probe, &st) != 0 || (uint64_t)st.st_dev != blob->dev ||
        (uint64_t)st.st_ino != blob->ino) {
        snprintf(why, len, "%s is not the peer's memory: another pid name space?", path);
        close(probe);
        errno = ESRCH;
        return -1;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", probe);
    fd = open(self, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        (void)proc_refused(path, errno, why, len);
    close(probe);
    return fd;
}

int mpix_win_map_fd(mpix_win *win, const mpix_params *params, int peer, const char *host,
                    const mpix_win_blob *blob) {
    const mpix_win_header *header;
    struct stat st;
    void *map;
    int seals, err;

    if (fstat(blob->local_fd, &st) != 0)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "fstat of the memory of rank %d", peer);
    /* Without the seal the peer could cut it, and an access beyond its end is a SIGBUS here. */
    seals = fcntl(blob->local_fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || st.st_size < 0 ||
        (uint64_t)st.st_size < blob->reserved)
        return mpix_fail_peer(MPIX_ERRK_TRANSPORT, peer, host,
                              "what rank %d gave is not a window: %lld bytes, seals 0x%x", peer,
                              (long long)st.st_size, (unsigned)seals);
    map = mmap(NULL, blob->reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
               blob->local_fd, 0);
    if (map == MAP_FAILED) {
        char buf[96];
        err = errno;
        return mpix_fail_peer(MPIX_ERRK_NO_MEM, peer, host,
                              "%llu bytes of rank %d can't be mapped: %s",
                              (unsigned long long)blob->reserved, peer,
                              strerror_r(err, buf, sizeof buf));
    }
    header = map;
    if (memcmp(header->magic, MPIX_WIN_MAGIC, sizeof header->magic) != 0 ||
        memcmp(header->random, blob->random, sizeof header->random) != 0 || header->rank != peer ||
        header->bytes != blob->bytes) {
        munmap(map, blob->reserved);
        return mpix_fail_peer(MPIX_ERRK_TRANSPORT, peer, host,
                              "the memory that was mapped for rank %d is not its window", peer);
    }
    if (params->huge_pages == MPIX_HUGE_TRY && !blob->huge)
        (void)madvise(map, blob->reserved, MADV_HUGEPAGE);
    win->peer_map[peer] = map;
    win->peer_reserved[peer] = blob->reserved;
    win->peer[peer] = (char *)map + blob->header;
    return 0;
}

void mpix_win_unmap_peer(mpix_win *win, int peer) {
    if (win->peer_map[peer])
        munmap(win->peer_map[peer], win->peer_reserved[peer]);
    win->peer_map[peer] = NULL;
    win->peer[peer] = NULL;
}

/* ---- all peers ------------------------------------------------------------------------------- */

static int connect_is_local(const mpix_boot *boot, int peer) {
    return peer != boot->rank && boot->host_of[peer] == boot->host_of[boot->rank];
}

/* Through /proc. Returns a kind; *fallback is set where the other way should be tried, with the
 * reason logged. */
static int connect_proc(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                        mpix_win_blob *blobs, int peer, int *fallback) {
    mpix_win_blob *blob = &blobs[peer];
    char why[192];
    int kind;

    if (blob->pid_ns != blobs[boot->rank].pid_ns) {
        snprintf(why, sizeof why, "it is in another pid name space");
        errno = ESRCH;
    } else {
        blob->local_fd = mpix_win_open_proc(blob, why, sizeof why);
    }
    if (blob->local_fd >= 0) {
        kind = win->via[peer]->win_map(boot, params, win, peer, blob);
        close(blob->local_fd);
        blob->local_fd = -1;
        return kind;
    }
    if (errno == EMFILE || errno == ENFILE) /* sockets would need descriptors too */
        return mpix_fail_peer(MPIX_ERRK_NO_MEM, peer, boot->hostnames[peer],
                              "the window of rank %d can't be opened: %s", peer, why);
    if (params->fd_passing == MPIX_FD_AUTO) {
        mpix_log(MPIX_LOG_INFO, "windows of this host are passed by socket: rank %d: %s", peer,
                 why);
        *fallback = 1;
        return 0;
    }
    return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, boot->hostnames[peer],
                          "the window of rank %d can't be opened through /proc (%s); "
                          "mpix_ep_fd_passing=auto or socket "
                          "would try a socket",
                          peer, why);
}

/* Everything that this rank can do alone. */
static int connect_alone(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                         mpix_win_blob *blobs, int *fallback) {
    int kind = 0;

    for (int r = 0; r < boot->size; r++)
        if ((r == boot->rank || connect_is_local(boot, r)) && blobs[r].passing == MPIX_FD_SOCKET)
            *fallback =
                /* one rank of the host that wants sockets decides for all, since its peers
                 * have to join in */
                1;
    for (int r = 0; r < boot->size && !kind; r++) {
        win->peer_bytes[r] = blobs[r].bytes;
        if (!connect_is_local(boot, r))
            kind = win->via[r]->win_map(boot, params, win, r, &blobs[r]);
        else if (blobs[r].bytes && !*fallback)
            kind = connect_proc(boot, params, win, blobs, r, fallback);
    }
    for (int r = 0; r < boot->size; r++)
        win->peer_bytes[r] = blobs[r].bytes;
    return kind;
}

/* Collective over all ranks, since addresses travel over the whole communicator; hosts that need no
 * sockets only take part in that. */
static int connect_sockets(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                           mpix_win_blob *blobs, int here, int kind) {
    mpix_win_blob own;
    int sock = -1, failed;

    mpix_win_export(win, params, &own);
    if (here && !kind)
        kind = mpix_fdpass_open(&own, &sock);
    failed = mpix_boot_allgather(boot, &own, sizeof own, blobs);
    if (!failed && sock >= 0) {
        int exchanged = mpix_fdpass_exchange(boot, params, win, blobs, sock);
        kind = kind ? kind : exchanged;
    }
    if (sock >= 0)
        close(sock);
    return kind ? kind : failed;
}

int mpix_win_connect(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                     mpix_win_blob *blobs) {
    mpix_win_blob own;
    int words = (boot->nhosts + 1 + 63) / 64, fallback = 0, host = boot->host_of[boot->rank],
        any_host = 0, any = 0, kind, failed;
    /* bit 0: a rank failed; bit 1 + h: host h needs sockets */
    uint64_t *bits = calloc((size_t)words, sizeof *bits);

    /* The memory of one word per 64 hosts was had or not on each rank alone, so it is agreed on
     * with the blobs. */
    kind = bits ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d words", words);
    mpix_win_export(win, params, &own);
    own.unable = kind;
    failed = mpix_boot_allgather(boot, &own, sizeof own, blobs);
    if (failed)
        goto free_bits;
    for (int r = 0; r < boot->size; r++)
        any |= blobs[r].unable;
    if (any) {
        failed = mpix_boot_agree(boot, kind);
        goto free_bits;
    }

    kind = connect_alone(boot, params, win, blobs, &fallback);
    bits[0] |= kind ? 1 : 0;
    if (fallback)
        bits[(1 + host) / 64] |= (uint64_t)1 << ((1 + host) % 64);
    failed = mpix_boot_or(boot, bits, words);
    if (failed)
        goto free_bits;
    any = (int)(bits[0] & 1);
    for (int h = 0; h < boot->nhosts; h++)
        any_host |= (int)(bits[(1 + h) / 64] >> ((1 + h) % 64) & 1);
    if (any_host && !any) {
        fallback = (int)(bits[(1 + host) / 64] >> ((1 + host) % 64) & 1);
        win->by_socket = fallback;
        kind = connect_sockets(boot, params, win, blobs, fallback, kind);
    }
    if (any || any_host)
        failed = mpix_boot_agree(boot, kind);

free_bits:
    free(bits);
    return failed;
}
