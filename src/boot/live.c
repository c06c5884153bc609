/*
 * live.c - the set of live objects.
 *
 * A handle that the caller gives is looked up here before it is read, so a freed or made-up one is
 * an error and not a crash. (A freed one whose address a new object of the same kind has got can't
 * be told from that.) Each object brings its own entry, which is chained to others of its bucket,
 * so an object that exists is entered without fail: a call that has begun at the other ranks can't
 * fail here. The buckets grow with the number of objects; where there is no memory for more, chains
 * get longer and nothing else happens.
 */
#include "config.h"

#include "boot/boot.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LIVE_FEW = 64 };

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static mpix_live *live_few[LIVE_FEW]; /* the first buckets, which need no memory */
static mpix_live **live_buckets = live_few;
static size_t live_mask = LIVE_FEW - 1; /* buckets - 1; they are a power of two */
static size_t live_count;
_Atomic uint64_t mpix_live_turn = 1;

/* In a child of fork: all that was alive in the parent. */
static mpix_live *left_few[LIVE_FEW];
static mpix_live **left_buckets;
static size_t left_mask;

static size_t live_hash(const void *object) {
    uint64_t x = (uint64_t)(uintptr_t)object;

    /* addresses differ in the middle bits, so these are spread to the top */
    x = (x >> 4) * 0x9e3779b97f4a7c15u;
    return (size_t)(x >> 32);
}

static size_t live_home(const void *object) { return live_hash(object) & live_mask; }

/* What points to the entry of object, or to the end of its chain. */
static mpix_live **live_find(const void *object) {
    mpix_live **at = &live_buckets[live_home(object)];

    while (*at && (*at)->object != object)
        at = &(*at)->next;
    return at;
}

/* Moves all entries to other buckets, as many as mask says. */
static void live_move(mpix_live **buckets, size_t mask) {
    mpix_live **old = live_buckets;
    size_t places = live_mask + 1;

    live_buckets = buckets;
    live_mask = mask;
    for (size_t i = 0; i < places; i++) {
        for (mpix_live *entry = old[i], *next; entry; entry = next) {
            mpix_live **home = &live_buckets[live_home(entry->object)];
            next = entry->next;
            entry->next = *home;
            *home = entry;
        }
    }
    if (old != live_few)
        free(old);
    else
        memset(live_few, 0, sizeof live_few);
}

void mpix_live_add(mpix_live *entry, const void *object, int tag) {
    pthread_mutex_lock(&live_lock);
    if (live_count > live_mask) {
        size_t places = 4 * (live_mask + 1);
        mpix_live **buckets = calloc(places, sizeof *buckets);
        if (buckets)
            live_move(buckets, places - 1);
    }
    mpix_live **at = live_find(object);
    *entry = (mpix_live){*at ? (*at)->next : NULL, object, tag};
    live_count += *at == NULL;
    *at = entry;
    pthread_mutex_unlock(&live_lock);
}

void mpix_live_remove(const void *object) {
    mpix_live **at;

    pthread_mutex_lock(&live_lock);
    if (object && *(at = live_find(object))) {
        *at = (*at)->next;
        live_count--;
    }
    /* nothing is left behind when all objects are freed */
    if (live_count == 0 && live_buckets != live_few) {
        free(live_buckets);
        live_buckets = live_few;
        live_mask = LIVE_FEW - 1;
    }
    pthread_mutex_unlock(&live_lock);
}

int mpix_live_check(const void *object, int tag) {
    int alive = 0;

    if (!object)
        return 0;
    pthread_mutex_lock(&live_lock);
    const mpix_live *entry = *live_find(object);
    alive = entry && entry->tag == tag;
    pthread_mutex_unlock(&live_lock);
    return alive;
}

/* ---- after a fork ---------------------------------------------------------------------------- */

/* The sets are those of the parent: the child has one too, which is empty. */
void mpix_live_fork(int when) {
    if (when == MPIX_FORK_BEFORE) {
        pthread_mutex_lock(&live_lock);
        return;
    }
    if (when == MPIX_FORK_PARENT) {
        pthread_mutex_unlock(&live_lock);
        return;
    }
    pthread_mutex_init(&live_lock, NULL);
    if (when != MPIX_FORK_LEFT)
        return;
    memcpy(left_few, live_few, sizeof left_few);
    left_buckets = live_buckets == live_few ? left_few : live_buckets;
    left_mask = live_mask;
    memset(live_few, 0, sizeof live_few);
    live_buckets = live_few;
    live_mask = LIVE_FEW - 1;
    live_count = 0;
    atomic_fetch_add_explicit(&mpix_live_turn, 1, memory_order_release);
}

/* Under the lock. */
static mpix_live *left_find(const void *object, int tag) {
    mpix_live *entry = object ? left_buckets[live_hash(object) & left_mask] : NULL;

    while (entry && (entry->object != object || entry->tag != tag))
        entry = entry->next;
    return entry;
}

int mpix_live_inherited(const void *object, int tag) {
    if (!left_buckets)
        return 0;
    pthread_mutex_lock(&live_lock);
    int found = left_find(object, tag) != NULL;
    pthread_mutex_unlock(&live_lock);
    return found;
}

int mpix_live_leave(const void *object, int tag) {
    if (!left_buckets)
        return 0;
    pthread_mutex_lock(&live_lock);
    mpix_live *entry = left_find(object, tag);
    if (entry)
        entry->tag = 0; /* it stays in its chain: what it lies in is not forgotten */
    pthread_mutex_unlock(&live_lock);
    return entry != NULL;
}

int mpix_live_need(const void *object, int tag, const char *arg, const char *text) {
    if (mpix_live_check(object, tag))
        return 0;
    if (mpix_boot_owner() && mpix_live_inherited(object, tag))
        return mpix_fail(
            MPIX_ERRK_ARG, arg,
            "%s belongs to process %ld, which forked this one: here it can only be freed", arg,
            (long)mpix_boot_owner());
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s", text);
}
