/*
 * ll_rows.cuh - low-latency dispatch: which rows of the output a source's tokens get. Every block
 * computes it by itself from the heads and, in EXPERT, from the counts.
 */
#ifndef MPIX_KERNELS_CUDA_LL_ROWS_CUH
#define MPIX_KERNELS_CUDA_LL_ROWS_CUH
#include "ll_tokens.cuh"

struct received {
    mpix_ep_ll_head heads[MPIX_CUDA_RANKS];
    int64_t total; /* rows of the layout */
    int width;
};

/*
 * Rows in EXPERT. Of each source s we have, for each local expert e, how many of the source's
 * choices are of experts before e: before[s][e], and as [n] all of them. Rows are in the order
 * (expert, source, token, choice); so without padding a source's choices of e begin at row
 *     sum over sources below s of before[][e + 1] + sum over the others of before[][e],
 * which needs no sum over experts here. Padding adds padded[e], what it comes to before e.
 */
struct rows_map {
    uint32_t *before, *padded;
    int n;
};
__device__ __forceinline__ rows_map rows_map_of(const mpix_cuda_handle &h, uint32_t *shared) {
    return {shared, shared + h.size * (h.local_experts + 1), h.local_experts};
}
__device__ __forceinline__ uint32_t first_row(const mpix_cuda_handle &h, const rows_map &m,
                                              int source, int e) {
    uint32_t row = h.ll.align > 1 ? m.padded[e] : 0;
    for (int s = 0; s < h.size; s++)
        row += m.before[s * (m.n + 1) + e + (s < source)];
    return row;
}

/* By the clerk: what the heads' words say, two at a time: a warp takes longer for its instructions
 * than for the loads. False: time-out. */
__device__ static bool counts_take(const mpix_cuda_handle &h, uint64_t epoch, int bank,
                                   mpix_cuda_status *to, const received &in, const rows_map &map) {
    enum { FLIGHT = 4 };
    /* of the words that are looked at next; e0 is even */
    int lane = threadIdx.x % 32, n = map.n, s0 = 0, e0 = 2 * lane;
    const char *words = h.window[h.rank] + h.ll.counts + bank * h.ll.counts_bytes;
    ll_patience patience = {0, 0};
    auto settle = [&] { /* in the source that the word is of */
                        while (e0 >= n && s0 < h.size)
                            e0 -= n + n % 2, s0++;
    };
    settle();
    if (lane < h.size)
        map.before[lane * (n + 1) + n] = in.heads[lane].exist;
    while (__any_sync(~0u, s0 < h.size)) {
        uint64_t v[FLIGHT][2];
        int s[FLIGHT], e[FLIGHT], whose;
        bool there;
#pragma unroll
        for (int u = 0; u < FLIGHT; u++) {
            s[u] = s0, e[u] = e0;
            e0 += 64;
            settle();
        }
        do {
            there = true, whose = -1;
#pragma unroll
            for (int u = 0; u < FLIGHT; u++)
                if (s[u] < h.size)
                    ll_look_two((const uint64_t *)(words + h.ll.block * s[u]) + e[u], v[u]);
#pragma unroll
            for (int u = 0; u < FLIGHT; u++)
                if (s[u] < h.size &&
                    !(ll_is(v[u][0], epoch) && (ll_is(v[u][1], epoch) || e[u] + 1 == n)))
                    there = false, whose = s[u];
            bool late = !__all_sync(~0u, there) && ll_too_long(h, patience);
            if (late && !there)
                ll_timed_out(h, whose, to);
            __syncwarp();
            if (late)
                return false;
        } while (!__all_sync(~0u, there));
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (s[u] < h.size) {
                uint32_t *before = map.before + s[u] * (n + 1) + e[u];
                before[0] = (uint32_t)v[u][0];
                if (e[u] + 1 < n)
                    before[1] = (uint32_t)v[u][1];
            }
    }
    __syncwarp();
    return true;
}

/* By the clerk: how many rows there are; padded, if there is padding. */
__device__ static void rows_assign(const mpix_cuda_handle &h, const rows_map &map, received *in) {
    int n = map.n, lane = threadIdx.x % 32;
    uint64_t total = lane < h.size ? map.before[lane * (n + 1) + n] : 0;
    for (int d = 16; d; d /= 2)
        total += __shfl_xor_sync(~0u, total, d);
    if (h.ll.align > 1) {
        uint64_t pads = 0;
        for (int e0 = 0; e0 < n; e0 += 32) {
            int e = e0 + lane;
            uint32_t all = 0;
            for (int s = 0; e < n && s < h.size; s++)
                all += map.before[s * (n + 1) + e + 1] - map.before[s * (n + 1) + e];
            uint32_t pad = (uint32_t)((h.ll.align - all % h.ll.align) % h.ll.align),
                     sum = lanes_sum(pad, lane);
            if (e < n)
                map.padded[e] = (uint32_t)pads + sum - pad;
            pads += __shfl_sync(~0u, sum, min(31, n - 1 - e0));
        }
        if (lane == 0)
            map.padded[n] = (uint32_t)pads;
        total += pads;
    }
    if (lane == 0)
        in->total = (int64_t)total;
    __syncwarp();
}
#endif
