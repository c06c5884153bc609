/* rows_ref.c - the independent reference and the guarded buffers of the row kernels' tests
 * (rows_ref.h). */
#include "config.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rows_ref.h"

/* ---- formats --------------------------------------------------------------------------------- */

const ref_format *ref_format_of(int dtype) {
    static const ref_format formats[] = {
        [MPIX_EP_F64] = {11, 52, 1}, [MPIX_EP_F32] = {8, 23, 1},   [MPIX_EP_F16] = {5, 10, 1},
        [MPIX_EP_BF16] = {8, 7, 1},  [MPIX_EP_F8E4M3] = {4, 3, 0}, [MPIX_EP_F8E5M2] = {5, 2, 1},
    };
    return &formats[dtype];
}

static uint64_t ones(int bits) { return (UINT64_C(1) << bits) - 1; }

int ref_is_nan(int dtype, uint64_t bits) {
    const ref_format *f = ref_format_of(dtype);
    uint64_t exponent = bits >> f->fraction_bits & ones(f->exponent_bits),
             fraction = bits & ones(f->fraction_bits);
    return exponent == ones(f->exponent_bits) &&
           (f->infinities ? fraction != 0 : fraction == ones(f->fraction_bits));
}

double ref_decode(int dtype, uint64_t bits) {
    const ref_format *f = ref_format_of(dtype);
    uint64_t exponent = bits >> f->fraction_bits & ones(f->exponent_bits),
             fraction = bits & ones(f->fraction_bits);
    int bias = (int)ones(f->exponent_bits - 1);
    double sign = bits >> (f->exponent_bits + f->fraction_bits) & 1 ? -1.0 : 1.0;
    if (ref_is_nan(dtype, bits))
        return NAN;
    if (f->infinities && exponent == ones(f->exponent_bits))
        return sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)fraction, 1 - bias - f->fraction_bits);
    return sign * ldexp((double)(fraction | UINT64_C(1) << f->fraction_bits),
                        (int)exponent - bias - f->fraction_bits);
}

uint64_t ref_encode(int dtype, double v) {
    const ref_format *f = ref_format_of(dtype);
    int bias = (int)ones(f->exponent_bits - 1), exponent;
    uint64_t sign = (uint64_t)(signbit(v) != 0) << (f->exponent_bits + f->fraction_bits);
    uint64_t infinity = ones(f->exponent_bits) << f->fraction_bits;
    if (!f->infinities) /* the NaN of e4m3 stands for it */
        infinity |= ones(f->fraction_bits);
    if (dtype == MPIX_EP_F64) {
        memcpy(&sign, &v, sizeof sign);
        return sign;
    }
    if (v == 0.0 || isinf(v))
        return sign | (v == 0.0 ? 0 : infinity);
    frexp(v, &exponent); /* |v| is in [2^(exponent - 1), 2^exponent) */
    exponent = exponent - 1 > 1 - bias ? exponent - 1 : 1 - bias;
    /* Units in the last place, to nearest even. Denormals and a carry into the next exponent need
     * no care: patterns count on. */
    double units = nearbyint(ldexp(fabs(v), f->fraction_bits - exponent));
    uint64_t bits = (uint64_t)units + ((uint64_t)(exponent + bias - 1) << f->fraction_bits);
    return sign | (bits < infinity ? bits : infinity);
}

uint64_t ref_element(const void *row, int dtype, size_t i) {
    size_t size = mpix_dtype_size(dtype);
    uint64_t bits = 0;
    /* little endian, as all that the tests run on */
    memcpy(&bits, (const char *)row + i * size, size);
    return bits;
}

void ref_element_set(void *row, int dtype, size_t i, uint64_t bits) {
    size_t size = mpix_dtype_size(dtype);
    memcpy((char *)row + i * size, &bits, size);
}

/* ---- the sum --------------------------------------------------------------------------------- */

/* volatile: every result is rounded to its type and no compiler joins two operations. */
static double ref_add(double a, double b, int in_double) {
    volatile float f = (float)a;
    volatile double d = a;
    if (in_double) {
        d = d + b;
        return d;
    }
    f = f + (float)b;
    return f;
}

static double ref_mul(double a, double b, int in_double) {
    volatile float f = (float)a;
    volatile double d = a;
    if (in_double) {
        d = d * b;
        return d;
    }
    f = f * (float)b;
    return f;
}

