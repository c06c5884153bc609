/* gpu_fifo_consumers.c - threads that only take what kernels queue. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/internal/gpu_fifo_consumers.h"

enum { BATCH = 64 };

void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void consumer_one(consumer *c, int i) {
    mpix_cmd cmds[BATCH];
    int n = mpix_fifo_peek(&c->fifo[i], cmds, BATCH);

    if (n == 0) {
        relax();
        return;
    }
    for (int k = 0; c->expect && k < n; k++) {
        uint64_t warp = cmds[k].half[0];
        if (warp >= GF_MAX_WARPS || cmds[k].half[1] != c->expect[warp]++)
            c->wrong++;
    }
    mpix_fifo_advance(&c->fifo[i], n);
    uint64_t tail = atomic_load_explicit(&c->fifo[i].tail, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)(uintptr_t)c->dev[i]->tail, tail,
                          memory_order_release);
    if (c->done[i])
        atomic_store_explicit(c->done[i], tail, memory_order_release);
    c->taken += (uint64_t)n;
}

static void *consumer_main(void *arg) {
    consumer *c = arg;

    while (!atomic_load_explicit(c->stop, memory_order_relaxed)) {
        if (atomic_load_explicit(c->stall, memory_order_relaxed)) {
            relax();
            continue;
        }
        for (int i = 0; i < c->nfifos; i++)
            consumer_one(c, i);
        for (int i = 0; i < c->nflags; i++) {
            uint64_t v = atomic_load_explicit(&c->flag[8 * i], memory_order_acquire);
            if (v != atomic_load_explicit(&c->echo[8 * i], memory_order_relaxed))
                atomic_store_explicit(&c->echo[8 * i], v, memory_order_release);
        }
        if (!c->nfifos)
            relax();
    }
    return NULL;
}

static void consumer_add(consumer *c, mpix_dev_fifo *dev, _Atomic uint64_t *done) {
    int i = c->nfifos++;

    memset(&c->fifo[i], 0, sizeof c->fifo[i]);
    mpix_fifo_place(&c->fifo[i], (mpix_fifo_entry *)(void *)dev->slots, dev->mask + 1);
    c->dev[i] = dev;
    c->done[i] = done;
}

consumer consumers[GF_FIFOS];
static _Atomic int stop;
_Atomic int stall;

void consumers_start(mpix_dev_fifo *fifos, int nfifos, int threads, _Atomic uint64_t *done,
                     uint64_t *expect, const gf_trip *flags) {
    atomic_store(&stop, 0);
    memset(consumers, 0, sizeof consumers);
    for (int i = 0; i < nfifos; i++)
        consumer_add(&consumers[i % threads], &fifos[i], done ? &done[8 * i] : NULL);
    for (int i = 0; i < threads; i++) {
        consumers[i].stop = &stop;
        consumers[i].stall = &stall;
        consumers[i].expect = expect;
        if (flags) {
            consumers[i].flag = (_Atomic uint64_t *)(void *)flags->flag;
            consumers[i].echo = (_Atomic uint64_t *)(uintptr_t)flags->echo;
            consumers[i].nflags = flags->blocks * flags->warps;
        }
        if (pthread_create(&consumers[i].thread, NULL, consumer_main, &consumers[i]) != 0)
            exit((perror("pthread_create"), 1));
    }
}

uint64_t consumers_taken(int threads) {
    uint64_t n = 0;

    for (int i = 0; i < threads; i++)
        n += *(volatile uint64_t *)&consumers[i].taken;
    return n;
}

void consumers_end(int threads) {
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(consumers[i].thread, NULL);
}
