/*
 * release.pml - staging banks and offers between two proxied ranks, as coll/host/remote.c and coll/host/combine.c use them:
 * an offer is written in a mirror and put by the network, which reads the mirror late; it grants a bank of the staging
 * window, so it is also the release of that bank ("done through the epoch before"); the peer's batch goes there, then its
 * word. What a call needs of the offer it keeps before it writes its own word.
 *
 * -DHANDLES=2 shares DEPTH banks between two handles, which take them in the order of the calls.
 *
 * Shown: a batch lands in a bank that is granted to it; a bank is not given to another call before it was read; an offer
 * that is read, or used, is of the epoch; no deadlock.
 *
 * A rank's network moves only while the rank has a call: the caller runs the proxy.
 *
 * Mutants: -DM_FLUSH a call is complete before its puts are; -DM_EARLY_RELEASE a bank is given back before it was read;
 * -DM_OFFER_LATE the sum reads the offer in its slot; -DM_GRANT the batch goes before it is granted, to the bank of the
 * sender's own number; -DM_WORD_FIRST the word overtakes the batch; -DM_BANK_ORDER (two handles) banks are taken in any
 * order.
 */
#ifndef DEPTH
#define DEPTH 1
#endif
#ifndef HANDLES
#define HANDLES 1
#endif
#ifndef CALLS
#define CALLS 4
#endif
/* CALLS: of all handles together: number s is call (s - 1) / HANDLES + 1 of handle s % HANDLES */
#define EPOCH(s) (((s) - 1) / HANDLES + 1)
#define SLOT(r, s) (((r) * HANDLES + (s) % HANDLES) * DEPTH + EPOCH(s) % DEPTH)
#define SLOTS (2 * HANDLES * DEPTH)
#define CALL(r, s) ((r) * (CALLS + 1) + (s))

byte mirror[SLOTS];                   /* at the sender of the offer: the bank it grants, times 8, plus the call */
byte offer[SLOTS], offer_epoch[SLOTS]; /* at its receiver */
byte owner[2 * DEPTH], data[2 * DEPTH]; /* banks of rank r: the call that has it, what lies there */
byte word[2 * HANDLES];
byte signalled[2 * HANDLES];
byte took[2];                          /* calls that have passed their turn for a bank */
byte running[2] = CALLS;                /* calls of a rank that are not complete */
byte pending[2 * (CALLS + 1)];         /* of a call, not complete */
bit complete[2 * (CALLS + 1)];

mtype = { OFFER, BATCH };
chan net0 = [8] of { mtype, byte, byte }; /* from rank 0: kind, call, bank */
chan net1 = [8] of { mtype, byte, byte };

proctype call(byte r; byte s) {
    byte p = 1 - r, bank, grant;
    s <= HANDLES * DEPTH || complete[CALL(r, s - HANDLES * DEPTH)];
    atomic { /* a bank, in turn */
#ifndef M_BANK_ORDER
        took[r] == s - 1 && (owner[r * DEPTH] == 0 || (DEPTH > 1 && owner[r * DEPTH + DEPTH - 1] == 0));
        took[r] = s;
#else
        owner[r * DEPTH] == 0 || (DEPTH > 1 && owner[r * DEPTH + DEPTH - 1] == 0);
#endif
        bank = (owner[r * DEPTH] == 0 -> 0 : DEPTH - 1);
        owner[r * DEPTH + bank] = s
    };
    atomic {
        mirror[SLOT(r, s)] = bank * 8 + s;
        pending[CALL(r, s)]++;
        if
        :: r == 0 -> net0!OFFER(s, 0)
        :: else -> net1!OFFER(s, 0)
        fi
    };
#ifdef M_GRANT
    grant = bank * 8 + s;
#else
    offer_epoch[SLOT(r, s)] == EPOCH(s);
    grant = offer[SLOT(r, s)]; /* kept */
    assert(grant % 8 == s);
#endif
    signalled[r * HANDLES + s % HANDLES] + 1 == EPOCH(s);
    atomic {
        pending[CALL(r, s)]++;
        signalled[r * HANDLES + s % HANDLES] = EPOCH(s);
        if
        :: r == 0 -> net0!BATCH(s, grant / 8)
        :: else -> net1!BATCH(s, grant / 8)
        fi
    };
    word[r * HANDLES + s % HANDLES] >= EPOCH(s);
#ifdef M_EARLY_RELEASE
    owner[r * DEPTH + bank] = 0;
#endif
    atomic { /* the sum */
#ifdef M_OFFER_LATE
        assert(offer[SLOT(r, s)] % 8 == s);
#endif
        assert(data[r * DEPTH + bank] == s)
    };
#ifndef M_FLUSH
    pending[CALL(r, s)] == 0;
#endif
#ifndef M_EARLY_RELEASE
    owner[r * DEPTH + bank] = 0;
#endif
    atomic {
        complete[CALL(r, s)] = 1;
        running[r]--
    }
}

/* From rank r to rank p: what was posted before lands before. A put reads its source when it is executed. */
proctype network(byte r; chan net) {
    byte p = 1 - r, s, bank;
end:
    do
    :: atomic { running[r] > 0 && net?[OFFER, _, _] -> net?OFFER(s, bank) };
        offer[SLOT(p, s)] = mirror[SLOT(r, s)];
        offer_epoch[SLOT(p, s)] = EPOCH(s);
        pending[CALL(r, s)]--;
        s = 0
    :: atomic { running[r] > 0 && net?[BATCH, _, _] -> net?BATCH(s, bank) };
#ifdef M_WORD_FIRST
        word[p * HANDLES + s % HANDLES] = EPOCH(s);
#endif
        atomic {
            assert(owner[p * DEPTH + bank] == s);
            data[p * DEPTH + bank] = s
        };
#ifndef M_WORD_FIRST
        atomic {
            assert(word[p * HANDLES + s % HANDLES] < EPOCH(s));
            word[p * HANDLES + s % HANDLES] = EPOCH(s)
        };
#endif
        pending[CALL(r, s)]--;
        s = 0;
        bank = 0
    od
}

init {
    atomic {
        run network(0, net0); run network(1, net1);
        run call(0, 1); run call(0, 2); run call(0, 3);
        run call(1, 1); run call(1, 2); run call(1, 3);
#if CALLS == 4
        run call(0, 4); run call(1, 4)
#endif
    }
}
