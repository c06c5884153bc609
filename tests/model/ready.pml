/*
 * ready.pml - offers (READY), statuses and words of a handle's dispatches between two ranks that map each other, as
 * coll/host/words.c and coll/host/dispatch.c do it, DEPTH of them in flight.
 *
 * A call starts when the call DEPTH before it is complete; it writes its offer in the peer's window, then the offer's
 * epoch; awaits the peer's offer of its epoch, and that the call before it has signalled; writes the row where it was
 * granted to, its status, then its word; and is complete when the peer's word has reached its epoch.
 *
 * Shown: what is read of an offer is of the epoch; nobody writes an output that is not granted for that epoch; when a
 * word is seen, row and status of the epoch are there; words grow; no deadlock.
 *
 * Mutants: -DM_SIGNALLED does not wait for the earlier call's word; -DM_START starts without waiting for the call DEPTH
 * before; -DM_GRANT writes before it is granted; -DM_EPOCH_FIRST writes the epoch of the offer before its content;
 * -DM_WORD_FIRST the word before the row; -DM_STATUS_LATE the status after the word.
 */
#ifndef DEPTH
#define DEPTH 2
#endif
#define CALLS 4
#define BANK (e % DEPTH)

/* In the window of rank r, written by its peer: at r * DEPTH + bank. */
byte offer_epoch[2 * DEPTH], offer[2 * DEPTH], status[2 * DEPTH];
byte output[2 * DEPTH]; /* of rank r; free for writing while granted[] is the writer's epoch */
byte granted[2 * DEPTH];
byte word[2];
/* Rank r's own: */
byte signalled[2];
bit complete[2 * (CALLS + 1)];

proctype call(byte r; byte e) {
    byte p = 1 - r, seen;
#ifndef M_START
    e <= DEPTH || complete[r * (CALLS + 1) + e - DEPTH];
#endif
    granted[r * DEPTH + BANK] = e;
#ifdef M_EPOCH_FIRST
    offer_epoch[p * DEPTH + BANK] = e;
    offer[p * DEPTH + BANK] = e;
#else
    offer[p * DEPTH + BANK] = e;
    offer_epoch[p * DEPTH + BANK] = e;
#endif
#ifndef M_GRANT
    offer_epoch[r * DEPTH + BANK] == e;
    seen = offer[r * DEPTH + BANK];
    assert(seen == e);
#endif
#ifndef M_SIGNALLED
    signalled[r] + 1 == e;
#endif
#ifdef M_WORD_FIRST
    word[p] = e;
#endif
    atomic {
        assert(granted[p * DEPTH + BANK] == e);
        output[p * DEPTH + BANK] = e
    };
#ifndef M_STATUS_LATE
    status[p * DEPTH + BANK] = e;
#endif
#ifndef M_WORD_FIRST
    atomic {
        assert(word[p] < e);
        word[p] = e
    };
#endif
#ifdef M_STATUS_LATE
    status[p * DEPTH + BANK] = e;
#endif
    signalled[r] = e;
    word[r] >= e;
    assert(status[r * DEPTH + BANK] == e);
    atomic {
        assert(output[r * DEPTH + BANK] == e);
        granted[r * DEPTH + BANK] = 0;
        complete[r * (CALLS + 1) + e] = 1
    }
}

init {
    atomic {
        run call(0, 1); run call(0, 2); run call(0, 3); run call(0, 4);
        run call(1, 1); run call(1, 2); run call(1, 3); run call(1, 4)
    }
}
