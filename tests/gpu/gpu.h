/* gpu.h - what the GPU programs share: checked CUDA and library calls, a generator of data that
 * every rank can repeat. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H
#include "mpix_ep.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CU(call) \
    do { \
        cudaError_t err_ = (call); \
        if (err_ != cudaSuccess) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                    cudaGetErrorString(err_)); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)
#define EP(call) \
    do { \
        if ((call) != MPI_SUCCESS) { \
            MPIX_Error e_; \
            MPIX_INIT(&e_); \
            MPIX_Error_last(&e_); \
            fprintf(stderr, "%s:%d: %s: kind %d: %s\n", __FILE__, __LINE__, #call, e_.kind, \
                    e_.text); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

#ifndef TESTS_HARNESS_H /* whose CHECK is used where it is there */
/* A check that counts; in the program's words: its rank, and its failures so far. */
#define CHECK(cond, ...) \
    do { \
        if (!(cond) && ++failures <= 20) { \
            fprintf(stderr, "rank %d line %d: ", rank, __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
        } \
    } while (0)
#endif

static inline int is_fp8(int dtype) { return dtype == MPIX_EP_F8E4M3 || dtype == MPIX_EP_F8E5M2; }

static inline double g_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The kind of a code, -1 if it is none of the library's. */
static inline int g_kind(int code) {
    int kind = -1;
    MPIX_Error_kind(code, &kind);
    return kind;
}

static inline uint64_t g_mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static inline int64_t g_range(uint64_t *s, int64_t lo, int64_t hi) {
    *s = g_mix(*s);
    return lo + (int64_t)(*s % (uint64_t)(hi - lo + 1));
}

/* topk distinct experts of token t of a rank, or -1 by chance. */
static inline void g_ids(uint64_t seed, int rank, int64_t t, int topk, int experts, int holes,
                         int32_t *ids) {
    uint64_t s = g_mix(seed ^ g_mix((uint64_t)rank << 40 ^ (uint64_t)t));
    for (int k = 0; k < topk; k++) {
        int again = 1;
        while (again) {
            ids[k] = (int32_t)g_range(&s, 0, experts - 1);
            again = 0;
            for (int j = 0; j < k; j++)
                again |= ids[j] == ids[k];
        }
    }
    for (int k = 0; k < topk && holes; k++)
        if (g_range(&s, 0, 99) < holes)
            ids[k] = -1;
}
/* Of floats, for qsort. */
static inline int g_ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* n elements of a row: finite values of moderate size. */
static inline void g_row(uint64_t seed, uint64_t a, uint64_t b, int dtype, int64_t n, void *to) {
    uint64_t s = g_mix(seed ^ g_mix(a * 1000003 ^ g_mix(b)));
    for (int64_t j = 0; j < n; j++) {
        s = g_mix(s);
        switch (dtype) {
        case MPIX_EP_F64: ((double *)to)[j] = (double)(int64_t)s * 1e-18; break;
        case MPIX_EP_F32: ((float *)to)[j] = (float)(int64_t)s * 1e-18f; break;
        case MPIX_EP_BF16:
            ((uint16_t *)to)[j] = (uint16_t)((s & 0x807f) | (120 + (s >> 16) % 12) << 7);
            break;
        case MPIX_EP_F16:
            ((uint16_t *)to)[j] = (uint16_t)((s & 0x83ff) | (10 + (s >> 16) % 10) << 10);
            break;
        default: ((uint8_t *)to)[j] = (uint8_t)((s & 0x7f) > 0x70 ? s & 0xcf : s); break;
        }
    }
}
#endif
