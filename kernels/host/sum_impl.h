/*
 * sum_impl.h - sums of rows, written in the operations of a vec_*.h; included by variant_impl.h
 * once per dtype of x, with
 *
 *     SUM(name)   name with the dtype's suffix
 *     X_DTYPE     the dtype
 *     X_LOAD(p,v) loads sixteen elements of x, the v-th of a pass that begins at p
 *     X_SIZE      bytes of an element
 *     X_SCALED    1: may have scales
 *     X_PAIRS     1: only the passes for y of the same dtype, which take columns in
 *                 pairs (vec_avx512.h)
 *     X_SAME      sum_body for y of the same dtype in one chain, the frequent case
 *
 * and V(name) (a vf or vd operation), V_T (its type), SUM_VECS (registers of sixteen columns per
 * pass), SUM_AHEAD (prefetch distance).
 *
 * A pass takes SUM_VECS * 16 columns: each term's columns are loaded, scaled, weighted and added in
 * registers, and the finished columns are stored, so every input is read once and nothing is
 * written twice. Passes begin at multiples of their width wherever there are scales, and 128 is a
 * multiple of it: one scale serves a whole pass.
 */

#define SUM_EACH(...) MPIX_EACH(nv, SUM_VECS, __VA_ARGS__)
#if X_PAIRS
#define Y_LOAD(dtype, p, v) X_LOAD(p, v)
#define Y_STORE(dtype, p, a, nv, nt) vf_store_pairs(p, a, nv, nt)
#else
#define Y_LOAD(dtype, p, v) V(load)(dtype, (p) + (v)*16 * ysize)
#define Y_STORE(dtype, p, a, nv, nt) V(store)(dtype, p, a, nv, nt)
#endif

/* The values of a term, weights applied. With part > 0 only that many columns exist; a buffer
 * lengthens them. */
V_INLINE void SUM(sum_load)(const mpix_row_term *term, int scale_kind, size_t c, int nv,
                            size_t part, V_T val[]) {
    const char *x = (const char *)term->x + c * X_SIZE;
    char buf[16 * X_SIZE];
    if (part > 0) {
        memset(buf, 0, sizeof buf);
        memcpy(buf, x, part * X_SIZE);
        x = buf;
    } else {
        /* The address may lie past the row: it is only announced. */
        SUM_EACH(if (v * 16 * X_SIZE % 64 == 0)
                     v_prefetch((const char *)((uintptr_t)x + SUM_AHEAD + v * 16 * X_SIZE)));
    }
    SUM_EACH(val[v] = X_LOAD(x, v));
    if (X_SCALED && scale_kind != MPIX_EP_NO_SCALES && term->scales) {
        V_T scale =
            V(set1)(mpix_scale_of_column(term->scales, scale_kind == MPIX_EP_SCALES_UE8M0, c));
        SUM_EACH(val[v] = V(mul)(val[v], scale));
    }
    if (term->nw > 0) {
        V_T w = V(set1)(term->w[0]);
        SUM_EACH(val[v] = V(mul)(val[v], w));
    }
    if (term->nw > 1) {
        V_T w = V(set1)(term->w[1]);
        SUM_EACH(val[v] = V(mul)(val[v], w));
    }
}

/* The sum of the terms in one chain, which is the sum by groups if only the first group has
 * several terms. */
V_INLINE void SUM(sum_chain)(const mpix_row_sum *sum, int scale_kind, size_t c, int nv, size_t part,
                             V_T total[]) {
    const mpix_row_term *term = sum->terms, *end = term + sum->nterms;
    SUM(sum_load)(term, scale_kind, c, nv, part, total);
    for (term++; term < end; term++) {
        V_T val[SUM_VECS];
        SUM(sum_load)(term, scale_kind, c, nv, part, val);
        SUM_EACH(total[v] = V(add)(total[v], val[v]));
    }
}

/* The sum of the terms: first within a group, then of the groups. */
V_INLINE void SUM(sum_groups)(const mpix_row_sum *sum, int scale_kind, size_t c, int nv,
                              size_t part, V_T total[]) {
    const mpix_row_term *term = sum->terms, *end = term + sum->nterms;
    V_T acc[SUM_VECS], val[SUM_VECS];
    int first = 1;
    SUM(sum_load)(term, scale_kind, c, nv, part, acc);
    SUM_EACH(total[v] = acc[v]);
    for (term++; term < end; term++) {
        SUM(sum_load)(term, scale_kind, c, nv, part, val);
        if (term->group == term[-1].group) {
            SUM_EACH(acc[v] = V(add)(acc[v], val[v]));
            continue;
        }
        if (first)
            SUM_EACH(total[v] = acc[v]);
        else
            SUM_EACH(total[v] = V(add)(total[v], acc[v]));
        first = 0;
        SUM_EACH(acc[v] = val[v]);
    }
    if (first)
        SUM_EACH(total[v] = acc[v]);
    else
        SUM_EACH(total[v] = V(add)(total[v], acc[v]));
}

