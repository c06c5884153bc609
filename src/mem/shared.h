/*
 * shared.h - memory of this process that is a file (memfd), so that another process of the host can
 * map it: which file, and where in it.
 */
#ifndef MPIX_MEM_SHARED_H
#define MPIX_MEM_SHARED_H
#include <stddef.h>
#include <stdint.h>

typedef struct mpix_mem_file {
    int fd;
    uint64_t off;      /* of the memory asked for */
    uint64_t reserved; /* length of the file that is mapped, from 0 */
} mpix_mem_file;

/* Memory at map is the file fd, from 0. A failure to note it costs the quick way only. fd stays
 * the caller's. */
void mpix_mem_file_add(void *map, size_t reserved, int fd);
void mpix_mem_file_remove(const void *map);
/* 1: [base, base + bytes) lies in one such file. */
int mpix_mem_file_find(const void *base, size_t bytes, mpix_mem_file *file);

/* Zeroed memory of this kind, page aligned, committed. NO_MEM. */
int mpix_mem_shared_alloc(size_t bytes, void **base);
void mpix_mem_shared_free(void *base); /* NULL is fine */
#endif
