/*
 * window.c - this rank's own memory of a window: reservation, commitment, release.
 */
#include "config.h"

#include "mem/window.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/topo.h"
#include "mem/claim.h"
#include "mem/mem_internal.h"
#include "mem/shared.h"
#include "transport/transport.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    WIN_HUGE_MIN = 4,             /* explicit huge pages for windows of at least so many */
    WIN_COMMIT_PIECE = 64 << 20,  /* memory is asked for again after so many bytes */
    WIN_COMMIT_CHECKED = 1 << 20, /* smaller commits do not ask */
    WIN_MPOL_PREFERRED = 1        /* of linux/mempolicy.h */
};

static size_t win_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t win_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static int win_no_mem(size_t bytes, int err, const char *what) {
    char hint[128] = "";

    if (err == EMFILE || err == ENFILE) {
        mpix_mem_nofile_hint(hint, sizeof hint);
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err,
                             "a window of %zu bytes needs a file descriptor (%s), and %s", bytes,
                             what, hint);
    }
    if (mpix_mem_refused(err))
        return mpix_mem_fail_refused(bytes, err, what);
    return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "%zu bytes of window memory can't be had (%s)",
                         bytes, what);
}

/* A size beyond RLIMIT_FSIZE would kill the process by SIGXFSZ: the limit holds for this memory
 * too, which is a file to the system. */
static int win_check_fsize(size_t bytes, size_t reserved) {
    struct rlimit limit;

    if (reserved > (size_t)INT64_MAX)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "a window of %zu bytes is larger than the address space", bytes);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        reserved > limit.rlim_cur)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "a window of %zu bytes exceeds the limit of file sizes (RLIMIT_FSIZE, "
                         "ulimit -f), %" PRIu64 " bytes, which holds for shared memory too",
                         bytes, (uint64_t)limit.rlim_cur);
    return 0;
}

/* The default huge page size, 0 if there are none or fewer than bytes need. */
static size_t win_huge_page(size_t bytes) {
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long n, free_pages = 0, kb = 0;
    char line[256];

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "HugePages_Free: %llu", &n) == 1)
            free_pages = n;
        if (sscanf(line, "Hugepagesize: %llu kB", &n) == 1)
            kb = n;
    }
    fclose(file);
    if (kb == 0 || bytes < WIN_HUGE_MIN * kb * 1024 ||
        free_pages < (bytes + win_page()) / (kb * 1024) + 1)
        return 0;
    return (size_t)kb * 1024;
}

/* Memory of a rank that is bound to one NUMA node belongs there, even if another process should
 * touch it first. Only a wish. */
static void win_prefer_node(void *map, size_t len) {
    const mpix_topo *topo = mpix_topo_get();
    unsigned long mask[16] = {0};
    const int bits = 8 * (int)sizeof mask[0];

    if (topo->numa_nodes < 2 || topo->numa_local < 0 || topo->numa_local >= 16 * bits)
        return;
    mask[topo->numa_local / bits] = 1ul << (topo->numa_local % bits);
    if (syscall(SYS_mbind, map, len, WIN_MPOL_PREFERRED, mask, sizeof mask * 8, 0) != 0)
        mpix_log(MPIX_LOG_DEBUG, "mbind to NUMA node %d: %s", topo->numa_local, strerror(errno));
}

/* Descriptor, size, seals, mapping. On failure nothing is left, errno is set and *what
 * names the step. */
static int win_reserve(mpix_win *win, size_t reserved, int huge, const char **what) {
    int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? (int)MFD_HUGETLB : 0), saved;
    void *map;

    *what = "memfd_create";
    win->fd = memfd_create("mpix-ep", (unsigned)flags);
    if (win->fd < 0)
        return -1;
    *what = "ftruncate";
    if (ftruncate(win->fd, (off_t)reserved) != 0)
        goto close_fd;
    /* A peer can't take memory away from under us, nor we from under it. */
    *what = "F_ADD_SEALS";
    if (fcntl(win->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        goto close_fd;
    *what = "mmap";
    map = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, win->fd, 0);
    if (map == MAP_FAILED)
        goto close_fd;
    win->map = map;
    win->reserved = reserved;
    win->huge = huge;
    mpix_mem_file_add(map, reserved, win->fd);
    win_prefer_node(map, reserved);
    return 0;

close_fd:
    saved = errno;
    close(win->fd);
    win->fd = -1;
    errno = saved;
    return -1;
}

static void win_release(mpix_win *win) {
    mpix_claim_hide(win);
    if (win->map)
        mpix_mem_file_remove(win->map);
    if (win->map)
        munmap(win->map, win->reserved);
    if (win->fd >= 0)
        close(win->fd);
    win->map = win->base = NULL;
    win->fd = -1;
    win->huge = 0;
}