static double ref_scale(const mpix_row_term *term, int scale_kind, size_t c) {
    if (scale_kind == MPIX_EP_SCALES_F32)
        return ref_decode(MPIX_EP_F32, ref_element(term->scales, MPIX_EP_F32, c / 128));
    int e = ((const uint8_t *)term->scales)[c / 128];
    return e == 255 ? NAN : ldexp(1.0, e - 127);
}

uint64_t ref_sum(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype, size_t c) {
    int in_double = xdtype == MPIX_EP_F64, t = 0;
    double total = 0.0;
    while (t < sum->nterms) {
        int first = t, group = sum->terms[t].group;
        double part = 0.0;
        for (; t < sum->nterms && sum->terms[t].group == group; t++) {
            const mpix_row_term *term = &sum->terms[t];
            double v = ref_decode(xdtype, ref_element(term->x, xdtype, c));
            if (term->scales)
                v = ref_mul(v, ref_scale(term, scale_kind, c), 0);
            for (int i = 0; i < term->nw; i++)
                v = ref_mul(v, term->w[i], in_double);
            part = t == first ? v : ref_add(part, v, in_double);
        }
        total = first == 0 ? part : ref_add(total, part, in_double);
    }
    for (int i = 0; i < 2; i++)
        if (sum->bias[i])
            total = ref_add(total, ref_decode(ydtype, ref_element(sum->bias[i], ydtype, c)),
                            in_double);
    if (isnan(total))
        return ref_encode(ydtype, INFINITY) | UINT64_C(1)
                                                  << (ref_format_of(ydtype)->fraction_bits - 1);
    return ref_encode(ydtype, total);
}

int ref_variants(const mpix_rows_ops *ops[3]) {
    int n = 0;
    for (int isa = MPIX_ISA_PORTABLE; isa <= MPIX_ISA_AVX512; isa++)
        if (mpix_rows_get(isa))
            ops[n++] = mpix_rows_get(isa);
    return n;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Mapping memory can be slow, so a test keeps its arenas: as many as it had buffers at once. */
enum { FILL = 0xa5, ARENA = 64 * 1024, WATCHED = 512, MAX_ARENAS = 64 };
static char *arenas_free[MAX_ARENAS];
static int narenas_free;

static char *arena_new(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (narenas_free > 0)
        return arenas_free[--narenas_free];
    char *map = mmap(NULL, ARENA + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(map != MAP_FAILED);
    ck_assert_int_eq(mprotect(map + page, ARENA, PROT_READ | PROT_WRITE), 0);
    return map + page;
}

/* The watched bytes on both sides of a buffer, as far as the arena goes. */
static unsigned char *guarded_first(const guarded *g) {
    return (unsigned char *)(g->p - g->arena > WATCHED ? g->p - WATCHED : g->arena);
}

static unsigned char *guarded_end(const guarded *g) {
    char *end = g->p + g->n, *limit = g->arena + ARENA;
    return (unsigned char *)(limit - end > WATCHED ? end + WATCHED : limit);
}

guarded guarded_new(size_t n, int where, size_t offset) {
    if (n + offset > ARENA)
        ck_abort_msg("a buffer of %zu bytes is too large for the tests", n);
    guarded g = {.n = n, .arena = arena_new()};
    g.p = where == GUARD_END ? g.arena + ARENA - offset - n : g.arena + offset;
    memset(guarded_first(&g), FILL, (size_t)(guarded_end(&g) - guarded_first(&g)));
    return g;
}

void guarded_check(const guarded *g) {
    for (const unsigned char *p = guarded_first(g); p < guarded_end(g); p++)
        if ((p < (unsigned char *)g->p || p >= (unsigned char *)g->p + g->n) && *p != FILL)
            ck_abort_msg("byte %td of a buffer of %zu bytes was written", p - (unsigned char *)g->p,
                         g->n);
}

void guarded_free(guarded *g) {
    if (narenas_free == MAX_ARENAS)
        ck_abort_msg("more than %d buffers", MAX_ARENAS);
    arenas_free[narenas_free++] = g->arena;
}

/* ---- random numbers: splitmix64, repeatable -------------------------------------------------- */

static uint64_t rnd_state;

void rnd_seed(uint64_t seed) { rnd_state = seed; }

uint64_t rnd(void) {
    uint64_t z = rnd_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t rnd_below(uint64_t n) { return rnd() % n; }
