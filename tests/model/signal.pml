/*
 * signal.pml - batches of puts and their signals, from one rank to another, as src/proxy/ makes them: -DFORM_COUNTED the
 * counted form over a network that keeps no order, without it the ordered form, with two lanes that keep theirs.
 *
 * The source sends batches 1 .. BATCHES, each of two puts; batch e uses bank, and counter, e % DEPTH, and is posted when
 * the receiver has answered to e - DEPTH. A chunk of the send buffer is reused when its put is complete; the network
 * reads it at any time before. Counted: each put arrives as its counter, the header as the counter's header; the target
 * counts and stores the word when header and all puts are there and earlier signals of the lane have been stored.
 * Ordered: the word is a write behind the puts of its lane; the receiver waits for the words of all lanes.
 *
 * Shown: when a word is seen, the batch is there; the word never goes back; a batch is not mixed with another; no
 * deadlock.
 *
 * Mutants, counted: -DM_HEADER the word is stored when the header comes; -DM_TURN not in the order of the lane;
 * -DM_COUNTER a counter is reused before its word was seen; -DM_READ_LATE the header is read after the word was stored;
 * -DM_COUNT the header counts the puts only, not itself; ordered: -DM_WORD_FIRST the word goes before the last put;
 * -DM_UNORDERED over a network without order; -DM_ONE_LANE the receiver looks at one lane; both: -DM_REUSE chunks are
 * reused before they are complete.
 *
 * Not in the model: that a header's place at the source waits for its completion, since here an
 * operation that was delivered is not sent again. tests/unit/test_proxy.c has it (mirror_waits).
 */
#ifndef DEPTH
#define DEPTH 2
#endif
#define BATCHES 4
#define PUTS 2
#define FLIGHT 6 /* operations in the network */

#ifdef FORM_COUNTED
#define LANE(i) 0
#define ANY_ORDER 1
#else
#define LANE(i) (i)
#ifdef M_UNORDERED
#define ANY_ORDER 1
#else
#define ANY_ORDER 0
#endif
#endif
#define WORD PUTS /* the number of the signal among a batch's operations; one per lane in the ordered form */

byte chunk[PUTS];           /* the source's send buffer: which batch's data it holds */
byte pending[PUTS];         /* puts from the chunk that are not complete */
byte data[DEPTH * PUTS];    /* the target's banks */
byte mirror[DEPTH], table[DEPTH]; /* headers: at the source, at the target */
byte count[DEPTH];
bit header[DEPTH], held[DEPTH];
byte arrived;               /* signals stored */
byte word[2];               /* per lane */
byte answered;              /* by the receiver */

/* The network: operations in the order of posting; number n is free if batch[n] is 0. */
byte batch[FLIGHT], what[FLIGHT], lane[FLIGHT], posted;
chan arrivals = [FLIGHT] of { byte, bit }; /* counter, whether it is the header's */

inline post(e, i, l) {
    atomic {
        posted < FLIGHT;
        batch[posted] = e;
        what[posted] = i;
        lane[posted] = l;
        posted++
    }
}

active proctype source() {
    byte e = 1, i;
    do
    :: e <= BATCHES ->
#ifdef M_COUNTER
        skip;
#else
        e <= DEPTH || answered >= e - DEPTH;
#endif
        i = 0;
        do
        :: i < PUTS ->
#ifndef M_REUSE
            pending[i] == 0;
#endif
            chunk[i] = e;
#ifdef M_WORD_FIRST
            if
            :: i == PUTS - 1 -> post(e, WORD, LANE(i))
            :: else
            fi;
#endif
            pending[i]++;
            post(e, i, LANE(i));
            i++
        :: i == PUTS -> break
        od;
#ifdef FORM_COUNTED
        mirror[e % DEPTH] = e;
        post(e, WORD, 0);
#else
        post(e, WORD, 0);
#ifndef M_WORD_FIRST
        post(e, WORD, 1);
#endif
#endif
        e++
    :: e > BATCHES -> break
    od;
    i = 0
}

