/*
 * check.h - checks of what callers give, for the public calls: check.c, and the look whether a
 * handle is alive.
 */
#ifndef MPIX_P2P_CHECK_H
#define MPIX_P2P_CHECK_H
#include "p2p/p2p.h"

int p2p_check_object(MPIX_P2p p2p); /* 0 or a kind: alive */
/* What a call does with memory: MPIX_MEM_* of its pieces' local sides, and of the remote ones, if
 * there are any. */
typedef struct p2p_need {
    int local, remote;
} p2p_need;
extern const p2p_need p2p_need_send, p2p_need_recv, p2p_need_put, p2p_need_get, p2p_need_name;
/* All pieces are valid and of one peer (or, without remote sides, of this object): fills
 * p2p and peer. */
int p2p_check(const MPIX_P2p_iov iov[], int n, const p2p_need *need, mpix_p2p **p2p, int *peer);
int p2p_check_peer(const mpix_p2p *p2p, int peer); /* a rank of the object */
int p2p_check_slot(const mpix_p2p *p2p, int slot);

/* ---- p2p_create.c ---------------------------------------------------------------------------- */
/*
 * Whether a handle is alive. The ordinary case is a look, without a call, into a small cache of
 * this thread. What was seen before the last end or fork is looked up again. The local and the
 * remote side of a piece never share a place.
 */
enum { P2P_SEEN = 32 };
typedef struct p2p_seen {
    const void *object;
    uint64_t key; /* mpix_live_turn and the tag; 0: nothing was seen */
} p2p_seen;
extern _Thread_local p2p_seen p2p_seen_cache[P2P_SEEN] __attribute__((tls_model("initial-exec")));
_Static_assert(MPIX_LIVE_RMEM < 8, "a tag is three bits of the key");
_Static_assert((MPIX_LIVE_MEM & 1) != (MPIX_LIVE_RMEM & 1),
               "the sides of a piece have places of their own");

static inline p2p_seen *p2p_seen_at(const void *object, int tag) {
    uintptr_t place = (uintptr_t)object >> 5 ^ (uintptr_t)object >> 9;

    return &p2p_seen_cache[place % (P2P_SEEN / 2) * 2 + (uintptr_t)(tag & 1)];
}
static inline uint64_t p2p_seen_key(int tag) {
    return atomic_load_explicit(&mpix_live_turn, memory_order_acquire) << 3 | (uint64_t)tag;
}
/* 1: alive. 0: not known here. */
static inline int p2p_live_seen(const void *object, int tag) {
    const p2p_seen *seen = p2p_seen_at(object, tag);

    return seen->object == object && seen->key == p2p_seen_key(tag);
}
int p2p_live_look(const void *object, int tag);
static inline int p2p_live(const void *object, int tag) {
    return p2p_live_seen(object, tag) || p2p_live_look(object, tag);
}
void p2p_live_end(const void *object);
#endif