/* fallocate of a range of the file; interrupted calls go on where they were. 0 or an errno. */
static int win_allocate(int fd, size_t off, size_t len) {
    while (fallocate(fd, 0, (off_t)off, (off_t)len) != 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/*
 * Explicit huge pages: all of them are allocated at once, for a huge page that turns out to be
 * missing later is a SIGBUS. Failing is ordinary; then the window gets ordinary pages. Returns
 * whether it worked.
 */
static int win_try_huge(mpix_win *win, size_t bytes) {
    size_t unit = win_huge_page(bytes);
    const char *what;

    if (unit == 0 || win_reserve(win, win_round_up(bytes + win_page(), unit), 1, &what) != 0)
        return 0;
    if (win_allocate(win->fd, 0, win->reserved) == 0) {
        if (win->prefault)
            (void)madvise(win->map, win->reserved, MADV_POPULATE_WRITE);
        return 1;
    }
    win_release(win);
    return 0;
}

/* One piece, page aligned, of the file. */
static int win_commit_piece(mpix_win *win, size_t off, size_t len, size_t total) {
    uint64_t available = total >= WIN_COMMIT_CHECKED ? mpix_mem_available() : UINT64_MAX;
    int err;

    if (available < len)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "%zu bytes of window memory can't be had: %" PRIu64
                         " are left on this host",
                         total, available);
    /*
     * Touched first and allocated after it: where the system gives transparent huge pages on
     * request, only a page fault in a mapping so advised gets one. Touching never fails the commit;
     * fallocate decides, and finds the pages there.
     */
    if (win->prefault)
        (void)madvise((char *)win->map + off, len, MADV_POPULATE_WRITE);
    err = win_allocate(win->fd, off, len);
    return err ? win_no_mem(total, err, "fallocate") : 0;
}

/* The whole must fit before a part of it is taken, beside what the other ranks are about to take
 * (claim.c). Each piece is asked for again, since other programs allocate at the same time. */
static int win_commit_range(mpix_win *win, size_t begin, size_t end, size_t bytes) {
    int claims = bytes >= WIN_COMMIT_CHECKED,
        kind = claims ? mpix_claim_take(win, end - begin, "window memory") : 0;

    if (kind)
        return kind;
    for (size_t at = begin, len; at < end && !kind; at += len) {
        len = end - at < WIN_COMMIT_PIECE ? end - at : WIN_COMMIT_PIECE;
        kind = win_commit_piece(win, at, len, bytes);
        if (claims)
            mpix_claim_give(kind ? end - at : len);
    }
    return kind;
}

int mpix_win_commit(mpix_win *win, size_t off, size_t bytes) {
    size_t page = win_page();

    if (bytes == 0 || win->huge || win->fd < 0)
        return 0; /* nothing to do, or all of it was committed at creation */
    if (off > win->bytes || bytes > win->bytes - off)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "commit of %zu bytes at %zu of a window of %zu",
                         bytes, off, win->bytes);
    return win_commit_range(win, (page + off) / page * page, win_round_up(page + off + bytes, page),
                            bytes);
}

static int win_write_header(mpix_win *win, size_t page) {
    mpix_win_header *header = win->map;
    uint64_t random[2];
    int err = win->huge ? 0 : win_allocate(win->fd, 0, page);

    if (err)
        return win_no_mem(win->bytes, err, "fallocate");
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "getrandom");
    memcpy(header->magic, MPIX_WIN_MAGIC, sizeof header->magic);
    memcpy(header->random, random, sizeof random);
    header->bytes = win->bytes;
    header->rank = win->rank;
    mpix_claim_show(win);
    return 0;
}

/* This rank's memory, not committed yet; on error what was made stays in win, for the
 * caller to free. */
static int win_make(mpix_win *win, const mpix_params *params, int flags) {
    size_t page = win_page(), reserved;
    const char *what;
    int kind;

    if (win->bytes == 0)
        return 0;
    if (win->bytes > SIZE_MAX / 4)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "a window of %zu bytes is larger than the address space", win->bytes);
    reserved = page + win_round_up(win->bytes, page);
    kind = win_check_fsize(win->bytes, reserved);
    if (kind)
        return kind;
    if (!(params->huge_pages == MPIX_HUGE_TRY && (flags & MPIX_WIN_COMMIT) &&
          win_try_huge(win, win->bytes))) {
        if (win_reserve(win, reserved, 0, &what) != 0)
            return win_no_mem(win->bytes, errno, what);
        if (params->huge_pages == MPIX_HUGE_TRY)
            (void)madvise(win->map, win->reserved, MADV_HUGEPAGE);
    }
    win->base = (char *)win->map + page;
    return win_write_header(win, page);
}

/* All of it, on all ranks: what those of a host take together must be there before any of
 * them takes it. */
