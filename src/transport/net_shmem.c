/*
 * net_shmem.c - the transport shmem: the proxied protocols between ranks of one host,
 * without a network. This file opens and connects it and handles memory; net_shmem_post.c
 * does the operations.
 *
 * A peer's memory is mapped where it is a file: windows of the library are. Other memory is written
 * with process_vm_writev, where the system allows that; then words are stored by the target itself,
 * when it polls, for the system call promises no store of 8 bytes in one.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/mem_internal.h"
#include "mem/shared.h"
#include "transport/net_shmem.h"

extern const mpix_net_ops mpix_net_shmem;

static size_t shmem_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t shmem_ring_bytes(void) {
    size_t page = shmem_page_bytes();

    return (sizeof(shmem_ring) + page - 1) / page * page;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Memory of this rank that peers write by system calls is taken back. What they have mapped they
 * may go on writing: it is not here. */
static int shmem_take_back(shmem_net *n) {
    int kind = 0;

    if (n->page)
        atomic_store_explicit(&n->page->revoked, 1, memory_order_seq_cst);
    for (int i = 0; i < n->nwanted; i++) {
        int r = n->wanted[i];
        const shmem_peer *peer = &n->peers[r];
        if (peer->connected && !mpix_calls_quiet(&peer->in->calls, peer->pid, peer->pidfd))
            kind = mpix_fail_peer(MPIX_ERRK_TIMEOUT, r, n->hostnames[r],
                                  "rank %d (process %ld) was stopped while it wrote memory of this "
                                  "rank, and has not woken: it may go on when it does",
                                  r, (long)peer->pid);
    }
    return kind;
}

static int shmem_close(mpix_net *net) {
    shmem_net *n = (shmem_net *)net;
    int kind = shmem_take_back(n);

    for (int r = 0; n->peers && r < n->size; r++) {
        if (n->peers[r].map)
            munmap(n->peers[r].map, n->peers[r].reserved);
        mpix_boot_unwatch(n->peers[r].pidfd);
    }
    if (n->sock >= 0)
        close(n->sock);
    mpix_mem_shared_free(n->map);
    free(n->peers);
    free(n->wanted);
    free(n->pending);
    free(n->fds);
    free(n);
    return kind;
}

static shmem_net *shmem_new(mpix_boot *boot, const mpix_params *params, const unsigned char *want) {
    size_t size = (size_t)boot->size, lanes = (size_t)params->lanes;
    shmem_net *n = calloc(1, sizeof *n);

    if (!n)
        return NULL;
    n->sock = -1;
    n->size = boot->size;
    n->rank = boot->rank;
    n->boot = boot;
    n->hostnames = boot->hostnames;
    n->peers = calloc(size, sizeof *n->peers);
    n->wanted = calloc(size, sizeof *n->wanted);
    n->pending = calloc(size * lanes, sizeof *n->pending);
    n->fds = calloc(size, sizeof *n->fds);
    for (int r = 0; n->peers && r < n->size; r++)
        n->peers[r].pidfd = -1;
    if (!n->peers || !n->wanted || !n->pending || !n->fds) {
        (void)shmem_close(&n->net);
        return NULL;
    }
    for (int r = 0; r < n->size; r++) {
        n->peers[r].wanted = want[r];
        n->peers[r].index = n->nwanted;
        n->peers[r].pending = n->pending + (size_t)r * lanes;
        if (want[r])
            n->wanted[n->nwanted++] = r;
    }
    return n;
}

/* A socket with an address that the system chooses; nothing but wake-ups goes through it. */
static int shmem_open_socket(shmem_net *n) {
    struct sockaddr_un any = {.sun_family = AF_UNIX};

    n->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    n->sock_len = sizeof n->sock_addr;
    if (n->sock < 0 || bind(n->sock, (struct sockaddr *)&any, sizeof any.sun_family) != 0 ||
        getsockname(n->sock, (struct sockaddr *)&n->sock_addr, &n->sock_len) != 0)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno,
                             "the socket that wakes the transport shmem");
    if (n->sock_len - offsetof(struct sockaddr_un, sun_path) > sizeof((shmem_address *)0)->sock)
        return mpix_fail(MPIX_ERRK_TRANSPORT, NULL, "a socket's address of %u bytes",
                         (unsigned)n->sock_len);
    return 0;
}

