/*
 * ll_remote.cu - low latency where some peers are reached through the proxy: what goes
 * before, between and behind the two halves of a call, which are the kernels of
 * ll_dispatch.cu and ll_combine.cu.
 *
 * The first half packs what goes to a proxied peer into host memory instead of the peer's window:
 * one batch, which is the head, in dispatch the counts, and the rows without gaps, each with what
 * travels beside it. When it has ended, `post` queues one put of the batch and the word behind it.
 * What comes from proxied ranks is carried into this rank's window, to where a mapped rank would
 * have written it, flags and all; then the second half begins, which knows no difference. So a call
 * is four or five kernels in stream order, none of which waits for anything on the host, and mapped
 * peers are served as ever.
 *
 *     gate    the packing room is free: all that the handle has queued before is complete; and
 *             so is the place at the peer: its word `taken`, which is passed on to where the
 *             first half looks
 *     begin   ll_dispatch_kernel, ll_combine_kernel: heads, rows
 *     post    `taken` of the call before, the batch, the word `arrived` of the bank
 *     carry   awaits the words `arrived`, in one warp; the others copy what is there
 *     end     the kernel's second half
 *     tail    with depth 1: `taken` of this call, as nobody else will say it in time
 *
 * No deadlock: gate waits for what earlier calls do, begin for nothing that a peer does in this
 * call, and all of a rank's batches are queued before it waits for any. Mapped peers' heads and
 * rows are on their way before that, too. carry needs one warp to wait and one to copy.
 *
 * Right to write: a place at a peer, one for each bank, is free for epoch e when the peer has said
 * `taken` >= e - depth, which it says after its carry has read the place. The words `arrived` have
 * a place for each bank, so that one cannot tell of a batch that is still on its way, whatever
 * order a network keeps. `taken` is a word of its own and part of no batch, for a batch that comes
 * late must not take it back. Its place in the block is that of HT's words for route and READY,
 * which low latency has not.
 *
 * What is copied is bounded by what this rank knows, not by what the head says: rows by max_tokens,
 * in combine by what was sent there.
 */
#include "common/copy.cuh"
#include "remote/remote.cuh"
#include "common/launch.h"
#include "ll_call.cuh"

enum { GATE = 1, POST = 2, CARRY = 4, TAIL = 8 };
enum {
    CARRY_BLOCKS = 16,
    HEAD_WORDS = sizeof(mpix_ep_ll_head) / 4,
    ROWS_WORD = offsetof(mpix_ep_ll_head, rows) / 4,
    FLAGS_WORD = offsetof(mpix_ep_ll_head, flags) / 4
};

struct remote_call {
    int32_t combine, stages;
    int64_t row, scale_row;
    ll_item item;
    int64_t *wait_ns;
    mpix_cuda_status *report;
};

/* Places for batches from r here, and from this rank at r: dispatch's banks, then combine's. */
__device__ __forceinline__ uint64_t batch_place(const mpix_cuda_handle &h, int slot, int combine,
                                                int bank) {
    return h.remote.land + h.remote.room * slot + (combine ? h.ll.depth * h.remote.batch[0] : 0) +
           h.remote.batch[combine] * bank;
}
__device__ __forceinline__ uint64_t word_taken(const mpix_cuda_handle &h, int source, int combine) {
    return h.remote.block * source + 8 * combine;
}
__device__ __forceinline__ uint64_t word_arrived(const mpix_cuda_handle &h, int source, int combine,
                                                 int bank) {
    return h.remote.block * source + h.remote.arrived +
           sizeof(uint64_t) * (combine * MPIX_CUDA_REMOTE_CHUNKS + bank);
}

/* ---- by one warp, a lane for each rank ------------------------------------------------------- */
__device__ static bool gate(const mpix_cuda_handle &h, const remote_call &c, uint64_t epoch) {
    int r = threadIdx.x % 32;
    bool fine = true;
    if (remote_is(h, r)) {
        const uint64_t *taken = (const uint64_t *)(h.remote.window + word_taken(h, r, c.combine));
        fine = remote_settled(h, r, c.report);
        if (fine && epoch > (uint64_t)h.ll.depth &&
            (fine = remote_word_wait(h, taken, epoch - h.ll.depth, r, c.report)))
            word_store(ll_taken(h, h.rank, r, c.combine), word_load(taken));
    }
    return __all_sync(~0u, fine);
}

__device__ static bool taken_put(const mpix_cuda_handle &h, const remote_call &c, int r,
                                 uint64_t epoch) {
    return remote_word_post(h, r, word_taken(h, h.rank, c.combine), epoch, c.report);
}

