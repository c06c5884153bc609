/*
 * fifo.h - the command FIFO: 16-byte commands from many producers to one consumer, the proxy.
 *
 * Memory: a power-of-two ring of two 64-bit words per entry, and the tail. Host FIFOs live in
 * ordinary memory; a GPU's in pinned host memory with its head in device memory (gpu_queue.h) - the
 * layout of an entry is the same.
 *
 * Validity. Entry i is used in laps; each half's top bit is the parity of its lap: a half is valid
 * for lap L when its top bit is (L & 1) ^ 1, so a zeroed ring is empty and entries are never
 * cleared. Both halves carry it, since two 8-byte stores (or a vector store) are not one access in
 * any memory model. The producer stores half 1, then half 0, both release; the consumer loads half
 * 0, then half 1 with acquire and takes the entry only when both are valid.
 *
 * Claiming. A producer claims an entry (fetch-and-add on head, by compare-and-swap) only when there
 * is room, so that a time-out never leaves a hole. It keeps a copy of the tail and reads the
 * consumer's only when the ring looks full. The tail means taken, not done.
 */
#ifndef MPIX_PROXY_FIFO_H
#define MPIX_PROXY_FIFO_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mpix_cmd {
    uint64_t half[2]; /* top bits belong to the FIFO: 63 bits each are the producer's */
} mpix_cmd;

typedef struct mpix_fifo_entry {
    _Atomic uint64_t half[2];
} mpix_fifo_entry;

typedef struct mpix_fifo {
    mpix_fifo_entry *entries;
    uint64_t mask;                      /* entries - 1 */
    _Alignas(64) _Atomic uint64_t head; /* next to claim; producers */
    _Atomic uint64_t tail_seen;         /* producers' copy of tail */
    _Alignas(64) _Atomic uint64_t tail; /* next to take; written by the consumer */
} mpix_fifo;

/* entries: power of two, >= 2. NO_MEM, ARG. */
int mpix_fifo_init(mpix_fifo *fifo, size_t entries);
void mpix_fifo_free(mpix_fifo *fifo);
/* 1: queued; 0: full. Any number of threads. */
int mpix_fifo_push(mpix_fifo *fifo, mpix_cmd cmd);
/* The same; *position becomes the number of the command in the FIFO, counted from 0. */
int mpix_fifo_push_at(mpix_fifo *fifo, mpix_cmd cmd, uint64_t *position);
/* Takes up to max commands, in order; returns how many. One thread. Publishes the tail once. */
int mpix_fifo_take(mpix_fifo *fifo, mpix_cmd *cmds, int max);
/* The same in two steps, for a FIFO beside whose entries more is to be read: up to max commands are
 * looked at, the first n of them given back. */
int mpix_fifo_peek(const mpix_fifo *fifo, mpix_cmd *cmds, int max);
void mpix_fifo_advance(mpix_fifo *fifo, int n);
/* A FIFO in memory that others provide: zeroed, entries a power of two. Not to be freed. */
void mpix_fifo_place(mpix_fifo *fifo, mpix_fifo_entry *ring, size_t entries);
#endif