static int shmem_open_rings(shmem_net *n) {
    void *map;
    int kind;

    n->reserved = shmem_page_bytes() + (size_t)n->nwanted * shmem_ring_bytes();
    kind = mpix_mem_shared_alloc(n->reserved, &map);
    if (kind)
        return kind;
    n->map = map;
    n->page = map;
    for (int i = 0; i < n->nwanted; i++)
        n->peers[n->wanted[i]].in = (shmem_ring *)(void *)((char *)map + shmem_page_bytes() +
                                                           (size_t)i * shmem_ring_bytes());
    if (getrandom(n->page->token, sizeof n->page->token, 0) != (ssize_t)sizeof n->page->token)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "getrandom");
    return 0;
}

static int shmem_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                      mpix_net **net) {
    shmem_net *n = shmem_new(boot, params, want);
    int kind = n ? 0
                 : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                             "no memory for the transport shmem with %d ranks", boot->size);

    if (kind)
        return kind;
    kind = shmem_open_rings(n);
    if (!kind)
        kind = shmem_open_socket(n);
    if (kind) {
        (void)shmem_close(&n->net);
        return kind;
    }
    n->net.ops = &mpix_net_shmem;
    /* of memory that can be mapped: it is the processor's */
    n->net.caps = (mpix_net_caps){.ordered = 1,
                                  .counted = 1,
                                  .posted_lands = 1,
                                  .add_coherent = 1,
                                  .lanes = params->lanes,
                                  .depth = SHMEM_DEPTH,
                                  .max_counter = 1u << 31,
                                  .max_op = (uint64_t)16 << 20,
                                  .device = "none, copies by the processor",
                                  .why = "stores of one processor are seen in order"};
    snprintf(n->net.caps.address, sizeof n->net.caps.address, "pid %ld", (long)getpid());
    *net = &n->net;
    return 0;
}

/* ---- connection ------------------------------------------------------------------------------ */

static int shmem_address_of(mpix_net *net, int peer, void *blob) {
    shmem_net *n = (shmem_net *)net;
    shmem_address a = {.pid = (int32_t)getpid()};
    mpix_mem_file file;
    struct stat st;

    if (!mpix_mem_file_find(n->map, n->reserved, &file) || fstat(file.fd, &st) != 0)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "the file of the transport shmem");
    memcpy(a.token, n->page->token, sizeof a.token);
    a.token_addr = (uint64_t)(uintptr_t)n->page->token;
    a.dev = (uint64_t)st.st_dev;
    a.ino = (uint64_t)st.st_ino;
    a.fd = file.fd;
    a.reserved = file.reserved;
    a.ring_off = (uint64_t)((char *)n->peers[peer].in - (char *)n->map);
    a.sock_len = (int32_t)(n->sock_len - offsetof(struct sockaddr_un, sun_path));
    memcpy(a.sock, n->sock_addr.sun_path, (size_t)a.sock_len);
    memcpy(blob, &a, sizeof a);
    return 0;
}

/* Opens a file of another process, if it is the one that was described. */
static int shmem_open_file(pid_t pid, int fd, uint64_t dev, uint64_t ino, char *why, size_t len) {
    mpix_win_blob blob = {.pid = pid, .fd = fd, .dev = dev, .ino = ino};

    return mpix_win_open_proc(&blob, why, len);
}