/* One pass: columns [c, c + nv * 16), or [c, c + part) if part > 0. nt: y + c is aligned
 * for streaming. */
V_INLINE void SUM(sum_pass)(const mpix_row_sum *sum, int shape, int scale_kind, int ydtype,
                            size_t c, int nv, size_t part, int nt) {
    size_t ysize = mpix_dtype_size(ydtype), columns = part > 0 ? part : (size_t)nv * 16;
    char buf[16 * 8], *y = (char *)sum->y + c * ysize;
    V_T total[SUM_VECS];
    int nan = 0;
    if (shape == SUM_CHAIN)
        SUM(sum_chain)(sum, scale_kind, c, nv, part, total);
    else if (shape == SUM_GROUPS)
        SUM(sum_groups)(sum, scale_kind, c, nv, part, total);
    else
        SUM_EACH(total[v] = V(set1)(0.0f));
    for (int i = 0; i < 2; i++) {
        if (!sum->bias[i])
            continue;
        const char *bias = (const char *)sum->bias[i] + c * ysize;
        if (part > 0) {
            memset(buf, 0, sizeof buf);
            bias = memcpy(buf, bias, part * ysize);
        }
        SUM_EACH(total[v] = V(add)(total[v], Y_LOAD(ydtype, bias, v)));
    }
    SUM_EACH(if (v % 2 == 0) nan |=
             V(any_nan)(total[v], total[(v | 1) < SUM_VECS && (v | 1) < nv ? v | 1 : v]));
    if (__builtin_expect(nan, 0)) {
        mpix_rows_sum_columns(sum, X_DTYPE, scale_kind, ydtype, c, c + columns);
        return;
    }
    Y_STORE(ydtype, part > 0 ? buf : y, total, nv, nt);
    if (part > 0)
        memcpy(y, buf, part * ysize);
}

V_INLINE size_t SUM(sum_body)(const mpix_row_sum *sum, int shape, int scale_kind, int ydtype,
                              size_t c, size_t hidden, int nt) {
    const size_t width = (size_t)SUM_VECS * 16;
    for (; hidden - c >= width; c += width)
        SUM(sum_pass)(sum, shape, scale_kind, ydtype, c, SUM_VECS, 0, nt);
    return c;
}

#if !X_PAIRS
/* Up to the first line boundary of y, or from the last whole pass on: vectors and a part of one,
 * ordinary stores. */
static __attribute__((noinline)) void SUM(sum_edge)(const mpix_row_sum *sum, int shape,
                                                    int scale_kind, int ydtype, size_t c,
                                                    size_t end) {
    for (; end - c >= 16; c += 16)
        SUM(sum_pass)(sum, shape, scale_kind, ydtype, c, 1, 0, 0);
    if (c < end)
        SUM(sum_pass)(sum, shape, scale_kind, ydtype, c, 1, end - c, 0);
}

static void SUM(sum_row)(const mpix_row_sum *sum, int scale_kind, int ydtype, size_t hidden,
                         int streaming) {
    size_t c = 0, ysize = mpix_dtype_size(ydtype), head = -(uintptr_t)sum->y % 64;
    int shape = sum_shape(sum), scaled = X_SCALED && scale_kind != MPIX_EP_NO_SCALES;
    int nt = streaming && head % ysize == 0 && !(scaled && head > 0);
    if (nt && head > 0) {
        c = head / ysize < hidden ? head / ysize : hidden;
        SUM(sum_edge)(sum, shape, scale_kind, ydtype, 0, c);
    }
    if (shape == SUM_CHAIN && ydtype == X_DTYPE)
        c = X_SAME(sum, SUM_CHAIN, scale_kind, X_DTYPE, c, hidden, nt);
    else if (shape == SUM_CHAIN)
        c = SUM(sum_body)(sum, SUM_CHAIN, scale_kind, ydtype, c, hidden, nt);
    else
        c = SUM(sum_body)(sum, shape, scale_kind, ydtype, c, hidden, nt);
    SUM(sum_edge)(sum, shape, scale_kind, ydtype, c, hidden);
}
#endif

#undef SUM_EACH
#undef Y_LOAD
#undef Y_STORE
#undef SUM
#undef X_DTYPE
#undef X_LOAD
#undef X_SIZE
#undef X_SCALED
#undef X_PAIRS
#undef X_SAME
