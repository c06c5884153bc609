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

#endif