static int shmem_connect(mpix_net *net, int peer, const void *blob) {
    shmem_net *n = (shmem_net *)net;
    shmem_peer *p = &n->peers[peer];
    shmem_address a;
    char why[192];
    void *map;
    int fd;

    memcpy(&a, blob, sizeof a);
    fd = shmem_open_file(a.pid, a.fd, a.dev, a.ino, why, sizeof why);
    if (fd < 0)
        return mpix_fail_peer(
            MPIX_ERRK_UNSUPPORTED, peer, n->hostnames[peer],
            "shmem can't reach rank %d on %s: %s; it reaches ranks of the same host and user only",
            peer, n->hostnames[peer], why);
    map = mmap(NULL, a.reserved, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, errno, "%llu bytes of rank %d can't be mapped",
                             (unsigned long long)a.reserved, peer);
    p->map = map;
    p->reserved = a.reserved;
    p->page = map;
    if (memcmp(p->page->token, a.token, sizeof a.token) != 0)
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, n->hostnames[peer],
                              "shmem can't reach rank %d on %s: what was mapped is not its memory",
                              peer, n->hostnames[peer]);
    p->out = (shmem_ring *)(void *)((char *)map + a.ring_off);
    p->pid = a.pid;
    /* without it, kill(pid, 0) tells of deaths */
    p->pidfd = mpix_boot_watch_process(n->boot, peer);
    p->sock.sun_family = AF_UNIX;
    p->sock_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)a.sock_len);
    memcpy(p->sock.sun_path, a.sock, (size_t)a.sock_len);
    p->connected = 1;
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int shmem_mem_reg(mpix_net *net, void *base, size_t bytes, mpix_net_mem **out) {
    shmem_net *n = (shmem_net *)net;
    mpix_net_mem *mem = malloc(sizeof *mem);

    if (!mem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    *mem = (mpix_net_mem){.next = n->mems, .base = base, .bytes = bytes};
    n->mems = mem;
    *out = mem;
    return 0;
}

static void shmem_mem_dereg(mpix_net *net, mpix_net_mem *mem) {
    shmem_net *n = (shmem_net *)net;
    mpix_net_mem **at = &n->mems;

    while (*at && *at != mem)
        at = &(*at)->next;
    if (*at)
        *at = mem->next;
    free(mem);
}

static void shmem_mem_key(mpix_net *net, const mpix_net_mem *mem, void *blob) {
    shmem_key key = {.addr = (uint64_t)(uintptr_t)mem->base,
                     .bytes = mem->bytes,
                     .pid = (int32_t)getpid(),
                     .fd = -1};
    mpix_mem_file file;
    struct stat st;

    (void)net;
    if (mpix_mem_file_find(mem->base, mem->bytes, &file) && fstat(file.fd, &st) == 0) {
        key.fd = file.fd;
        key.dev = (uint64_t)st.st_dev;
        key.ino = (uint64_t)st.st_ino;
        key.off = file.off;
        key.reserved = file.reserved;
    }
    memcpy(blob, &key, sizeof key);
}

/* Whether the system lets us at the peer's memory. EFAULT is what it says of memory that can't be
 * read, as its owner can't. */
static int shmem_probe_vm(const shmem_net *n, int peer, uint64_t addr) {
    char byte;
    struct iovec local = {&byte, 1}, remote = {(void *)(uintptr_t)addr, 1};

    if (process_vm_readv(n->peers[peer].pid, &local, 1, &remote, 1, 0) == 1 || errno == EFAULT)
        return 0;
    return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, n->hostnames[peer],
                          "shmem can't reach this memory of rank %d: it is not a window of the "
                          "library, and process_vm_readv says: %s "
                          "(kernel.yama.ptrace_scope above 0, or a container, forbids it)",
                          peer, strerror(errno));
}

static int shmem_rmem_open(mpix_net *net, int peer, const void *blob, mpix_net_rmem **out) {
    shmem_net *n = (shmem_net *)net;
    mpix_net_rmem *rmem = calloc(1, sizeof *rmem);
    char why[192] = "";
    shmem_key key;
    int kind = 0, fd = -1;

    if (!rmem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a key");
    memcpy(&key, blob, sizeof key);
    rmem->addr = key.addr;
    rmem->bytes = key.bytes;
    rmem->pid = n->peers[peer].pid;
    if (key.fd >= 0)
        fd = shmem_open_file(key.pid, key.fd, key.dev, key.ino, why, sizeof why);
    if (fd >= 0) {
        void *map = mmap(NULL, key.reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                         0);
        if (map == MAP_FAILED) {
            kind = mpix_fail_sys(MPIX_ERRK_NO_MEM, errno, "%llu bytes of rank %d can't be mapped",
                                 (unsigned long long)key.reserved, peer);
        } else {
            rmem->mapped = map;
            rmem->reserved = key.reserved;
            rmem->map = (char *)map + key.off;
        }
        close(fd);
    } else {
        if (why[0])
            mpix_log(MPIX_LOG_INFO, "shmem: a window of rank %d is written by system calls: %s",
                     peer, why);
        kind = shmem_probe_vm(n, peer, key.addr);
    }
    if (kind) {
        free(rmem);
        return kind;
    }
    *out = rmem;
    return 0;
}

static void shmem_rmem_close(mpix_net *net, mpix_net_rmem *rmem) {
    (void)net;
    if (rmem->mapped)
        munmap(rmem->mapped, rmem->reserved);
    free(rmem);
}

const mpix_net_ops mpix_net_shmem = {
    .name = "shmem",
    .copies = 1,
    .address_bytes = sizeof(shmem_address),
    .key_bytes = sizeof(shmem_key),
    .open = shmem_open,
    .close = shmem_close,
    .address = shmem_address_of,
    .connect = shmem_connect,
    .mem_reg = shmem_mem_reg,
    .mem_dereg = shmem_mem_dereg,
    .mem_key = shmem_mem_key,
    .rmem_open = shmem_rmem_open,
    .rmem_close = shmem_rmem_close,
    .post = shmem_post,
    .poll = shmem_poll,
    .poll_arrivals = shmem_poll_arrivals,
    .arm = shmem_arm,
    .ack = shmem_ack,
};