static int win_fill(mpix_boot *boot, mpix_win *win) {
    int kind = mpix_mem_together(boot, win->huge ? 0 : win->bytes, "window memory");

    if (!kind)
        kind = mpix_win_commit(win, 0, win->bytes);
    return mpix_boot_agree(boot, kind);
}

/* The number of a name space of this process, 0 if the system does not say. */
static uint64_t win_namespace(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

void mpix_win_export(const mpix_win *win, const mpix_params *params, mpix_win_blob *blob) {
    struct stat st;

    memset(blob, 0, sizeof *blob);
    blob->bytes = win->bytes;
    blob->passing = params->fd_passing;
    blob->pid_ns = win_namespace("/proc/self/ns/pid");
    blob->net_ns = win_namespace("/proc/self/ns/net");
    blob->fd = blob->local_fd = -1;
    if (!win->map || win->fd < 0 || fstat(win->fd, &st) != 0)
        return;
    memcpy(blob->random, ((const mpix_win_header *)win->map)->random, sizeof blob->random);
    blob->reserved = win->reserved;
    blob->header = (uint64_t)((char *)win->base - (char *)win->map);
    blob->dev = (uint64_t)st.st_dev;
    blob->ino = (uint64_t)st.st_ino;
    blob->pid = (int32_t)getpid();
    blob->fd = win->fd;
    blob->huge = win->huge;
}

static mpix_win *win_new(const mpix_boot *boot, size_t bytes, const mpix_params *params) {
    size_t n = (size_t)boot->size;
    mpix_win *win = calloc(1, sizeof *win);

    if (!win)
        goto fail;
    win->fd = -1;
    win->rank = boot->rank;
    win->size = boot->size;
    win->bytes = bytes;
    win->prefault = params->prefault;
    win->peer = calloc(n, sizeof *win->peer);
    win->peer_bytes = calloc(n, sizeof *win->peer_bytes);
    win->via = calloc(n, sizeof *win->via);
    win->peer_map = calloc(n, sizeof *win->peer_map);
    win->peer_reserved = calloc(n, sizeof *win->peer_reserved);
    if (win->peer && win->peer_bytes && win->via && win->peer_map && win->peer_reserved)
        return win;
    mpix_win_free(win);
fail:
    mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the description of a window of %d ranks",
              boot->size);
    return NULL;
}

/* The transport of every pair; a peer that none reaches is this rank's error. */
static int win_choose(const mpix_boot *boot, mpix_win *win) {
    char why[192];

    for (int r = 0; r < win->size; r++) {
        win->via[r] = mpix_transport_choose(boot, r, why, sizeof why);
        if (!win->via[r])
            return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, r, boot->hostnames[r],
                                  "rank %d on %s can't be reached from rank %d on %s: %s", r,
                                  boot->hostnames[r], boot->rank, boot->hostnames[boot->rank], why);
    }
    return 0;
}

int mpix_win_create(mpix_boot *boot, const mpix_params *params, size_t bytes, int flags,
                    mpix_win **out) {
    mpix_win_blob *blobs = NULL;
    mpix_win *win = win_new(boot, bytes, params);
    int kind = win ? 0 : MPIX_ERRK_NO_MEM;

    if (!kind) {
        blobs = calloc((size_t)boot->size, sizeof *blobs);
        if (!blobs)
            kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the handles of %d ranks",
                             boot->size);
    }
    if (!kind)
        kind = win_choose(boot, win);
    if (!kind)
        kind = win_make(win, params, flags);
    kind = mpix_boot_agree(boot, kind);
    if (!kind && (flags & MPIX_WIN_COMMIT))
        kind = win_fill(boot, win);
    if (kind)
        goto free_win;
    kind = mpix_win_connect(boot, params, win, blobs);
    if (kind)
        goto free_win;
    if (win->fd >= 0 && (flags & MPIX_WIN_COMMIT) && params->reach == MPIX_REACH_AUTO &&
        params->hosts == 0) {
        mpix_mem_file_remove(win->map); /* everybody has mapped it, and nothing is left to commit */
        close(win->fd);
        win->fd = -1;
    }
    free(blobs);
    *out = win;
    return 0;

free_win:
    free(blobs);
    mpix_win_free(win);
    return kind;
}

void mpix_win_free(mpix_win *win) {
    if (!win)
        return;
    for (int r = 0; win->via && r < win->size; r++)
        if (win->via[r])
            win->via[r]->win_unmap(win, r);
    win_release(win);
    free(win->peer);
    free(win->peer_bytes);
    free(win->via);
    free(win->peer_map);
    free(win->peer_reserved);
    free(win);
}

void mpix_win_leave(mpix_win *win) {
    if (!win)
        return;
    for (int r = 0; win->peer_map && r < win->size; r++)
        if (win->peer_map[r])
            munmap(win->peer_map[r], win->peer_reserved[r]);
    if (win->map)
        munmap(win->map, win->reserved);
    if (win->fd >= 0)
        close(win->fd);
}
