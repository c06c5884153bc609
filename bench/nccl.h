/* nccl.h - NCCL for the baselines, loaded when it is asked for. */
#ifndef BENCH_NCCL_H
#define BENCH_NCCL_H
#ifdef HAVE_NCCL
#include <nccl.h>

typedef struct bench_nccl_ops {
    void *lib;
    ncclResult_t (*get_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*start)(void);
    ncclResult_t (*end)(void);
    ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*recv)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*version)(int *);
} bench_nccl_ops;

extern bench_nccl_ops bench_nccl;
#endif
/* Loads it; NULL, or why it can't be had. */
const char *bench_nccl_load(int *version);
#endif
