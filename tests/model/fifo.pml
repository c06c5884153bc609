/*
 * fifo.pml - the command FIFO of src/proxy/fifo.c: two producers, one consumer, more commands than slots.
 *
 * Two halves per slot, each with the parity of its lap; a producer claims by compare-and-swap only when there is room by
 * its copy of the tail, which it refreshes when the ring looks full; the consumer takes both halves and publishes the
 * tail once per batch. The halves of a slot are stored in any order, as a GPU's may become visible.
 *
 * Shown: every command is taken once, whole, and in the order of its producer; nothing is overwritten before it was
 * taken; a producer that gives up leaves no hole; no deadlock. Memory is sequentially consistent here: what that leaves
 * out is argued beside the code.
 *
 * Mutants: -DM_CLAIM claims without looking for room; -DM_ONE_BIT has a valid bit in half 0 only; -DM_NO_LAP has bits
 * that are the same in each lap; -DM_EARLY_TAIL publishes the tail before the slot is read; -DM_STALE takes the head as
 * the new copy of the tail; -DM_SPLIT claims by a load and a store.
 */
#define SLOTS 2
#define EACH 3 /* commands of a producer: 6 in 3 laps of 2 slots */
#define PRODUCERS 2

#define PARITY(pos) (((pos) / SLOTS + 1) % 2)

byte value0[SLOTS], value1[SLOTS]; /* the 63 bits of each half: the command's number */
bit valid0[SLOTS], valid1[SLOTS];
byte head, tail, tail_seen;
byte taken;
byte next[PRODUCERS];
byte finished;

proctype producer(byte id) {
    byte n = 0, h, t, slot, command;
    bit parity, second = 0;
    bool claimed;
    do
    :: n < EACH ->
        command = 1 + id * EACH + n;
        claimed = false;
        h = head;
        do
        :: !claimed ->
#ifndef M_CLAIM
            t = tail_seen;
            if
            :: h - t >= SLOTS ->
                t = tail;
#ifdef M_STALE
                tail_seen = head;
                t = head;
#else
                tail_seen = t;
#endif
                if
                :: h - t >= SLOTS -> break /* full */
                :: else
                fi
            :: else
            fi;
#endif
#ifdef M_SPLIT
            if
            :: head == h -> head = h + 1; claimed = true
            :: else -> h = head
            fi
#else
            atomic {
                if
                :: head == h -> head = h + 1; claimed = true
                :: else -> h = head
                fi
            }
#endif
        :: claimed -> break
        od;
        if
        :: !claimed ->
            if /* time is over, or once more */
            :: atomic { finished++; goto done }
            :: skip
            fi
        :: claimed ->
            slot = h % SLOTS;
#ifdef M_NO_LAP
            parity = 1;
#else
            parity = PARITY(h);
#endif
            if
            :: second = 1
            :: second = 0
            fi;
            if
            :: second -> atomic { value0[slot] = command; valid0[slot] = parity };
                         atomic { value1[slot] = command; valid1[slot] = parity }
            :: else   -> atomic { value1[slot] = command; valid1[slot] = parity };
                         atomic { value0[slot] = command; valid0[slot] = parity }
            fi;
            n++
        fi
    :: n == EACH -> finished++; break
    od;
done: skip
}

active proctype consumer() {
    byte at = 0, slot, first, other, id;
    do
    :: slot = at % SLOTS;
       if
#ifdef M_NO_LAP
       :: valid0[slot] == 1 ->
#else
       :: valid0[slot] == PARITY(at) ->
#endif
#ifdef M_EARLY_TAIL
            tail = at + 1;
#endif
            first = value0[slot];
            if
#if defined(M_ONE_BIT) || defined(M_NO_LAP)
            :: true ->
#else
            :: valid1[slot] == PARITY(at) ->
#endif
                other = value1[slot];
                assert(first == other && first > 0);
                id = (first - 1) / EACH;
                assert((first - 1) % EACH == next[id]); /* once, in order, none lost */
                next[id]++;
                taken++;
                at++;
                if /* the tail is published at the end of a batch, whatever its length */
                :: tail = at
                :: at < head && at - tail < SLOTS -> skip
                fi
            fi
       :: finished == PRODUCERS && at == head -> break
       fi
    od;
    assert(taken == head); /* no hole */
    assert(taken == next[0] + next[1])
}

init {
    atomic { run producer(0); run producer(1) }
}
