/*
 * ll.pml - a handle's banks in the low-latency mode, from one rank to another that maps it, as coll/host_ll/ll.h describes them,
 * DEPTH calls in flight.
 *
 * The place of a bank is CELLS words. A batch of n rows lies behind `base`, which differs from call to call, as n does: head,
 * n flags, n records, n rows. So what is the place of a head or flag now may hold anything of an older batch; a record holds
 * any small number. Nothing is granted: the sender waits until the bank's `taken` has reached the epoch DEPTH before. A
 * receiver that comes early offers its output, and a sender that sees the offer writes the row there and says so in the
 * flag; it never waits for one.
 *
 * Shown: what is read of a head and an offer is of the epoch; a row that is told of is there; nobody writes an output that
 * is not offered for that epoch, nor a place that is still read; every call ends with its rows; no deadlock.
 *
 * Mutants: -DM_MARK heads and flags hold the epoch itself instead of a mark of it; -DM_HEAD_FIRST the head's epoch is written
 * before its content; -DM_FLAG_FIRST a flag before its row; -DM_TAKEN the sender does not wait; -DM_TAKEN_EARLY `taken` is
 * said before the rows are read; -DM_OFFER_FIRST the offer's epoch is written before its content; -DM_OFFER_ANY an offer of
 * another epoch is used; -DM_BUSY a call starts, and offers its output, before the call DEPTH before it has ended.
 */
#ifndef DEPTH
#define DEPTH 2
#endif
#define CALLS 3
#define ROWS 2
#define CELLS 8
#define BANK (e % DEPTH)
#define ROW(e) (32 + (e))
#define DIRECT 128
#ifdef M_MARK
#define MARK(e) (e)
#else
#define MARK(e) (64 + (e))
#endif
#define CELL(i) cell[BANK * CELLS + base[e] + (i)]
#define FLAG(i) CELL(1 + (i))
#define RECORD(i) CELL(1 + rows[e] + (i))
#define DATA(i) CELL(1 + 2 * rows[e] + (i))

byte base[CALLS + 1], rows[CALLS + 1]; /* both sides know the base (a fixed one, or told by the receiver); rows stand in the head */
byte cell[DEPTH * CELLS];              /* in the receiver's window, written by the sender */
byte count[DEPTH];                     /* of the head: behind its epoch in the same line, so no other batch's data */
byte taken[DEPTH];                     /* in the sender's window */
byte offer[DEPTH], offered[DEPTH];     /* epoch and content, in the sender's window */
byte output[DEPTH * ROWS];             /* the receiver's; output of a bank's call */
byte owner[DEPTH];                     /* the call whose output it is */
bit ended[CALLS + 1];

proctype sender() {
    byte e = 1, i, to;
    do
    :: e <= CALLS ->
#ifndef M_TAKEN
        e <= DEPTH || taken[BANK] >= e - DEPTH;
#endif
#ifdef M_HEAD_FIRST
        CELL(0) = MARK(e);
        count[BANK] = rows[e];
#else
        count[BANK] = rows[e];
        atomic { /* any token; the only numbers that matter are epochs to come */
            if
            :: DEPTH == 1 -> to = 2
            :: to = 3
            fi;
            RECORD(0) = to;
            RECORD(rows[e] - 1) = to
        };
        CELL(0) = MARK(e);
#endif
        i = 0;
        do
        :: i < rows[e] ->
            to = 0;
#ifdef M_OFFER_ANY
            if
            :: offer[BANK] != 0 -> to = DIRECT
#else
            if
            :: offer[BANK] == e -> assert(offered[BANK] == e); to = DIRECT
#endif
            :: true /* not seen yet */
            fi;
#ifdef M_FLAG_FIRST
            FLAG(i) = MARK(e) | to;
#endif
            if
            :: to -> atomic {
                assert(owner[BANK] == e);
                output[BANK * ROWS + i] = ROW(e)
            }
            :: else -> DATA(i) = ROW(e)
            fi;
#ifndef M_FLAG_FIRST
            FLAG(i) = MARK(e) | to;
#endif
            i++
        :: else -> break
        od;
        e++
    :: else -> break
    od
}

proctype receiver(byte e) {
    byte i, told, n;
#ifndef M_BUSY
    e <= DEPTH || ended[e - DEPTH];
#endif
    atomic {
        owner[BANK] = e;
        output[BANK * ROWS] = 0;
        output[BANK * ROWS + 1] = 0
    };
    if /* peers may map the output, or not */
    :: DEPTH == 1 || e != 2 ->
#ifdef M_OFFER_FIRST
        offer[BANK] = e;
        offered[BANK] = e
#else
        offered[BANK] = e;
        offer[BANK] = e
#endif
    :: true
    fi;
    CELL(0) == MARK(e);
    n = count[BANK];
    assert(n == rows[e]);
#ifdef M_TAKEN_EARLY
    taken[BANK] = e;
#endif
    i = 0;
    do
    :: i < n ->
        (FLAG(i) & 127) == MARK(e);
        told = FLAG(i);
        if
        :: told & DIRECT
        :: else -> output[BANK * ROWS + i] = DATA(i)
        fi;
        assert(output[BANK * ROWS + i] == ROW(e));
        i++
    :: else -> break
    od;
    atomic {
        owner[BANK] = 0; /* the caller's again */
        ended[e] = 1
    };
#ifndef M_TAKEN_EARLY
    taken[BANK] = e
#endif
}

init {
    byte e = 1;
    atomic {
        do
        :: e <= CALLS ->
            rows[e] = 1;
            if
            :: DEPTH == 1 || e != 2 -> rows[e] = 2 /* with two banks call 2 is alone in its own */
            :: true
            fi;
            if
            :: DEPTH == 1 || e != 2 -> base[e] = 1
            :: true
            fi;
            e++
        :: else -> break
        od;
        run sender(); run receiver(1); run receiver(2); run receiver(3)
    }
}
