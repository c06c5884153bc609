/*
 * guard.h - copies from and to memory that another part of the program owns, and may have unmapped,
 * protected or cut short by now: the answer is an error, where a memcpy would end the process. Also
 * what the program may do with a piece of its memory.
 */
#ifndef MPIX_MEM_GUARD_H
#define MPIX_MEM_GUARD_H
#include <stddef.h>

typedef struct mpix_guard mpix_guard; /* used by one thread at a time */

/* NULL: the system gives no memory or descriptor; errno says which. */
mpix_guard *mpix_guard_new(void);
void mpix_guard_free(mpix_guard *guard); /* NULL is fine */
/* to (or from) is the memory that is not trusted. 0, or EFAULT: a part of it may
 * have been moved. */
int mpix_guard_write(mpix_guard *guard, void *to, const void *from, size_t n);
int mpix_guard_read(mpix_guard *guard, void *to, const void *from, size_t n);
/* The same for n bytes at off of a file, which the caller has mapped. */
int mpix_guard_write_file(int fd, size_t off, void *to, size_t n);
/* Whether a word can be written, which is not touched. 0 or EFAULT. It may be gone a
 * moment later. */
int mpix_guard_writable(const void *word);

enum { MPIX_MEM_READ = 1, MPIX_MEM_WRITE = 2, MPIX_MEM_ALL = 3 };
/* What may be done with all of [base, base + bytes), by the mappings it lies in; 0: a part is not
 * mapped. MPIX_MEM_ALL where the system does not tell. */
int mpix_mem_rights(const void *base, size_t bytes);
#endif
