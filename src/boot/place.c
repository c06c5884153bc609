/*
 * place.c - which ranks can share memory.
 *
 * A host, for this library, is a set of ranks all of which can open each other's memory. Neither
 * MPI's word nor the machine's name tells that: an MPI may give each rank a shared communicator of
 * its own, and containers of one machine may be unable to see each other's processes and sockets.
 * So ranks that MPI puts together, and ranks under the same kernel (its boot id), try it: each has
 * a socket, which a peer finds under /proc/<pid>/fd, as it would find a window, or by its abstract
 * name, as it would be sent one. A pair counts only if both have found each other.
 *
 * MPI is asked only where not all ranks are under one kernel with one network.
 *
 * Ranks that MPI keeps apart and that have network name spaces of their own stay apart without a
 * trial: whoever gives them networks of their own wants them to be hosts.
 *
 * Ranks are of one host if they reach the same set of ranks, themselves included. Then they reach
 * each other, since each is in its own set. Where some reach each other and the sets still differ,
 * they are apart: the relation is not transitive.
 */
#include "config.h"

#include "boot/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* What every rank tells every rank. */
typedef struct place_card {
    uint64_t machine[2];     /* boot id of its kernel, 0: unknown */
    uint64_t start;          /* of its process */
    uint64_t pid_ns, net_ns; /* its name spaces, 0: unknown */
    uint64_t dev, ino;       /* of its socket */
    uint64_t name[2];        /* of its socket, after a zero; random */
    int32_t leader;          /* lowest rank of those that MPI says can share memory, see
                              * place_leaders */
    int32_t pid, fd, pad;    /* fd: of its socket, -1: it has none */
    char host[64];
} place_card;

/* The ranks that a rank reaches, itself included: a number of the set, and the lowest of them. */
typedef struct place_set {
    uint64_t set;
    int64_t lowest;
} place_set;

struct mpix_boot_place {
    int sock;
    place_card *cards;
    place_set *sets;
    unsigned char *sees, *seen; /* [size] whether this rank has found the peer, and the
                                 * peer this rank */
};

mpix_boot_place *mpix_boot_place_new(int size) {
    mpix_boot_place *place = calloc(1, sizeof *place);
    size_t n = (size_t)size;

    if (!place)
        return NULL;
    place->sock = -1;
    place->cards = calloc(n, sizeof *place->cards);
    place->sets = calloc(n, sizeof *place->sets);
    place->sees = calloc(n, 1);
    place->seen = calloc(n, 1);
    if (place->cards && place->sets && place->sees && place->seen)
        return place;
    mpix_boot_place_free(place);
    return NULL;
}

void mpix_boot_place_free(mpix_boot_place *place) {
    if (!place)
        return;
    if (place->sock >= 0)
        close(place->sock);
    free(place->cards);
    free(place->sets);
    free(place->sees);
    free(place->seen);
    free(place);
}

/* ---- this rank ------------------------------------------------------------------------------- */

/* The rank in boot->comm of the lowest rank of local; no communication. */
static int place_lowest(mpix_boot *boot, MPI_Comm local, int *lowest) {
    MPI_Group here, all;
    int zero = 0, kind;

    kind = mpix_boot_mpi(MPI_Comm_group(local, &here), "MPI_Comm_group");
    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_group(boot->comm, &all), "MPI_Comm_group");
    if (!kind) {
        kind = mpix_boot_mpi(MPI_Group_translate_ranks(here, 1, &zero, all, lowest),
                             "MPI_Group_translate_ranks");
        MPI_Group_free(&all);
    }
    MPI_Group_free(&here);
    return kind;
}

/* The ranks that MPI says can share memory. The call waits without limit for a rank that ends now,
 * so it is made only where its answer counts. */
static int place_ask_mpi(mpix_boot *boot, int *leader) {
    MPI_Comm local;
    int kind = mpix_boot_mpi(MPI_Comm_split_type(boot->comm, MPI_COMM_TYPE_SHARED, boot->rank,
                                                 MPI_INFO_NULL, &local),
                             "MPI_Comm_split_type");

    if (kind)
        return kind;
    kind = place_lowest(boot, local, leader);
    MPI_Comm_free(&local);
    return kind;
}

