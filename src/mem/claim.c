/*
 * claim.c - what several ranks are about to commit.
 *
 * Each rank by itself would find room for its own part, and all would take theirs: the system then
 * kills one of them.
 *
 * In a collective call the ranks tell each other how much they will take and what is left of their
 * limits, and each adds up what those take that share a limit with it. Nothing has been taken by
 * then, so all of them come to the same answer.
 *
 * In other calls there is nobody to talk to. A rank writes what it wants into its window's header,
 * which its peers map, counts what the others say, and has its claim granted if all of it fits;
 * then it commits piece by piece and takes each piece off the claim. Two that ask at the same
 * time: the lower rank goes first. It does not count what a higher rank only wants; that one
 * counts what the lower rank wants. A higher rank whose claim was granted before the lower one's
 * could be seen looks once more behind its grant: the stores and loads of both are sequentially
 * consistent, so either it sees the lower rank's claim there and takes the grant back, or the
 * lower rank sees the grant.
 *
 * A piece that is committed before it is taken off the claim is counted twice for a moment. So
 * whoever finds no room while others have claims looks again for a while. Nobody waits for longer
 * than that: a peer may have stopped.
 */
#include "config.h"

#include "mem/claim.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/mem_internal.h"

enum { CLAIM_WAIT_NS = 1000000000, CLAIM_PAUSE_US = 500 };

static pthread_mutex_t claim_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t claim_granted, claim_wanted; /* of all threads of the process */
static mpix_mem_room claim_room;             /* as it was read last */
static mpix_win *claim_wins;                 /* where they are told */

/* ---- telling --------------------------------------------------------------------------------- */

static mpix_win_claim *claim_of(void *map) { return &((mpix_win_header *)map)->claim; }

static void claim_tell(void) {
    for (mpix_win *win = claim_wins; win; win = win->shown_next) {
        mpix_win_claim *claim = claim_of(win->map);

        for (int i = 0; i < MPIX_MEM_LIMITS; i++)
            atomic_store(&claim->limit[i], i < claim_room.n ? claim_room.limit[i].id : 0);
        atomic_store(&claim->wanted, claim_wanted);
        atomic_store(&claim->granted, claim_granted);
    }
}

void mpix_claim_show(mpix_win *win) {
    pthread_mutex_lock(&claim_lock);
    win->shown_next = claim_wins;
    claim_wins = win;
    claim_tell();
    pthread_mutex_unlock(&claim_lock);
}

void mpix_claim_hide(mpix_win *win) {
    pthread_mutex_lock(&claim_lock);
    for (mpix_win **at = &claim_wins; *at; at = &(*at)->shown_next) {
        if (*at == win) {
            *at = win->shown_next;
            break;
        }
    }
    pthread_mutex_unlock(&claim_lock);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Peers are not trusted with sums that wrap. */
static uint64_t claim_sum(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static int claim_under(const mpix_win_claim *claim, uint64_t id) {
    for (int i = 0; i < MPIX_MEM_LIMITS; i++)
        if (atomic_load(&claim->limit[i]) == id)
            return 1;
    return 0;
}

/* What counts before this rank's: all that was granted, and what lower ranks want. */
static uint64_t claim_before(const mpix_win *win, uint64_t id) {
    uint64_t sum = 0;

    for (int r = 0; win && r < win->size; r++) {
        const mpix_win_claim *claim = r != win->rank && win->peer_map[r]
                                          ? claim_of(win->peer_map[r])
                                          : NULL;

        if (!claim || !claim_under(claim, id))
            continue;
        sum = claim_sum(sum, atomic_load(&claim->granted));
        if (r < win->rank)
            sum = claim_sum(sum, atomic_load(&claim->wanted));
    }
    return sum;
}

/* The limit that has no room for bytes beside `own` of this process and all claims,
 * -1: all have. */
static int claim_short(const mpix_win *win, uint64_t own, size_t bytes, uint64_t *others) {
    uint64_t before[MPIX_MEM_LIMITS];
    mpix_mem_room room = claim_room;

    /* Claims first: what is committed meanwhile is counted twice, never not at all. */
    for (int i = 0; i < room.n; i++)
        before[i] = claim_before(win, room.limit[i].id);
    mpix_mem_room_read(&claim_room);
    for (int i = 0; i < claim_room.n; i++) {
        uint64_t sum = own;
        for (int j = 0; j < room.n; j++)
            if (room.limit[j].id == claim_room.limit[i].id)
                sum = claim_sum(sum, before[j]);
        *others = sum;
        if (claim_room.limit[i].left < claim_sum(sum, bytes))
            return i;
    }
    return -1;
}

static int claim_fail(const mpix_mem_room *room, int i, size_t bytes, uint64_t others,
                      const char *what) {
    const char *where =
        i == 0 ? "on this host"
               : "in a control group of this process (memory.max, memory.limit_in_bytes)";

    if (others > 0 && bytes <= room->limit[i].left)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "%zu bytes of %s can't be had: %" PRIu64
                         " are left %s, and others are about to take %" PRIu64 "; "
                         "give the job more memory or ask for less",
                         bytes, what, room->limit[i].left, where, others);
    return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                     "%zu bytes of %s can't be had: %" PRIu64 " are left %s", bytes, what,
                     room->limit[i].left, where);
}