/* Takes operation n out and executes it: memory first, then the arrival. */
inline deliver(n) {
    e = batch[n];
    i = what[n];
    l = lane[n];
    if
    :: i < PUTS ->
        data[(e % DEPTH) * PUTS + i] = chunk[i];
        pending[i]--;
#ifdef FORM_COUNTED
        arrivals!(e % DEPTH), 0
#endif
    :: else ->
#ifdef FORM_COUNTED
        table[e % DEPTH] = mirror[e % DEPTH];
        arrivals!(e % DEPTH), 1
#else
        assert(e > word[l]);
        word[l] = e
#endif
    fi;
    k = n;
    do
    :: k + 1 < posted ->
        batch[k] = batch[k + 1];
        what[k] = what[k + 1];
        lane[k] = lane[k + 1];
        k++
    :: else -> break
    od;
    posted--;
    batch[posted] = 0;
    what[posted] = 0;
    lane[posted] = 0
}

/* The oldest of a lane only, or any. */
#define MAY(n) (posted > n && (ANY_ORDER || n == 0 || oldest(n)))
#define oldest(n) ((n < 1 || lane[0] != lane[n]) && (n < 2 || lane[1] != lane[n]) && (n < 3 || lane[2] != lane[n]) && \
                   (n < 4 || lane[3] != lane[n]) && (n < 5 || lane[4] != lane[n]))

active proctype network() {
    byte e, i, l, k;
end:
    do
    :: d_step { MAY(0) -> deliver(0); e = 0; i = 0; l = 0; k = 0 }
    :: d_step { MAY(1) -> deliver(1); e = 0; i = 0; l = 0; k = 0 }
    :: d_step { MAY(2) -> deliver(2); e = 0; i = 0; l = 0; k = 0 }
    :: d_step { MAY(3) -> deliver(3); e = 0; i = 0; l = 0; k = 0 }
    :: d_step { MAY(4) -> deliver(4); e = 0; i = 0; l = 0; k = 0 }
    :: d_step { MAY(5) -> deliver(5); e = 0; i = 0; l = 0; k = 0 }
    od
}

#ifdef FORM_COUNTED
/* Stores the word of counter c; from then on the source may use the counter and its header again. */
inline publish(c) {
    count[c] = 0;
    header[c] = 0;
    held[c] = 0;
#ifdef M_READ_LATE
    word[0] = table[c];
    arrived = table[c];
#else
    arrived++;
    assert(table[c] > word[0]);
    word[0] = table[c];
#endif
}

active proctype target() {
    byte c;
    bit is_header;
end:
    do
    :: arrivals?c, is_header ->
        count[c]++;
        if
        :: is_header -> header[c] = 1
        :: else
        fi;
        assert(count[c] <= PUTS + 1);
        if
#if defined(M_HEADER)
        :: is_header ->
#elif defined(M_COUNT)
        :: header[c] && count[c] == PUTS ->
#else
        :: header[c] && count[c] == PUTS + 1 ->
#endif
#ifdef M_TURN
            publish(c)
#else
            if
            :: table[c] == arrived + 1 ->
                publish(c);
#if DEPTH > 1
                do
                :: held[0] && table[0] == arrived + 1 -> publish(0)
                :: held[1] && table[1] == arrived + 1 -> publish(1)
                :: else -> break
                od
#endif
            :: else -> held[c] = 1
            fi
#endif
        :: else
        fi;
        c = 0;
        is_header = 0
    od
}
#endif

active proctype receiver() {
    byte e = 1;
    do
    :: e <= BATCHES ->
#if defined(FORM_COUNTED) || defined(M_ONE_LANE)
        word[0] >= e;
#else
        word[0] >= e;
        word[1] >= e;
#endif
        atomic {
            assert(data[(e % DEPTH) * PUTS] == e);
            assert(data[(e % DEPTH) * PUTS + 1] == e)
        };
        answered = e;
        e++
    :: e > BATCHES -> break
    od
}
