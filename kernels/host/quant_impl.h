/*
 * quant_impl.h - quantisation of a row to fp8 with a scale per 128 columns, written in the
 * operations of a vec_*.h; included once per variant. What is computed is defined in rows.h,
 * operation by operation, so that every variant gives the same bytes.
 */
enum { QUANT_GROUP = 128 };

#define QUANT_TINY 0x1p-110f /* keeps scales and their inverses normal */

/* Largest number, smallest normal one, difference of the exponents' biases, bits dropped, 2^23
 * units of denormals. */
V_INLINE void vf_store_f8e4m3(char *p, vf x) {
    v_store_fp8(p, x, 0x43e00000, 0x3c800000, 0x3c000000, 20, 0x1p14f);
}
V_INLINE void vf_store_f8e5m2(char *p, vf x) {
    v_store_fp8(p, x, 0x47600000, 0x38800000, 0x38000000, 21, 0x1p7f);
}

/* One group of columns, as floats, zeros behind its end. */
V_INLINE void quant_group(const float f[QUANT_GROUP], int e5m2, int ue8m0, uint8_t q[QUANT_GROUP],
                          void *scale) {
    vf most = vf_set1(QUANT_TINY);
    for (int i = 0; i < QUANT_GROUP; i += 16)
        most = vf_larger(most, vf_load_f32((const char *)(f + i)));
    float lanes[16], top = e5m2 ? 57344.0f : 448.0f, inverse;
    vf_store_f32((char *)lanes, most, 0);
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lanes[i] = lanes[i] > lanes[i + n] ? lanes[i] : lanes[i + n];
    float amax = lanes[0], s = amax / top;
    if (ue8m0) {
        /* The power of two that is not below s; 255, NaN, for an infinity. */
        uint32_t e = (mpix_f32_bits(s) + 0x7fffffu) >> 23;
        *(uint8_t *)scale = (uint8_t)e;
        inverse = e == 255 ? 0.0f : mpix_f32_of_bits((254u - e) << 23);
    } else {
        memcpy(scale, &s, sizeof s);
        inverse = top / amax;
    }
    vf factor = vf_set1(inverse);
    for (int i = 0; i < QUANT_GROUP; i += 16) {
        vf x = vf_mul(vf_load_f32((const char *)(f + i)), factor);
        if (e5m2)
            vf_store_f8e5m2((char *)(q + i), x);
        else
            vf_store_f8e4m3((char *)(q + i), x);
    }
}

/* Columns [c, c + 128) of a row of hidden, as floats. */
V_INLINE void quant_load(int dtype, const char *x, size_t c, size_t hidden, float f[QUANT_GROUP]) {
    size_t size = dtype == MPIX_EP_F32 ? 4 : 2;
    if (hidden - c >= QUANT_GROUP) {
        for (int i = 0; i < QUANT_GROUP; i += 16)
            vf_store_f32((char *)(f + i), vf_load(dtype, x + (c + (size_t)i) * size), 0);
        return;
    }
    char last[QUANT_GROUP * 4];
    memset(last, 0, sizeof last);
    memcpy(last, x + c * size, (hidden - c) * size);
    for (int i = 0; i < QUANT_GROUP; i += 16)
        vf_store_f32((char *)(f + i), vf_load(dtype, last + (size_t)i * size), 0);
}

MPIX_ALWAYS_INLINE void quant_row(const char *x, int xdtype, uint8_t *q, int e5m2, char *scales,
                                  int ue8m0, size_t hidden) {
    float f[QUANT_GROUP];
    for (size_t c = 0; c < hidden; c += QUANT_GROUP, scales += ue8m0 ? 1 : 4) {
        quant_load(xdtype, x, c, hidden, f);
        if (hidden - c >= QUANT_GROUP) {
            quant_group(f, e5m2, ue8m0, q + c, scales);
        } else {
            uint8_t last[QUANT_GROUP];
            quant_group(f, e5m2, ue8m0, last, scales);
            memcpy(q + c, last, hidden - c);
        }
    }
}

static void rows_quantize(const void *x, int xdtype, void *q, int qdtype, void *scales,
                          int scale_kind, size_t hidden) {
    unsigned mode = mpix_fp_enter();
    int ue8m0 = scale_kind == MPIX_EP_SCALES_UE8M0;
    if (qdtype == MPIX_EP_F8E5M2)
        quant_row(x, xdtype, q, 1, scales, ue8m0, hidden);
    else
        quant_row(x, xdtype, q, 0, scales, ue8m0, hidden);
    mpix_fp_leave(mode);
}