/* With the lock held. 1: granted. 0: not; *kind is set if there is nobody to wait for. */
static int claim_try(const mpix_win *win, size_t bytes, const char *what, int last, int *kind) {
    uint64_t others;
    int lack = claim_short(win, claim_granted, bytes, &others);

    if (lack < 0) {
        claim_granted += bytes;
        claim_wanted -= bytes;
        claim_tell();
        lack = claim_short(win, claim_granted - bytes, bytes, &others);
        if (lack < 0)
            return 1;
        claim_granted -= bytes;
        claim_wanted += bytes;
    }
    claim_tell(); /* the limits may be others, and have been read now */
    if (last || others == 0 || claim_room.limit[lack].left < bytes) /* waiting would not help */
        *kind = claim_fail(&claim_room, lack, bytes, others, what);
    return 0;
}

int mpix_claim_take(const mpix_win *win, size_t bytes, const char *what) {
    uint64_t start = mpix_clock_ns();
    int kind = 0, granted = 0;

    pthread_mutex_lock(&claim_lock);
    mpix_mem_room_read(&claim_room);
    claim_wanted += bytes;
    claim_tell();
    for (;;) {
        granted = claim_try(win, bytes, what, mpix_clock_ns() - start > CLAIM_WAIT_NS, &kind);
        if (granted || kind)
            break;
        pthread_mutex_unlock(&claim_lock);
        usleep(CLAIM_PAUSE_US);
        pthread_mutex_lock(&claim_lock);
    }
    if (!granted) {
        claim_wanted -= bytes;
        claim_tell();
    }
    pthread_mutex_unlock(&claim_lock);
    return kind;
}

void mpix_claim_give(size_t bytes) {
    pthread_mutex_lock(&claim_lock);
    claim_granted -= bytes;
    claim_tell();
    pthread_mutex_unlock(&claim_lock);
}

/* ---- together -------------------------------------------------------------------------------- */

typedef struct claim_share {
    uint64_t bytes; /* that the rank will take, its claims in other objects included */
    mpix_mem_room room;
} claim_share;

/* What the ranks under one limit take, and how many they are; *left: the least that any of them has
 * read, before any of them has taken anything. */
static uint64_t shares_sum(const claim_share *shares, int size, uint64_t id, uint64_t *left,
                           int *n) {
    uint64_t sum = 0;

    for (int r = 0; r < size; r++)
        for (int j = 0; j < shares[r].room.n; j++) {
            const mpix_mem_limit *limit = &shares[r].room.limit[j];
            if (limit->id != id)
                continue;
            sum = claim_sum(sum, shares[r].bytes);
            *left = limit->left < *left ? limit->left : *left;
            ++*n;
        }
    return sum;
}

/* Where not all fits, those fail that take no less than an even share, which some do: the others
 * could be served. */
static int shares_check(const claim_share *shares, int size, int rank, size_t bytes,
                        const char *what) {
    mpix_mem_room room = shares[rank].room;

    for (int i = 0; bytes > 0 && i < room.n; i++) {
        int n = 0;
        uint64_t sum = shares_sum(shares, size, room.limit[i].id, &room.limit[i].left, &n);
        if (sum > room.limit[i].left &&
            shares[rank].bytes >= room.limit[i].left / (uint64_t)(n > 0 ? n : 1))
            return claim_fail(&room, i, bytes, sum - bytes, what);
    }
    return 0;
}

int mpix_mem_together(mpix_boot *boot, size_t bytes, const char *what) {
    claim_share *shares = calloc((size_t)boot->size + 1, sizeof *shares);
    int kind = mpix_boot_agree(boot, shares ? 0
                                            : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                        "no memory to ask %d ranks for theirs",
                                                        boot->size));

    if (!kind) {
        claim_share *own = &shares[boot->size];
        pthread_mutex_lock(&claim_lock);
        own->bytes = claim_sum(bytes, claim_granted + claim_wanted);
        pthread_mutex_unlock(&claim_lock);
        mpix_mem_room_read(&own->room);
        kind = mpix_boot_allgather(boot, own, sizeof *own, shares);
    }
    if (!kind)
        kind = shares_check(shares, boot->size, boot->rank, bytes, what);
    free(shares);
    return kind;
}

enum { SHARE_CHECKED = 1 << 24 }; /* less is not asked for */

int mpix_mem_share(size_t bytes, int sharers, const char *arg, int64_t value) {
    uint64_t left = bytes < SHARE_CHECKED ? UINT64_MAX : mpix_mem_available();

    if (bytes <= left / (uint64_t)(sharers > 0 ? sharers : 1))
        return 0;
    return mpix_fail(MPIX_ERRK_NO_MEM, arg,
                     "%s = %" PRId64 " needs tables of %zu bytes on each of %d ranks, and the host "
                     "has %" PRIu64 " bytes left",
                     arg, value, bytes, sharers, left);
}
