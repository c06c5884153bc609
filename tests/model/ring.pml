/*
 * ring.pml - the ring of partial sums of EXPERT's combine on GPUs (kernels/cuda/expert/expert_combine.cu), from one rank to another: the owner's chunk c of
 * tokens has its place c % SLOTS in the owner's window; the pusher writes there, in the order of chunks, what it has of the chunk's tokens, and says
 * that it arrived; the owner takes its tokens in order and says that a chunk is used up. Of any chunk the pusher may have nothing: that is chosen freely.
 *
 * Shown: what is read at a place is the chunk's; nothing is pushed over what was not read; every call ends, whatever chunks are empty (no deadlock).
 * The words are never cleared; a call follows the one before when that has ended on both ranks (ROWS, and the order of each rank's stream).
 *
 * Mutants: -DM_SLOTS a push waits for the chunk one lap below, empty or not; -DM_LAPS of empty chunks only the one a lap below is passed over;
 * -DM_NO_WAIT a push waits for nothing; -DM_EPOCH words tell the chunk, not the call; -DM_EARLY a chunk is said to be used up before it was read.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CHUNKS
#define CHUNKS 6
#endif
#define CALLS 3
#ifdef M_EPOCH
#define MARK(e, c) ((c) + 1)
#else
#define MARK(e, c) ((e) * 8 + (c) + 1)
#endif

bit has[CHUNKS];                                /* the pusher has something of the chunk */
byte place[SLOTS], arrived[SLOTS], freed[SLOTS]; /* what lies there, what the pusher and the owner have said of it */
bit unread[SLOTS];
byte rows, pushed;                              /* calls in which the owner's room is granted; that the pusher has ended */

proctype pusher() {
    byte e = 1, c;
    short before;
    do
    :: e > CALLS -> break
    :: else ->
        rows >= e;
        c = 0;
        do
        :: c == CHUNKS -> break
        :: c < CHUNKS && !has[c] -> c++
        :: c < CHUNKS && has[c] ->
            before = c - SLOTS;
#if defined(M_LAPS)
            if
            :: before >= 0 && !has[before] -> before = before - SLOTS
            :: else
            fi;
#elif !defined(M_SLOTS)
            do
            :: before >= 0 && !has[before] -> before = before - SLOTS
            :: else -> break
            od;
#endif
#ifndef M_NO_WAIT
            before < 0 || freed[c % SLOTS] >= MARK(e, before);
#endif
            atomic {
                assert(!unread[c % SLOTS]);
                place[c % SLOTS] = MARK(e, c);
                unread[c % SLOTS] = 1
            };
            arrived[c % SLOTS] = MARK(e, c);
            c++
        od;
        pushed = e;
        e++
    od
}

proctype owner() {
    byte e = 1, c;
    do
    :: e > CALLS -> break
    :: else ->
        rows = e;
        c = 0;
        do
        :: c == CHUNKS -> break
        :: c < CHUNKS && !has[c] -> c++
        :: c < CHUNKS && has[c] ->
            arrived[c % SLOTS] >= MARK(e, c);
#ifdef M_EARLY
            freed[c % SLOTS] = MARK(e, c);
#endif
            atomic {
                assert(unread[c % SLOTS] && place[c % SLOTS] == MARK(e, c));
                unread[c % SLOTS] = 0
            };
#ifndef M_EARLY
            freed[c % SLOTS] = MARK(e, c);
#endif
            c++
        od;
        e++
    od;
    pushed == CALLS
}

init {
    byte i;
    for (i : 0 .. CHUNKS - 1) {
        if
        :: has[i] = 0
        :: has[i] = 1
        fi
    };
    atomic { run pusher(); run owner() }
}
