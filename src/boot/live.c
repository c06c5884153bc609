/*
 * live.c - the set of live objects.
 *
 * A handle that the caller gives is looked up here before it is read, so a freed or made-up one is an error and not a
 * crash. (A freed one whose address a new object of the same kind has got can't be told from that.) Open addressing
 * with linear probing; an entry is removed by closing the gap behind it, so there are no tombstones and a look-up stays
 * short for the life of the process.
 */
#include "config.h"

#include "boot/boot.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct live_entry {
    const void *object; /* NULL: free */
    int tag;
} live_entry;

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static live_entry *live_table;
static size_t live_mask; /* places - 1; places are a power of two, at most half of them taken */
static size_t live_count;

static size_t live_home(const void *object) {
    uint64_t x = (uint64_t)(uintptr_t)object;

    x = (x >> 4) * 0x9e3779b97f4a7c15u; /* addresses differ in the middle bits, so these are spread to the top */
    return (size_t)(x >> 32) & live_mask;
}

/* The place of object, or the free place where it belongs. */
static size_t live_find(const void *object) {
    size_t i = live_home(object);

    while (live_table[i].object && live_table[i].object != object)
        i = (i + 1) & live_mask;
    return i;
}

static int live_grow(void) {
    size_t places = live_table ? 2 * (live_mask + 1) : 64, old_places = live_table ? live_mask + 1 : 0;
    live_entry *old = live_table, *table = calloc(places, sizeof *table);

    if (!table)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a table of %zu objects", places);
    live_table = table;
    live_mask = places - 1;
    for (size_t i = 0; i < old_places; i++)
        if (old[i].object)
            live_table[live_find(old[i].object)] = old[i];
    free(old);
    return 0;
}

int mpix_live_add(const void *object, int tag) {
    int kind = 0;

    pthread_mutex_lock(&live_lock);
    if (!live_table || 2 * (live_count + 1) > live_mask + 1)
        kind = live_grow();
    if (!kind) {
        size_t i = live_find(object);
        live_count += live_table[i].object == NULL;
        live_table[i] = (live_entry){object, tag};
    }
    pthread_mutex_unlock(&live_lock);
    return kind;
}

/*
 * Closing the gap at i: an entry further on may move into it if its home is not between the gap and its place, for a
 * search that starts at its home would otherwise stop at the gap.
 */
static void live_close_gap(size_t i) {
    for (size_t j = (i + 1) & live_mask; live_table[j].object; j = (j + 1) & live_mask) {
        size_t home = live_home(live_table[j].object);
        if (((j - home) & live_mask) >= ((j - i) & live_mask)) {
            live_table[i] = live_table[j];
            i = j;
        }
    }
    live_table[i].object = NULL;
}

void mpix_live_remove(const void *object) {
    pthread_mutex_lock(&live_lock);
    if (live_table && object) {
        size_t i = live_find(object);
        if (live_table[i].object) {
            live_close_gap(i);
            live_count--;
        }
    }
    if (live_count == 0) { /* nothing is left behind when all objects are freed */
        free(live_table);
        live_table = NULL;
    }
    pthread_mutex_unlock(&live_lock);
}

int mpix_live_check(const void *object, int tag) {
    int alive = 0;

    if (!object)
        return 0;
    pthread_mutex_lock(&live_lock);
    if (live_table) {
        const live_entry *entry = &live_table[live_find(object)];
        alive = entry->object == object && entry->tag == tag;
    }
    pthread_mutex_unlock(&live_lock);
    return alive;
}
