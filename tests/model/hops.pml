/*
 * hops.pml - two hops: rings with credit that the calls of a context share, and forwarding (coll/host/forward.h).
 *
 * Two sources S0, S1 send through one forwarder F. Two handles with EPOCHS calls each of one kind, started in the order of `start` on all ranks. A source
 * packs calls in any order that its handles allow (words of a handle are written in turn), one call at a time, two chunks per call, each into a
 * ring of CHUNKS places; a place is free again by credit, which F gives for half a ring at once. F passes the chunk at a ring's head on when it has seen
 * all offers of the chunk's call. F's own word of a call, which the host's ranks wait for, is written in turn among its handle's calls, after
 * all chunks of the call have been passed on. Depth 2, so that both calls of a handle may be under way.
 *
 * A call may be packed or served at a rank when that rank has seen all offers of the call, each rank at a time of its own (`seen`), but surely in the end.
 *
 * F also packs (own rows for elsewhere) and needs what packing needs: a buffer that one call at a time holds.
 *
 * Checked: no deadlock (spin's invalid end states), no chunk is written over one that was not passed on, each call gets all its chunks and no other's.
 *
 * Mutants: M_TURN forwards only in the call's turn among its handle's words. M_SHARED forwards only if the packing buffer is free.
 * M_CREDIT takes credit for one chunk more than there is. M_HALF gives credit only for a whole ring plus one. M_LAST ignores who the chunk belongs to.
 */
#ifndef CHUNKS
#define CHUNKS 1
#endif
#define EPOCHS 2
#define CALLS 4                  /* call = handle * EPOCHS + epoch */
#define HANDLE(c) ((c) / EPOCHS)
#define EPOCH(c) ((c) % EPOCHS)
#define PART ((CHUNKS + 1) / 2)

/* ring of each source: call number + 1 in each place; sent and passed count chunks */
byte ring0[CHUNKS], ring1[CHUNKS];
byte sent[2], passed[2], credit[2];
bool seen[12];                   /* rank * CALLS + call: all offers of the call have arrived there; rank 2 is F */
byte signalled[6];               /* rank * 2 + handle: words written */
byte got[8];                     /* source * CALLS + call: chunks that F passed on */
bit packing_f;                   /* F's packing buffer is held by a call that packs */

#ifdef IN_ORDER
#define AFTER(i) seen[i] /* a handle's offers arrive in the order of its calls: a smaller search */
#else
#define AFTER(i) true
#endif
/* All ranks have started all calls that their depth allows, which are all of them; offers arrive in any order. */
proctype offers(byte rank) {
    byte i = 0;
    do
    :: i == CALLS -> break
    :: atomic { i < CALLS && !seen[rank * CALLS + 0] -> seen[rank * CALLS + 0] = 1; i++ }
    :: atomic { i < CALLS && !seen[rank * CALLS + 1] && AFTER(rank * CALLS) -> seen[rank * CALLS + 1] = 1; i++ }
    :: atomic { i < CALLS && !seen[rank * CALLS + 2] -> seen[rank * CALLS + 2] = 1; i++ }
    :: atomic { i < CALLS && !seen[rank * CALLS + 3] && AFTER(rank * CALLS + 2) -> seen[rank * CALLS + 3] = 1; i++ }
    od
}

#ifdef M_CREDIT
#define ROOM(s) (sent[s] - credit[s] < CHUNKS + 1)
#else
#define ROOM(s) (sent[s] - credit[s] < CHUNKS)
#endif

inline ring_put(s, c) {
    if
    :: s == 0 -> assert(ring0[sent[0] % CHUNKS] == 0); ring0[sent[0] % CHUNKS] = c + 1
    :: else -> assert(ring1[sent[1] % CHUNKS] == 0); ring1[sent[1] % CHUNKS] = c + 1
    fi;
    sent[s]++
}

/* A source packs a call when it is in turn; one at a time. Two chunks per call. */
#define MAY_PACK(s, c) (seen[s * CALLS + (c)] && signalled[s * 2 + HANDLE(c)] == EPOCH(c))
proctype source(byte s) {
    byte n = 0, c;
    do
    :: n == CALLS -> break
    :: n < CALLS ->
        atomic {
            if
            :: MAY_PACK(s, 0) -> c = 0
            :: MAY_PACK(s, 1) -> c = 1
            :: MAY_PACK(s, 2) -> c = 2
            :: MAY_PACK(s, 3) -> c = 3
            fi
        }
        atomic { ROOM(s) -> ring_put(s, c) }
        atomic { ROOM(s) -> ring_put(s, c); signalled[s * 2 + HANDLE(c)]++; n++; c = 0 }
    od
}

#define HEAD(s) (s == 0 -> ring0[passed[0] % CHUNKS] : ring1[passed[1] % CHUNKS])
#ifdef M_TURN
#define TURN(c) (signalled[4 + HANDLE(c)] == EPOCH(c))
#else
#define TURN(c) true
#endif
#ifdef M_SHARED
#define BUFFER !packing_f
#else
#define BUFFER true
#endif
#ifdef M_HALF
#define GIVE(s) (passed[s] % (CHUNKS + 1) == 0)
#else
#define GIVE(s) (passed[s] % PART == 0)
#endif
#define SERVABLE(s) (HEAD(s) > 0 && seen[2 * CALLS + HEAD(s) - 1] && TURN(HEAD(s) - 1) && BUFFER)

inline serve(s) {
    c = HEAD(s) - 1;
#ifdef M_LAST
    got[s * CALLS + passed[s] / 2]++; /* as if calls came in one order */
#else
    got[s * CALLS + c]++;
#endif
    if
    :: s == 0 -> ring0[passed[0] % CHUNKS] = 0
    :: else -> ring1[passed[1] % CHUNKS] = 0
    fi;
    passed[s]++;
    assert(got[s * CALLS + c] <= 2 && got[s * CALLS + c] > 0);
    if
    :: GIVE(s) -> credit[s] = passed[s]
    :: else -> skip
    fi;
    c = 0
}

/* F's steps: passing on whatever is at a head; its words in turn; its own packing, which holds the buffer until call c of the sources
 * is through (the other hosts' forwarders wait likewise). */
#define MAY_SIGNAL(h) (signalled[4 + h] < EPOCHS && got[h * EPOCHS + signalled[4 + h]] == 2 && got[CALLS + h * EPOCHS + signalled[4 + h]] == 2)
proctype forwarder() {
    byte c, own = 0;
    do
    :: atomic { SERVABLE(0) -> serve(0) }
    :: atomic { SERVABLE(1) -> serve(1) }
    :: atomic { MAY_SIGNAL(0) -> signalled[4]++ }
    :: atomic { MAY_SIGNAL(1) -> signalled[5]++ }
    :: atomic { own == 0 && seen[2 * CALLS] -> packing_f = 1; own = 1 }
    :: atomic { own == 1 && got[0] == 2 && got[CALLS] == 2 -> packing_f = 0; own = 2 } /* credit from elsewhere, which needs such a call to get on */
    :: own == 2 && signalled[4] == EPOCHS && signalled[5] == EPOCHS -> break
    od;
    assert(passed[0] == 2 * CALLS && passed[1] == 2 * CALLS)
}

init {
    atomic {
        run offers(0); run offers(1); run offers(2);
        run source(0); run source(1);
        run forwarder()
    }
}
