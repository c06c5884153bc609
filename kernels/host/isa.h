/*
 * isa.h - what the variants of the row kernels share: which of them are built, and the
 * floating-point mode they run in.
 *
 * A variant's file raises the instruction set for its own functions with a target pragma, so no
 * file needs flags of its own and a build for another processor simply leaves the x86 variants out.
 * Every file here is compiled with -ffp-contract=off: a fused multiply-add would skip the rounding
 * of the product that the contract in rows.h promises.
 */
#ifndef MPIX_KERNELS_HOST_ISA_H
#define MPIX_KERNELS_HOST_ISA_H

#include "kernels/host/rows.h"

#ifdef __FAST_MATH__
#error "the row kernels promise IEEE results: build them without -ffast-math"
#endif

/* MPIX_ROWS_PLAIN builds as if for a processor that has no variant of its own. */
#if defined(__x86_64__) && !defined(MPIX_ROWS_PLAIN)
#define MPIX_ROWS_X86 1
#include <immintrin.h>
extern const mpix_rows_ops mpix_rows_avx2;
extern const mpix_rows_ops mpix_rows_avx512;
#else
#define MPIX_ROWS_X86 0
#endif

extern const mpix_rows_ops mpix_rows_portable;

#define MPIX_ALWAYS_INLINE static inline __attribute__((always_inline))

/* For the passes of a sum. With sanitizers, whose code would take a compiler minutes, they
 * are functions. */
#if defined(__has_feature)
#define MPIX_HAS_FEATURE(f) __has_feature(f)
#else
#define MPIX_HAS_FEATURE(f) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    MPIX_HAS_FEATURE(address_sanitizer) || MPIX_HAS_FEATURE(thread_sanitizer) || \
    MPIX_HAS_FEATURE(memory_sanitizer)
#define MPIX_INLINE_PASSES static inline
#else
#define MPIX_INLINE_PASSES MPIX_ALWAYS_INLINE
#endif

/*
 * Repeats a statement for v = 0 .. n - 1, n a constant up to most <= 8, with v a constant
 * expression each time: unlike in an unrolled loop, the elements of an array that v indexes are
 * registers for every compiler and at every level of optimisation.
 */
#define MPIX_EACH(n, most, ...) \
    do { \
        MPIX_EACH_ONE(0, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(1, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(2, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(3, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(4, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(5, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(6, n, most, __VA_ARGS__) \
        MPIX_EACH_ONE(7, n, most, __VA_ARGS__) \
    } while (0)
#define MPIX_EACH_ONE(i, n, most, ...) \
    if ((i) < (most) && (i) < (n)) { \
        enum { v = (i) }; \
        __VA_ARGS__; \
    }

/*
 * Programs linked with -ffast-math flush denormals to zero in all their code, and some run with
 * traps enabled or another rounding mode. A sum promises IEEE results, so it runs in the default
 * mode and puts the caller's back, flags included. The comparison keeps the usual case at one cheap
 * read. Elsewhere than on x86 the caller's mode is used as it is.
 */
#if MPIX_ROWS_X86
enum { MPIX_FP_FLAGS = 0x3f, MPIX_FP_DEFAULT = 0x1f80 };

MPIX_ALWAYS_INLINE unsigned mpix_fp_enter(void) {
    unsigned mode = _mm_getcsr();
    if ((mode & ~(unsigned)MPIX_FP_FLAGS) != MPIX_FP_DEFAULT)
        _mm_setcsr(MPIX_FP_DEFAULT);
    return mode;
}

MPIX_ALWAYS_INLINE void mpix_fp_leave(unsigned mode) {
    if ((mode & ~(unsigned)MPIX_FP_FLAGS) != MPIX_FP_DEFAULT)
        _mm_setcsr(mode);
}
#elif defined __aarch64__
/* FPCR: 0 is to nearest, without flushing of small numbers and without traps. Flags of what
 * happened are in another register. */
MPIX_ALWAYS_INLINE unsigned mpix_fp_enter(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
    if (mode)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return (unsigned)mode;
}

MPIX_ALWAYS_INLINE void mpix_fp_leave(unsigned mode) {
    if (mode)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode) : "memory");
}
#else
MPIX_ALWAYS_INLINE unsigned mpix_fp_enter(void) { return 0; }
MPIX_ALWAYS_INLINE void mpix_fp_leave(unsigned mode) { (void)mode; }
#endif

#endif
