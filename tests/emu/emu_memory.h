/* emu_memory.h - memory of an emulated GPU: the process's own, with a note of what it
 * is meant to be. */
#ifndef MPIX_TESTS_EMU_MEMORY_H
#define MPIX_TESTS_EMU_MEMORY_H
#include <stddef.h>

#define EMU_MOST ((size_t)1 << 36) /* bytes of an allocation */

void *emu_memory_make(size_t bytes, int kind); /* kind: MPIX_CUDA_PTR_DEVICE or _PINNED; null: there
                                                * is not so much */
void emu_memory_free(void *p);
void emu_memory_note(void *p, size_t bytes, int kind); /* that was made elsewhere */
void emu_memory_forget(void *p);
int emu_memory_kind(const void *p);                  /* _PAGEABLE: of nobody's here */
unsigned long long emu_memory_number(const void *p); /* of its allocation, 0: none */
unsigned long long emu_stream_number(const void *stream);
unsigned long long emu_capturing();
#endif
