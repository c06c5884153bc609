/* scalar.c - the sum of columns one by one, with NaNs in a definite order (scalar.h). */
#include "config.h"

#include "kernels/host/convert.h"
#include "kernels/host/isa.h"
#include "kernels/host/scalar.h"
#include "mpix_ep.h"

/* Element c of a row of any dtype that a sum in float takes. */
static float scalar_load_f32(const void *row, int dtype, size_t c) {
    const char *p = (const char *)row + c * mpix_dtype_size(dtype);
    uint16_t h;
    float f;
    double d;
    switch (dtype) {
    case MPIX_EP_F64: memcpy(&d, p, sizeof d); return mpix_f32_from_f64(d);
    case MPIX_EP_F32: memcpy(&f, p, sizeof f); return f;
    case MPIX_EP_F16: memcpy(&h, p, sizeof h); return mpix_f32_from_f16(h);
    case MPIX_EP_BF16: memcpy(&h, p, sizeof h); return mpix_f32_from_bf16(h);
    case MPIX_EP_F8E4M3: return mpix_f32_from_f8e4m3((uint8_t)*p);
    default: return mpix_f32_from_f8e5m2((uint8_t)*p);
    }
}

static double scalar_load_f64(const void *row, int dtype, size_t c) {
    double d;
    if (dtype != MPIX_EP_F64)
        return mpix_f64_from_f32(scalar_load_f32(row, dtype, c));
    memcpy(&d, (const char *)row + c * sizeof d, sizeof d);
    return d;
}

static void scalar_store_f64(void *row, int dtype, size_t c, double v) {
    char *p = (char *)row + c * mpix_dtype_size(dtype);
    float f = mpix_f32_from_f64(v);
    uint16_t h;
    if (mpix_f64_isnan(v))
        v = mpix_f64_quiet(v);
    switch (dtype) {
    case MPIX_EP_F64: memcpy(p, &v, sizeof v); return;
    case MPIX_EP_F32: memcpy(p, &f, sizeof f); return;
    case MPIX_EP_F16: h = mpix_f16_from_f64(v); break;
    default: h = mpix_bf16_from_f64(v); break;
    }
    memcpy(p, &h, sizeof h);
}

static void scalar_store_f32(void *row, int dtype, size_t c, float v) {
    char *p = (char *)row + c * mpix_dtype_size(dtype);
    double d = mpix_f64_from_f32(v);
    uint16_t h;
    if (mpix_f32_isnan(v))
        v = mpix_f32_quiet(v);
    switch (dtype) {
    case MPIX_EP_F64: memcpy(p, &d, sizeof d); return;
    case MPIX_EP_F32: memcpy(p, &v, sizeof v); return;
    case MPIX_EP_F16: h = mpix_f16_from_f32(v); break;
    default: h = mpix_bf16_from_f32(v); break;
    }
    memcpy(p, &h, sizeof h);
}

static float scalar_add_f32(float a, float b) {
    return mpix_f32_isnan(a) ? mpix_f32_quiet(a) : mpix_f32_isnan(b) ? mpix_f32_quiet(b) : a + b;
}

static float scalar_mul_f32(float a, float b) {
    return mpix_f32_isnan(a) ? mpix_f32_quiet(a) : mpix_f32_isnan(b) ? mpix_f32_quiet(b) : a * b;
}

static double scalar_add_f64(double a, double b) {
    return mpix_f64_isnan(a) ? mpix_f64_quiet(a) : mpix_f64_isnan(b) ? mpix_f64_quiet(b) : a + b;
}

static double scalar_mul_f64(double a, double b) {
    return mpix_f64_isnan(a) ? mpix_f64_quiet(a) : mpix_f64_isnan(b) ? mpix_f64_quiet(b) : a * b;
}

static float scalar_column_f32(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype,
                               size_t c) {
    float total = 0.0f, part = 0.0f;
    int groups = 0;
    for (int t = 0; t < sum->nterms; t++) {
        const mpix_row_term *term = &sum->terms[t];
        float v = scalar_load_f32(term->x, xdtype, c);
        if (term->scales && scale_kind != MPIX_EP_NO_SCALES)
            v = scalar_mul_f32(v, mpix_scale_of_column(term->scales,
                                                       scale_kind == MPIX_EP_SCALES_UE8M0, c));
        for (int i = 0; i < term->nw; i++)
            v = scalar_mul_f32(v, term->w[i]);
        if (t > 0 && term->group == term[-1].group) {
            part = scalar_add_f32(part, v);
            continue;
        }
        if (t > 0)
            total = groups++ ? scalar_add_f32(total, part) : part;
        part = v;
    }
    if (sum->nterms > 0)
        total = groups ? scalar_add_f32(total, part) : part;
    for (int i = 0; i < 2; i++)
        if (sum->bias[i])
            total = scalar_add_f32(total, scalar_load_f32(sum->bias[i], ydtype, c));
    return total;
}

static double scalar_column_f64(const mpix_row_sum *sum, int ydtype, size_t c) {
    double total = 0.0, part = 0.0;
    int groups = 0;
    for (int t = 0; t < sum->nterms; t++) {
        const mpix_row_term *term = &sum->terms[t];
        double v = scalar_load_f64(term->x, MPIX_EP_F64, c);
        for (int i = 0; i < term->nw; i++)
            v = scalar_mul_f64(v, mpix_f64_from_f32(term->w[i]));
        if (t > 0 && term->group == term[-1].group) {
            part = scalar_add_f64(part, v);
            continue;
        }
        if (t > 0)
            total = groups++ ? scalar_add_f64(total, part) : part;
        part = v;
    }
    if (sum->nterms > 0)
        total = groups ? scalar_add_f64(total, part) : part;
    for (int i = 0; i < 2; i++)
        if (sum->bias[i])
            total = scalar_add_f64(total, scalar_load_f64(sum->bias[i], ydtype, c));
    return total;
}

void mpix_rows_sum_columns(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype,
                           size_t from, size_t to) {
    for (size_t c = from; c < to; c++)
        if (xdtype == MPIX_EP_F64)
            scalar_store_f64(sum->y, ydtype, c, scalar_column_f64(sum, ydtype, c));
        else
            scalar_store_f32(sum->y, ydtype, c,
                             scalar_column_f32(sum, xdtype, scale_kind, ydtype, c));
}
