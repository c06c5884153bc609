/*
 * forward.cuh - two hops: between hosts a row travels once per host, to a rank there that passes it
 * on to its neighbours over the link between GPUs. What is computed, who forwards for whom and when
 * two hops are taken are as in host memory (coll/host/forward.h); how it travels is remote.cuh's.
 *
 * Dispatch. A source packs a token once for each other host that needs it, in the room of the
 * host's rank through which it reaches that host: the row, and a record of the token's choices
 * there with the rows that they take at their ranks. Tokens for a host are numbered in their order,
 * as those for a rank are. The forwarder's warps take what has come and store it where the source
 * would if it could map the host's ranks; a block's word to its neighbours (rows_here) comes when
 * it has stored both its own rows and what it forwards, so who waits for the words has everything.
 * Combine. The owner of tokens sends the forwarder which rows of each it wants summed (REMOTE_ASK:
 * a record without weights). The forwarder's warps read those rows where combine's offers say they
 * lie, as mapped peers do, and put the sums - rounded once, to the dtype of sums - into the room
 * that is the forwarder's at the owner, who adds them behind the rows of its own host. A
 * neighbour's rows are read until the block says READ-DONE.
 *
 * Credit. The room for what comes from a peer holds all of a batch (max_tokens items: no source has
 * more tokens for a host), so nobody waits for a place: READY and ROWS grant the room as with one
 * hop, by the same argument, and requests, which have room of their own, come under ROWS as well:
 * their readers were part of an earlier combine.
 *
 * Progress. A warp that forwards waits for chunks of sources, which need nobody's forwarding: they
 * are packed and queued by blocks that wait for offers alone. In combine all requests are taken by
 * tickets before anybody sums for others, and all sums for others before any own token, so
 * requests wait for nothing, sums for others wait for requests only, and own tokens for those. The
 * lead passes requests on before it looks at sums; they are short. Nobody waits in a circle,
 * whatever blocks run.
 *
 * A forwarder whose call ends by a time-out or a lost source signals nobody, and its neighbours
 * name it when their time limit is over.
 */
#ifndef MPIX_KERNELS_CUDA_FORWARD_CUH
#define MPIX_KERNELS_CUDA_FORWARD_CUH
#include "remote.cuh"

/* Element k of an array of a record of form forward. */
__device__ __forceinline__ int32_t *forward_int(const mpix_cuda_handle &h, char *record, int array,
                                                int k) {
    return mpix_record_int(record, MPIX_RECORD_GPU, array, h.max_topk, k);
}
__device__ __forceinline__ int32_t forward_at(const mpix_cuda_handle &h, const char *record,
                                              int array, int k) {
    return *mpix_record_int_of(record, MPIX_RECORD_GPU, array, h.max_topk, k);
}

/* Whether this rank reaches another host through rank r. */
__device__ __forceinline__ bool via_is(const mpix_cuda_handle &h, int r) {
    return remote_is(h, r) && h.remote.via[h.remote.host_of[r]] == r;
}
/* The number of token t among this rank's for a host. */
__device__ __forceinline__ uint32_t forward_index(const mpix_cuda_handle &h, int64_t t, int host) {
    return h.remote.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.remote.nhosts + host] +
           h.remote.rel[t * h.remote.nhosts + host];
}
/* Of the lane's rank: items that come from it to be forwarded; items that go to it. */
__device__ __forceinline__ int64_t forward_items_in(const mpix_cuda_handle &h, int lane) {
    return h.remote.serves >> lane & 1 ? h.state->items[lane] : 0;
}
__device__ __forceinline__ int64_t forward_items_out(const mpix_cuda_handle &h, int lane) {
    return via_is(h, lane) ? h.state->hosts[h.remote.host_of[lane]] : 0;
}

/* Records of token t, by a warp; rec: of lane r, a forwarder, where its goes, or null. weights: of
 * the token's choices, or null. */
