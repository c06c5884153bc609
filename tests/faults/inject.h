/*
 * inject.h - calls for memory and to the system that fail when a test wants it.
 *
 * The test is linked with the library's objects and with the linker's --wrap for the functions
 * below, so what is counted and fails are the calls of the library's own code, and not those of MPI
 * or libc. That works in builds with sanitizers too.
 */
#ifndef TESTS_INJECT_H
#define TESTS_INJECT_H

enum {
    INJECT_MEMORY = 1,  /* malloc and its relatives */
    INJECT_REFUSED = 4, /* memfd_create, ftruncate, fallocate, with EPERM, as a filter of system
                         * calls refuses them */
    INJECT_SYSTEM = 2,  /* mmap, memfd_create, ftruncate, fallocate, socket, eventfd, open, fopen,
                         * dlopen, pthread_create */
};

/* From now on the n-th call (1: the next) of that class fails; sticky: and all after it. n = 0:
 * they are only counted. */
void inject_arm(int what, long n, int sticky);
/* Ends it. Returns the number of calls that failed. */
long inject_disarm(void);
/* Which function failed first since it was last armed, "" if none did. */
const char *inject_failed(void);
/* Blocks of memory that are allocated now. */
long inject_blocks(void);

#endif
