/*
 * live.c - the set of live objects.
 *
 * A handle that the caller gives is looked up here before it is read, so a freed or made-up one is an error and not a
 * crash. (A freed one whose address a new object of the same kind has got can't be told from that.) Each object brings
 * its own entry, which is chained to others of its bucket, so an object that exists is entered without fail: a call
 * that has begun at the other ranks can't fail here. The buckets grow with the number of objects; where there is no
 * memory for more, chains get longer and nothing else happens.
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

static size_t live_home(const void *object) {
    uint64_t x = (uint64_t)(uintptr_t)object;

    x = (x >> 4) * 0x9e3779b97f4a7c15u; /* addresses differ in the middle bits, so these are spread to the top */
    return (size_t)(x >> 32) & live_mask;
}

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
    if (live_count == 0 && live_buckets != live_few) { /* nothing is left behind when all objects are freed */
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
