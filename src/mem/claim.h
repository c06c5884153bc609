/*
 * claim.h - memory that several ranks take at once is added up before any of them takes it.
 */
#ifndef MPIX_MEM_CLAIM_H
#define MPIX_MEM_CLAIM_H
#include "boot/boot.h"

/* Before every rank commits, or allocates and writes, so many bytes (they may differ). Collective,
 * communicates once. NO_MEM, naming what, where the ranks that share a limit have no room for all
 * of them; the caller has to agree on that. */
int mpix_mem_together(mpix_boot *boot, size_t bytes, const char *what);

/* Before each of so many processes of this host allocates and writes so many bytes, which the value
 * of arg asks for. Local: each counts on an even share of what is left. 0 or NO_MEM. */
int mpix_mem_share(size_t bytes, int sharers, const char *arg, int64_t value);

#endif
