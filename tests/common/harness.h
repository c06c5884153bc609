/*
 * harness.h - what the MPI test programs share: checks, a seeded generator, buffers between guard
 * pages, a watchdog, and a verdict over all ranks. It uses MPI, POSIX and the public headers,
 * nothing of the library's inside.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "mpix_ep.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define T_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

extern int t_rank, t_size; /* in MPI_COMM_WORLD */
extern int t_thread_level; /* what t_init asks MPI for; MPI may provide less */
/* Hosts as the library should see them, by their lowest rank: real ones, split as the parameters
 * reach and hosts say. */
int t_two_hops(void);           /* the environment forces two hops, and there are hosts for it */
extern int t_hosts, *t_host_of; /* t_host_of[t_size] */

/* ---- the run --------------------------------------------------------------------------------- */
void t_init(int *argc, char ***argv, const char *name);
/* Prints the verdict on rank 0, finalizes MPI and returns the exit status: 0 if nothing
 * failed on any rank. */
int t_end(void);
/* The exit status when MPI can no longer be used: prints this rank's verdict and leaves
 * without cleaning up. */
void t_leave(void) __attribute__((noreturn));
/* Failures of this rank so far; of all ranks (collective). */
int t_failures(void);
int t_failed_anywhere(void);
/* Aborts the run with a message if it is not called again within so many seconds; 0 disarms. */
void t_watchdog(int seconds);
/* What is being tested now: printed with every failure and by the watchdog. */
void t_where(const char *fmt, ...) T_PRINTF(1, 2);
/* "--name" followed by a value, or dflt. */
long t_option(int argc, char **argv, const char *name, long dflt);
const char *t_option_text(int argc, char **argv, const char *name, const char *dflt);

/* What this process has open: descriptors (the one that counts them included), and mappings whose
 * line in /proc/self/maps has this in it. */
int t_open_files(void);
int t_mappings(const char *part);

/* ---- checks ---------------------------------------------------------------------------------- */
void t_fail(const char *file, int line, const char *fmt, ...) T_PRINTF(3, 4);
#define CHECK(cond, ...) ((cond) ? 1 : (t_fail(__FILE__, __LINE__, __VA_ARGS__), 0))
/* A call of the library that has to succeed: its error text is printed. Gives 1 if it did. */
#define CHECK_OK(call) t_check_ok(__FILE__, __LINE__, #call, (call))
int t_check_ok(const char *file, int line, const char *what, int code);
/* Ends the run on the spot: for what the test itself can't do without. */
#define REQUIRE(cond, ...) ((cond) ? (void)0 : t_die(__FILE__, __LINE__, __VA_ARGS__))
void t_die(const char *file, int line, const char *fmt, ...) T_PRINTF(3, 4)
    __attribute__((noreturn));

/* ---- random numbers: splitmix64, the same everywhere ----------------------------------------- */
typedef struct {
    uint64_t s;
} t_rng;
uint64_t t_mix(uint64_t x); /* one step of hashing */
uint64_t t_hash2(uint64_t seed, uint64_t a);
uint64_t t_rand(t_rng *rng);
int64_t t_range(t_rng *rng, int64_t lo, int64_t hi); /* lo .. hi, both included */
int t_chance(t_rng *rng, int percent);

/* ---- poisoned buffers ---- A guarded buffer ends at, or begins at, a page that can't be touched
 * (by chance, so both ends are covered over a run); what lies between its other end and the page
 * border is poison and is checked. A placed buffer lies in memory of somebody else, with poison on
 * both sides. The contents start as poison too, so that untouched bytes can be told. */
typedef struct {
    unsigned char *p; /* NULL only if n is 0 */
    size_t n;
    unsigned char *map; /* guarded: the mapping, guard pages included */
    size_t map_len;
    unsigned char *lo, *hi; /* what is checked: [lo, p) and [p + n, hi) */
} t_buf;

typedef struct { /* somebody else's memory, from which placed buffers are cut */
    unsigned char *base;
    size_t bytes, used;
} t_area;

enum { T_SLACK = 256 }; /* at most this much poison and alignment around a placed buffer */

/* align: of the element; n is a multiple of it. An empty buffer is NULL or a pointer to a guard
 * page, by chance. */
void t_buf_new(t_buf *buf, size_t n, size_t align, t_rng *rng);
/* Cut from the area; guarded if the area has no room or is NULL. */
void t_buf_place(t_buf *buf, t_area *area, size_t n, size_t align, t_rng *rng);
void t_buf_readonly(t_buf *buf, int on); /* guarded buffers only: writing faults */
unsigned char t_poison(ptrdiff_t off);   /* the poison at offset off of a buffer's p */
int t_untouched(const t_buf *buf, size_t off, size_t n);
void t_buf_check(const char *file, int line, const t_buf *buf, const char *what);
#define CHECK_BUF(buf, what) t_buf_check(__FILE__, __LINE__, (buf), (what))
void t_buf_free(t_buf *buf);

#endif
