/*
 * fifo.c - the command FIFO. The layout and the rules are in fifo.h; the arguments for them stand
 * beside the code here.
 */
#include "config.h"

#include "proxy/fifo.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define FIFO_VALID ((uint64_t)1 << 63)

/* The top bit that both halves of entry (position mod entries) have when they hold the command of
 * this position. */
static inline uint64_t fifo_parity(uint64_t position, uint64_t entries) {
    return position & entries ? 0 : FIFO_VALID;
}

int mpix_fifo_init(mpix_fifo *fifo, size_t entries) {
    size_t bytes = entries * sizeof *fifo->entries;
    void *ring;

    memset(fifo, 0, sizeof *fifo);
    if (entries < 2 || (entries & (entries - 1)) != 0 ||
        entries > SIZE_MAX / sizeof *fifo->entries / 2)
        return mpix_fail(MPIX_ERRK_ARG, "entries",
                         "a FIFO of %zu entries: the number must be a power of two, at least 2",
                         entries);
    ring = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!ring)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a FIFO of %zu entries", entries);
    memset(ring, 0, bytes); /* nothing is valid in lap 0 */
    fifo->entries = ring;
    fifo->mask = entries - 1;
    return 0;
}

void mpix_fifo_free(mpix_fifo *fifo) {
    free(fifo->entries);
    fifo->entries = NULL;
}

/*
 * Room. Positions in [tail, head) are queued, so position head may be written when head - tail <
 * entries. tail_seen is a value the tail once had, the tail only grows, so room by tail_seen is
 * room. Several producers store tail_seen and it may go back; that costs another look at the tail,
 * nothing else. A head that was read too early is lower than the real one: if the ring is full by
 * it, it is full; if not, the compare-and-swap fails and brings the real one.
 *
 * Ownership. The swap gives position h to one producer. Its entry was last used by h - entries,
 * which the consumer has taken, for h - entries < tail. Those loads of the consumer happen before
 * our stores: it stores the tail with release after them, we load it with acquire - or load
 * tail_seen with acquire, which was stored with release by a producer that had loaded the tail. So
 * no command is overwritten before it was read.
 *
 * No hole. Nothing is claimed unless there is room, and what is claimed is written at once: a
 * producer that gives up has claimed nothing.
 *
 * Publication. Each half carries its validity. The consumer, seeing half 0 of this lap with
 * acquire, sees half 1 as well, stored before it with release; it checks nevertheless, for a GPU's
 * halves may arrive in any order.
 */
int mpix_fifo_push_at(mpix_fifo *fifo, mpix_cmd cmd, uint64_t *position) {
    uint64_t entries = fifo->mask + 1,
             head = atomic_load_explicit(&fifo->head, memory_order_relaxed), parity;
    mpix_fifo_entry *entry;

    do {
        uint64_t tail = atomic_load_explicit(&fifo->tail_seen, memory_order_acquire);
        if ((int64_t)(head - tail) >= (int64_t)entries) {
            tail = atomic_load_explicit(&fifo->tail, memory_order_acquire);
            atomic_store_explicit(&fifo->tail_seen, tail, memory_order_release);
            if ((int64_t)(head - tail) >= (int64_t)entries)
                return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&fifo->head, &head, head + 1,
                                                    memory_order_relaxed, memory_order_relaxed));

    entry = &fifo->entries[head & fifo->mask];
    parity = fifo_parity(head, entries);
    atomic_store_explicit(&entry->half[1], (cmd.half[1] & ~FIFO_VALID) | parity,
                          memory_order_release);
    atomic_store_explicit(&entry->half[0], (cmd.half[0] & ~FIFO_VALID) | parity,
                          memory_order_release);
    *position = head;
    return 1;
}

int mpix_fifo_push(mpix_fifo *fifo, mpix_cmd cmd) {
    uint64_t position;

    return mpix_fifo_push_at(fifo, cmd, &position);
}

void mpix_fifo_place(mpix_fifo *fifo, mpix_fifo_entry *ring, size_t entries) {
    fifo->entries = ring;
    fifo->mask = entries - 1;
}

/*
 * A claimed entry that is not written yet ends the batch, although later ones may be valid:
 * order is by position. The tail is published once, after the last load of the batch, with
 * release: see Ownership.
 */
int mpix_fifo_peek(const mpix_fifo *fifo, mpix_cmd *cmds, int max) {
    uint64_t entries = fifo->mask + 1,
             tail = atomic_load_explicit(&fifo->tail, memory_order_relaxed);
    int n = 0;

    for (; n < max; n++, tail++) {
        mpix_fifo_entry *entry = &fifo->entries[tail & fifo->mask];
        uint64_t parity = fifo_parity(tail, entries), half0, half1;

        half0 = atomic_load_explicit(&entry->half[0], memory_order_acquire);
        if ((half0 & FIFO_VALID) != parity)
            break;
        half1 = atomic_load_explicit(&entry->half[1], memory_order_acquire);
        if ((half1 & FIFO_VALID) != parity)
            break;
        cmds[n].half[0] = half0 & ~FIFO_VALID;
        cmds[n].half[1] = half1 & ~FIFO_VALID;
    }
    return n;
}

void mpix_fifo_advance(mpix_fifo *fifo, int n) {
    atomic_store_explicit(&fifo->tail,
                          atomic_load_explicit(&fifo->tail, memory_order_relaxed) + (uint64_t)n,
                          memory_order_release);
}

int mpix_fifo_take(mpix_fifo *fifo, mpix_cmd *cmds, int max) {
    int n = mpix_fifo_peek(fifo, cmds, max);

    if (n > 0)
        mpix_fifo_advance(fifo, n);
    return n;
}