/* Written as 8-4-4-4-12 hexadecimal digits. */
static void place_machine(uint64_t machine[2]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC), digits = 0;
    char text[64];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;

    if (fd >= 0)
        close(fd);
    machine[0] = machine[1] = 0;
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        const char *hex = "0123456789abcdef", *at = text[i] ? strchr(hex, text[i]) : NULL;
        if (!at)
            continue;
        machine[digits / 16] = machine[digits / 16] << 4 | (uint64_t)(at - hex);
        digits++;
    }
}

static uint64_t place_name_space(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static socklen_t place_address(struct sockaddr_un *addr, const uint64_t name[2]) {
    memset(addr, 0, sizeof *addr);
    addr->sun_family = AF_UNIX;
    snprintf(addr->sun_path + 1, sizeof addr->sun_path - 1, "mpix-%016llx%016llx",
             (unsigned long long)name[0], (unsigned long long)name[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(addr->sun_path + 1));
}

/* Where there can be no socket, name spaces and MPI's word decide. */
static void place_open(mpix_boot_place *place, place_card *card) {
    struct sockaddr_un addr;
    struct stat st;

    card->fd = -1;
    if (getrandom(card->name, sizeof card->name, 0) != (ssize_t)sizeof card->name)
        return;
    place->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (place->sock < 0 || fstat(place->sock, &st) != 0)
        return;
    if (bind(place->sock, (struct sockaddr *)&addr, place_address(&addr, card->name)) != 0)
        return;
    card->dev = (uint64_t)st.st_dev;
    card->ino = (uint64_t)st.st_ino;
    card->fd = place->sock;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static int place_known(const place_card *card) { return card->machine[0] || card->machine[1]; }

static int place_same_machine(const place_card *a, const place_card *b) {
    return place_known(a) && a->machine[0] == b->machine[0] && a->machine[1] == b->machine[1];
}

/* Whether the peer's socket is where it says under /proc; errno tells why not. O_PATH: without
 * effect on what is there. */
static int place_by_proc(const place_card *peer) {
    char path[64];
    struct stat st;
    int fd, found;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)peer->pid, (int)peer->fd);
    fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return 0;
    found = fstat(fd, &st) == 0 && (uint64_t)st.st_dev == peer->dev &&
            (uint64_t)st.st_ino == peer->ino;
    close(fd);
    errno = ESRCH;
    return found;
}

/* -1: there is no socket to try it with. */
static int place_by_socket(const place_card *peer) {
    struct sockaddr_un addr;
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), found;

    if (sock < 0)
        return -1;
    found = connect(sock, (struct sockaddr *)&addr, place_address(&addr, peer->name)) == 0;
    close(sock);
    return found;
}

/* Whether this rank finds the peer. *apart: why not. */
static int place_look(const place_card *own, const place_card *peer, int *apart) {
    int same_pids = own->pid_ns && own->pid_ns == peer->pid_ns, err = 0, found;

    *apart = MPIX_APART_MACHINE;
    if (own->leader != peer->leader &&
        (!place_same_machine(own, peer) || own->net_ns != peer->net_ns))
        return 0;
    if (own->fd < 0 || peer->fd < 0)
        return same_pids || own->leader == peer->leader;
    if (same_pids) {
        if (place_by_proc(peer))
            return 1;
        err = errno;
    }
    found = place_by_socket(peer);
    if (found < 0) /* too many descriptors, say: whoever maps the first window tells */
        return same_pids || own->leader == peer->leader;
    if (found)
        return 1;
    if (place_known(own) && place_known(peer) && !place_same_machine(own, peer))
        return 0; /* whatever MPI says */
    *apart = !same_pids                      ? MPIX_APART_SPACES
             : err == EACCES || err == EPERM ? MPIX_APART_ACCESS
                                             : MPIX_APART_PROC;
    return 0;
}

static uint64_t place_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The set of ranks with which finding was mutual. Sets are told apart by sums of mixed numbers. */
static void place_own_set(mpix_boot *boot, mpix_boot_place *place, place_set *own) {
    own->set = 0;
    own->lowest = boot->rank;
    for (int r = boot->size - 1; r >= 0; r--) {
        if (r != boot->rank && !(place->sees[r] && place->seen[r])) {
            if (place->sees[r])
                boot->apart[r] = MPIX_APART_PEER;
            continue;
        }
        boot->apart[r] = MPIX_APART_NOT;
        own->set += place_mix((uint64_t)r + 1);
        own->lowest = r < own->lowest ? r : own->lowest;
    }
}

