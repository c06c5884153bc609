/*
 * calls.h - system calls by which a peer's process writes this one's memory (process_vm_writev),
 * and how memory is taken back from them.
 *
 * Nothing of ours stands between such a call and the memory: it writes what lies at the address
 * when it is made, whoever has that memory by then. So a word in memory of the owner, which the
 * peer maps, says that a call may be under way, and another word of the owner's says that none may
 * be made any more. The peer enters, looks, calls and leaves; the owner revokes, and waits until
 * nobody is inside. Both put a sequentially consistent operation between their store and their
 * load: either the peer sees the revocation, or the owner sees the peer.
 *
 * A peer that was stopped inside would let the owner wait for ever, but a process stops on its way
 * out of the kernel only: what the call does is over if the system shows the thread as stopped and
 * in that call. Then it leaves when it wakes, and comes to no further call. In the few instructions
 * between the look and the call, and behind the call, that can't be told: then the memory is not
 * the owner's again yet.
 */
#ifndef MPIX_MEM_CALLS_H
#define MPIX_MEM_CALLS_H
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum { MPIX_CALLS_LIMIT_S = 5 }; /* a call moves at most 2 GiB, which takes a second */

typedef _Atomic uint64_t mpix_calls;   /* how many are inside, and the sum of their threads' ids <<
                                        * 16; written by one peer's process */
typedef _Atomic uint32_t mpix_revoked; /* the owner's */

/* The peer's side. 0: revoked, nothing may be written and nothing is to be left. By a thread,
 * around each system call. */
int mpix_calls_enter(mpix_calls *calls, const mpix_revoked *revoked);
void mpix_calls_leave(mpix_calls *calls);
/* The owner's side, when it has revoked: waits until no call of the process is under way. pidfd:
 * of the process, or -1. 1: none is, and none will be; 0: that can't be told, for
 * MPIX_CALLS_LIMIT_S seconds. */
int mpix_calls_quiet(const mpix_calls *calls, pid_t pid, int pidfd);
#endif