__device__ static bool post(const mpix_cuda_handle &h, const remote_call &c, uint64_t epoch,
                            int bank) {
    int r = threadIdx.x % 32;
    bool fine = true;
    if (remote_is(h, r)) {
        uint64_t head = *(const volatile uint64_t *)(ll_remote_head(h, r, c.combine) + ROWS_WORD);
        int64_t n = (uint32_t)head;
        delay(h, 2 + r);
        if (!ll_is(head, epoch) || n > h.max_tokens) /* the first half did not come so far */
            fine = false;
        fine = fine && (epoch == 1 || h.ll.depth == 1 || taken_put(h, c, r, epoch - 1));
        fine = fine && remote_post(h, r, ll_remote_out(h, r, c.combine),
                                   batch_place(h, h.remote.there[r], c.combine, bank),
                                   ll_items_at(h, c.combine) + (uint64_t)n * c.item.pitch,
                                   word_arrived(h, h.rank, c.combine, bank), epoch, c.report);
    }
    return __all_sync(~0u, fine);
}

/* Passes on which batches are here. */
__device__ static void arrivals_await(const mpix_cuda_handle &h, const remote_call &c,
                                      uint64_t epoch, int bank) {
    int r = threadIdx.x % 32;
    bool waits = remote_is(h, r);
    const uint64_t *word =
        (const uint64_t *)(h.remote.window + word_arrived(h, waits ? r : 0, c.combine, bank));
    uint64_t start = now_ns();
    for (uint32_t turn = 1; __any_sync(~0u, waits); turn++) {
        if (!waits)
            continue;
        if (word_load(word) >= epoch) {
            asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(
                             &h.remote.here[c.combine * h.size + r]),
                         "l"(remote_chunk_word(epoch, 0))
                         : "memory");
            if (c.wait_ns)
                c.wait_ns[r] += (int64_t)(now_ns() - start);
            waits = false;
        } else if (turn % 16 == 0 && remote_late(h, r, start)) {
            remote_give_up(h, r, c.report);
            waits = false;
        }
    }
}

/* ---- by all other warps ---------------------------------------------------------------------- */
__device__ static void item_carry(const mpix_cuda_handle &h, const remote_call &c, const char *item,
                                  int r, int64_t i, uint64_t epoch, int bank, bool values) {
    int lane = threadIdx.x % 32;
    int64_t place = c.combine ? ll_answer(h, (int64_t)h.state->base[r] + i, bank)
                              : ll_place(h, r, i, bank);
    char *row = c.combine ? ll_answer_row(h, h.rank, place) : ll_row(h, h.rank, place);
    warp_copy_any(item, lane == 0 ? row : nullptr, c.row, lane);
    if (c.combine) {
        if (values)
            warp_copy_any(item + c.item.record + 16,
                          lane == 0 ? (char *)ll_answer_values(h, h.rank, place) : nullptr,
                          4 * h.max_topk, lane);
        if (lane == 0)
            *ll_answer_flag(h, h.rank, place) = *(const volatile uint64_t *)(item + c.item.record);
        return;
    }
    if (c.scale_row > 0)
        warp_copy_any(item + ll_up16(c.row), lane == 0 ? row + ll_up16(c.row) : nullptr,
                      c.scale_row, lane);
    warp_copy_any(item + c.item.record, lane == 0 ? (char *)ll_record(h, h.rank, place) : nullptr,
                  (int64_t)h.ll.record, lane);
    if (lane == 0)
        *ll_flag(h, h.rank, place) = epoch;
}

__device__ static void batches_carry(const mpix_cuda_handle &h, const remote_call &c,
                                     uint64_t epoch, int bank) {
    int lane = threadIdx.x % 32;
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32) - 1,
            warp = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 - 1;
    for (int j = 1; j < h.size; j++) {
        int r = (h.rank + j) % h.size;
        if (!remote_is(h, r))
            continue;
        if (!remote_chunks_wait(h, c.combine, true, r, remote_chunk_word(epoch, 0)))
            return;
        const char *batch = h.remote.window +
                            batch_place(h, h.remote.room_index[r], c.combine, bank);
        const volatile uint64_t *head = (const volatile uint64_t *)batch;
        uint64_t word = lane < HEAD_WORDS ? head[lane] : 0;
        int64_t n = __shfl_sync(~0u, (uint32_t)word, ROWS_WORD),
                most = c.combine ? (int64_t)h.state->send[r] : h.max_tokens;
        bool fails = __shfl_sync(~0u, (uint32_t)word, 0) != 0,
             values = __shfl_sync(~0u, (uint32_t)word, FLAGS_WORD) & MPIX_EP_LL_SLOTS;
        if (warp == j % warps && lane < HEAD_WORDS)
            ll_head(h, h.rank, r, c.combine, bank)[lane] = word;
        for (int64_t e = warp * 32 + lane; !c.combine && e < h.local_experts; e += warps * 32)
            ll_counts(h, h.rank, r, bank)[e] = head[MPIX_CUDA_LL_HEAD / 8 + e];
        n = fails ? 0 : n < most ? n : most;
        for (int64_t i = warp; i < n; i += warps)
            item_carry(h, c, batch + ll_items_at(h, c.combine) + (uint64_t)i * c.item.pitch, r, i,
                       epoch, bank, values);
    }
}

