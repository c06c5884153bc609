/*
 * alloc.h - what the programs alloc_ep and alloc_p2p share: a life of an object, with the n-th
 * allocation or system call in one of its steps failing.
 *
 *   --what memory|system|refused   what fails; refused: the error must say so
 *   --sticky 0|1           only that one, or all after it too
 *   --step NAME            only these steps
 *   --victim RANK          where, the last rank if it isn't given
 */
#ifndef TESTS_ALLOC_H
#define TESTS_ALLOC_H

extern int victim;
extern int at_step; /* the step in which it fails now, -1: in none */

/* What happens between these fails, if the step is the right one. */
void arm(int step);
void disarm(int step);
/* All ranks compare what a collective call gave: the victim NO_MEM, the others REMOTE naming it, or
 * success everywhere. 1: success. */
int agree(int step, int code);
/* alone: the victim may be the only one that notices. */
int agree_alone(int step, int code, int alone);
/* A call of this rank alone: NO_MEM on the victim is well. 1: it succeeded. */
int done(int step, int code);

/* Runs life for every step and every n, until nothing fails; nothing may be left behind. */
void alloc_run(int argc, char **argv, void (*life)(void), int steps, const char *const names[]);

#endif