__device__ inline void forward_record_pack(const mpix_cuda_handle &h, int64_t t, int topk,
                                           const float *weights, char *rec, int lane) {
    for (uint32_t m = __ballot_sync(~0u, rec != nullptr); m; m &= m - 1) {
        int r = __ffs(m) - 1;
        char *to = (char *)__shfl_sync(~0u, (unsigned long long)rec, r);
        uint32_t host = h.remote.host[h.remote.host_of[r]];
        if (lane == 0)
            *(int64_t *)to = t;
        for (int k = lane; k < topk; k += 32) {
            int32_t id = h.ids[t * h.max_topk + k], owner = id >= 0 ? h.owner[id] : -1;
            bool there = id >= 0 && (host >> owner & 1);
            *forward_int(h, to, MPIX_RECORD_FORWARD_ID, k) = there ? id : -1;
            *forward_int(h, to, MPIX_RECORD_FORWARD_ROW, k) = there ? (int32_t)row_of(h, t, owner)
                                                                    : (int32_t)MPIX_RECORD_NO_ROW;
            if (weights)
                *mpix_record_float(to, MPIX_RECORD_GPU, MPIX_RECORD_FORWARD_WEIGHT, h.max_topk,
                                   k) = weights[k];
        }
    }
}

/* The row that a record names for a rank, each lane's own; -1: none. By a warp. */
__device__ inline int64_t forward_record_row(const mpix_cuda_handle &h, const char *record,
                                             int width, int rank) {
    int lane = threadIdx.x % 32;
    int64_t row = -1;
    for (int k0 = 0; k0 < width; k0 += 32) {
        int k = k0 + lane, id = k < width ? forward_at(h, record, MPIX_RECORD_FORWARD_ID, k) : -1,
            owner = id >= 0 ? h.owner[id] : -1;
        uint32_t at = id >= 0 ? (uint32_t)forward_at(h, record, MPIX_RECORD_FORWARD_ROW, k) : 0;
        for (uint32_t m = __ballot_sync(~0u, owner >= 0); m; m &= m - 1) {
            int j = __ffs(m) - 1, r = __shfl_sync(~0u, owner, j);
            uint32_t v = __shfl_sync(~0u, at, j);
            if (r == rank)
                row = v;
        }
    }
    return row;
}

/* What stands beside the forwarded row at each rank, as record_pack writes it; to: of lane r, or
 * null. By a warp. */
__device__ inline void forward_record_expand(const mpix_cuda_handle &h, const char *record,
                                             int width, char *to, int lane) {
    for (uint32_t m = __ballot_sync(~0u, to != nullptr); m; m &= m - 1) {
        int r = __ffs(m) - 1;
        char *at = (char *)__shfl_sync(~0u, (unsigned long long)to, r);
        if (lane == 0)
            *(int64_t *)at = *(const int64_t *)record;
        for (int k = lane; k < width; k += 32) {
            int32_t id = forward_at(h, record, MPIX_RECORD_FORWARD_ID, k);
            *mpix_record_int(at, MPIX_RECORD_GPU, MPIX_RECORD_ROW_LOCAL, h.max_topk,
                             k) = id >= 0 && h.owner[id] == r ? h.local[id] : -1;
            *mpix_record_float(at, MPIX_RECORD_GPU, MPIX_RECORD_ROW_WEIGHT, h.max_topk, k) =
                *mpix_record_float_of(record, MPIX_RECORD_GPU, MPIX_RECORD_FORWARD_WEIGHT,
                                      h.max_topk, k);
        }
    }
}

/* Counts what this warp has packed of a batch of n items at number index, for the lane's peer;
 * after a __syncwarp. False: the context has failed. */
__device__ __forceinline__ bool forward_item_count(const mpix_cuda_handle &h,
                                                   const mpix_cuda_remote_batch &b, int type, int r,
                                                   uint32_t index, int64_t n, uint64_t epoch,
                                                   mpix_cuda_status *to) {
    int64_t chunk = index / b.per_chunk, left = n - chunk * b.per_chunk;
    return remote_chunk_count(h, b, type, r, chunk, 1,
                              (uint32_t)(left < b.per_chunk ? left : b.per_chunk), epoch, to);
}
#endif