/* Hosts are numbered by their lowest rank. That of a rank's set is the host's, unless it
 * has another set. */
static void place_number_hosts(mpix_boot *boot, const mpix_boot_place *place) {
    const place_card *own = &place->cards[boot->rank];

    for (int r = 0; r < boot->size; r++) {
        const place_card *card = &place->cards[r];
        int first = (int)place->sets[r].lowest;
        while (first < r && place->sets[first].set != place->sets[r].set)
            first++;
        boot->host_of[r] = first == r ? boot->nhosts++ : boot->host_of[first];
        boot->pids[r] = card->pid;
        boot->starts[r] = card->start;
        boot->same_pids[r] = card->pid_ns != 0 && card->pid_ns == own->pid_ns &&
                             (place_same_machine(card, own) || card->leader == own->leader);
        memcpy(boot->hostnames[r], card->host, sizeof card->host);
    }
    for (int r = 0; r < boot->size; r++) {
        int here = boot->host_of[r] == boot->host_of[boot->rank];
        boot->local_rank += here && r < boot->rank;
        boot->local_size += here;
        if (!here && boot->apart[r] == MPIX_APART_NOT)
            boot->apart[r] = MPIX_APART_OTHERS;
    }
}

/* All ranks are under one kernel, with one network: every pair is tried, whatever MPI says. Alike
 * on all ranks. */
static int place_one_machine(const mpix_boot *boot, const place_card *cards) {
    for (int r = 0; r < boot->size; r++)
        if (!place_same_machine(&cards[0], &cards[r]) || !cards[r].net_ns ||
            cards[r].net_ns != cards[0].net_ns)
            return 0;
    return 1;
}

/* Every card learns its leader; that of one machine is rank 0. */
static int place_leaders(mpix_boot *boot, mpix_boot_place *place) {
    place_card own = place->cards[boot->rank];
    int leader;

    if (place_one_machine(boot, place->cards))
        return 0;
    int kind = place_ask_mpi(boot, &leader);
    own.leader = (int32_t)leader;
    return kind ? kind : mpix_boot_allgather(boot, &own, sizeof own, place->cards);
}

int mpix_boot_place_find(mpix_boot *boot, mpix_boot_place *place) {
    place_card card = {0};
    place_set own;
    int kind;

    place_machine(card.machine);
    card.pid = (int32_t)getpid();
    card.start = mpix_boot_process_start(getpid());
    card.pid_ns = place_name_space("/proc/self/ns/pid");
    card.net_ns = place_name_space("/proc/self/ns/net");
    gethostname(card.host, sizeof card.host - 1);
    place_open(place, &card);
    kind = mpix_boot_allgather(boot, &card, sizeof card, place->cards);
    if (!kind)
        kind = place_leaders(boot, place);
    card = place->cards[boot->rank];
    for (int r = 0; !kind && r < boot->size; r++) {
        int apart = MPIX_APART_NOT;
        place->sees[r] = r == boot->rank || place_look(&card, &place->cards[r], &apart);
        boot->apart[r] = (unsigned char)apart;
    }
    /* When this has ended everybody has looked, so the sockets can go. */
    if (!kind)
        kind = mpix_boot_alltoall(boot, place->sees, 1, place->seen);
    if (kind)
        return kind;
    place_own_set(boot, place, &own);
    kind = mpix_boot_allgather(boot, &own, sizeof own, place->sets);
    if (!kind)
        place_number_hosts(boot, place);
    return kind;
}

const char *mpix_boot_apart(const mpix_boot *boot, int rank) {
    static const char *const texts[] = {
        [MPIX_APART_NOT] = "",
        [MPIX_APART_MACHINE] = "other machine",
        [MPIX_APART_SPACES] =
            "same machine, but in other name spaces of processes and of the network",
        [MPIX_APART_ACCESS] =
            "same machine, but /proc is refused and the network's name space is another",
        [MPIX_APART_PROC] =
            "same machine, but its process is not found under /proc, nor its socket",
        [MPIX_APART_PEER] = "same machine, but it does not find this rank's process or socket",
        [MPIX_APART_OTHERS] = "same machine, but not all of its ranks find each other",
        [MPIX_APART_SPLIT] = "same machine, kept apart by the parameter hosts or reach",
    };

    return boot->apart ? texts[boot->apart[rank]] : "";
}
