/* copy_engine.cuh - calls that hold no multiprocessor while rows travel (config.num_sms =
 * MPIX_EP_SMS_NONE): what copy_engine.cu and the sums share. */
#ifndef MPIX_KERNELS_CUDA_COPY_ENGINE_CUH
#define MPIX_KERNELS_CUDA_COPY_ENGINE_CUH
#include "common/device.cuh"

/* A word of pieces: so many pieces of the batch of an epoch are complete; it only grows. */
__host__ __device__ __forceinline__ uint64_t pieces_word(uint64_t epoch, int pieces) {
    return epoch * 16 + pieces;
}

__device__ __forceinline__ mpix_cuda_copy_engine_words *copy_engine_words(const mpix_cuda_handle &h,
                                                                          int owner, int source) {
    return (mpix_cuda_copy_engine_words *)(block_of(h, owner, source) + h.copy_engine.words);
}
__host__ __device__ __forceinline__ int place_index(int owner, int peer) {
    return peer < owner ? peer : peer - 1;
}
/* In owner's window: what owner packed for peer, and what peer pushes back. */
__host__ __device__ __forceinline__ char *place_of(const mpix_cuda_handle &h, int owner, int peer) {
    return h.window[owner] + h.copy_engine.places +
           h.copy_engine.place_bytes * place_index(owner, peer);
}
__host__ __device__ __forceinline__ uint64_t up16(uint64_t n) { return (n + 15) / 16 * 16; }

/* What lies in such a place for n rows: rows, dense; their scales; then records (dispatch), or
 * weights and slot values (combine). */
struct staged {
    uint64_t scales, records, slots;
};
__host__ __device__ __forceinline__ staged staged_of(int64_t n, int64_t row, int64_t scale_row) {
    staged s;
    s.scales = up16((uint64_t)(n * row));
    s.records = up16(s.scales + (uint64_t)(n * scale_row));
    s.slots = up16(s.records + 4 * (uint64_t)n);
    return s;
}

/* First token of a piece: pieces are cut between the blocks of the route kernel. */
__host__ __device__ __forceinline__ int64_t piece_token(int64_t tokens, int piece) {
    int64_t blocks = (tokens + MPIX_CUDA_BLOCK_TOKENS - 1) / MPIX_CUDA_BLOCK_TOKENS,
            t = blocks * piece / MPIX_CUDA_PIECES * MPIX_CUDA_BLOCK_TOKENS;
    return t < tokens ? t : tokens;
}
#endif