__global__ void __launch_bounds__(512) ll_remote_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                        const __grid_constant__ remote_call c) {
    const uint64_t done = h.state->epoch[c.combine ? MPIX_CUDA_COMBINE : MPIX_CUDA_DISPATCH],
                   epoch = done + 1;
    const int next = (int)h.state->bank[c.combine] + 1, bank = next == h.ll.depth ? 0 : next;
    if (__any_sync(~0u, *(volatile int32_t *)h.failed)) /* the second half says so */
        return;
    if (blockIdx.x > 0 || threadIdx.x >= 32) {
        if (c.stages & CARRY)
            batches_carry(h, c, epoch, bank);
        return;
    }
    bool fine = !(c.stages & GATE) || gate(h, c, epoch);
    if (fine && c.stages & POST)
        fine = post(h, c, epoch, bank);
    if (c.stages & CARRY)
        arrivals_await(h, c, epoch, bank);
    if (c.stages & TAIL && remote_is(h, threadIdx.x))
        taken_put(h, c, threadIdx.x, done);
}

static cudaError_t stages_launch(const mpix_cuda_handle *h, remote_call c, int stages, int num_sms,
                                 cudaStream_t stream) {
    int blocks = stages & CARRY ? num_sms > 0 && num_sms < CARRY_BLOCKS ? num_sms : CARRY_BLOCKS
                                : 1;
    c.stages = stages;
    ll_remote_kernel<<<blocks, stages & CARRY ? 512 : 32, 0, stream>>>(*h, c);
    return cudaGetLastError();
}

/* A call, or a half of it, around its kernel. */
template <class C>
using launcher = cudaError_t (*)(const mpix_cuda_device *, const mpix_cuda_handle *, C *,
                                 cudaStream_t);
template <class C>
static cudaError_t call_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, C *c,
                               remote_call remote, launcher<C> kernel, cudaStream_t stream) {
    const int part = c->part, sends = part != MPIX_CUDA_END, receives = part != MPIX_CUDA_BEGIN;
    cudaError_t err = sends ? stages_launch(h, remote, GATE, c->num_sms, stream) : cudaSuccess;
    c->part = MPIX_CUDA_BEGIN;
    if (err == cudaSuccess && sends)
        err = kernel(d, h, c, stream);
    if (err == cudaSuccess)
        err = stages_launch(h, remote, (sends ? POST : 0) | (receives ? CARRY : 0), c->num_sms,
                            stream);
    c->part = MPIX_CUDA_END;
    if (err == cudaSuccess && receives)
        err = kernel(d, h, c, stream);
    if (err == cudaSuccess && receives && h->ll.depth == 1)
        err = stages_launch(h, remote, TAIL, c->num_sms, stream);
    c->part = part;
    return err;
}

cudaError_t mpix_cuda_ll_remote_dispatch_launch(const mpix_cuda_device *d,
                                                const mpix_cuda_handle *h, mpix_cuda_dispatch *c,
                                                cudaStream_t stream) {
    remote_call remote = {0, 0, c->row, c->scale_row, ll_item_of(*h, *c), c->wait_ns, c->report};
    return call_launch<mpix_cuda_dispatch>(d, h, c, remote, mpix_cuda_ll_dispatch_launch, stream);
}
cudaError_t mpix_cuda_ll_remote_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                               mpix_cuda_combine *c, cudaStream_t stream) {
    remote_call remote = {1, 0, c->row, 0, ll_item_of(*h, *c), c->wait_ns, c->report};
    return call_launch<mpix_cuda_combine>(d, h, c, remote, mpix_cuda_ll_combine_launch, stream);
}

cudaError_t mpix_cuda_ll_remote_load(int *arch) { return mpix_cuda_load(arch, ll_remote_kernel); }
