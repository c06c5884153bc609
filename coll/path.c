/* path.c - the table of paths (path.h), and which of them a configuration chooses. */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host/host.h"
#include "coll/host_ll/ll.h"
#include "coll/path.h"

const mpix_ep_feature_text mpix_ep_features[MPIX_EP_FEATURES] = {
    [MPIX_EP_CAN_MAPPED] = {"mapped", "peers of one host, mapped"},
    [MPIX_EP_CAN_PROXIED] = {"proxied", "peers of other hosts, proxied"},
    [MPIX_EP_CAN_MIXED] = {"mixed", "mapped and proxied peers"},
    [MPIX_EP_CAN_TWO_HOPS] = {"two-hops", "two hops between hosts (parameter two_hops)"},
    [MPIX_EP_CAN_COPY_ENGINES] = {"copy-engines", "rows moved by copy engines (MPIX_EP_SMS_NONE)"},
    [MPIX_EP_CAN_BLOCKING] = {"blocking", "blocking calls"},
    [MPIX_EP_CAN_NONBLOCKING] = {"nonblocking", "nonblocking calls (i...)"},
    [MPIX_EP_CAN_STREAM] = {"stream", "calls in a CUDA stream (..._enqueue)"},
    [MPIX_EP_CAN_HALVES] = {"halves", "halves of calls in a stream (..._begin_enqueue)"},
    [MPIX_EP_CAN_CAPTURE] = {"capture", "calls captured in a CUDA graph"},
    [MPIX_EP_CAN_ROUTE_COUNTS] = {"route-counts", "counts of received rows from route"},
    [MPIX_EP_CAN_DISPATCH_COUNTS] = {"dispatch-counts", "counts of received rows from dispatch"},
    [MPIX_EP_CAN_ANY_DTYPE] = {"any-dtype", "rows of every dtype (combine: not BYTES)"},
    [MPIX_EP_CAN_NARROW] = {"narrow", "rows rounded to a narrower dtype in dispatch"},
    [MPIX_EP_CAN_QUANTISE] = {"quantise", "rows made fp8 with scales in dispatch"},
    [MPIX_EP_CAN_ANY_OUTPUT] = {"any-output", "dispatch's rows in any memory of the kind"},
    [MPIX_EP_CAN_ANY_INPUT] = {"any-input", "combine's rows in any memory of the kind"},
    [MPIX_EP_CAN_OWNER_WEIGHTS] = {"owner-weights", "in.topk_weights of combine"},
    [MPIX_EP_CAN_WIRE_F32] = {"wire-f32", "in.wire = F32 of narrower rows"},
    [MPIX_EP_CAN_WIRE_ANY] = {"wire-any", "in.wire = any of F64, F32, F16, BF16"},
    [MPIX_EP_CAN_COMBINE_BUFFER] = {"combine-buffer", "MPIX_Ep_combine_buffer"},
    [MPIX_EP_CAN_MASKING] = {"masking", "masking of dead ranks"},
};

#define BIT(feature) (UINT32_C(1) << MPIX_EP_CAN_##feature)
#define LAYOUT(layout) (1 << MPIX_EP_##layout)
#define HOSTS (BIT(MAPPED) | BIT(PROXIED) | BIT(MIXED))
#define WAITS (BIT(BLOCKING) | BIT(NONBLOCKING) | BIT(ANY_DTYPE))
#define STREAMS (BIT(STREAM) | BIT(HALVES))
#define ANYWHERE (BIT(ANY_OUTPUT) | BIT(ANY_INPUT))
#define CONVERTS (BIT(NARROW) | BIT(QUANTISE))

#define HOST_HT \
    (HOSTS | BIT(TWO_HOPS) | WAITS | BIT(ROUTE_COUNTS) | BIT(DISPATCH_COUNTS) | CONVERTS | \
     ANYWHERE | BIT(WIRE_F32))
#define LL (HOSTS | WAITS | BIT(DISPATCH_COUNTS) | ANYWHERE | BIT(WIRE_F32) | BIT(WIRE_ANY))
#define HOST_LL (LL | CONVERTS)
#define GPU_HT (HOSTS | WAITS | STREAMS | BIT(CAPTURE) | BIT(ROUTE_COUNTS) | BIT(QUANTISE))
#define GPU_LL (LL | STREAMS | BIT(CAPTURE) | BIT(QUANTISE))

/* Host memory has no multiprocessors to choose and no stream to capture. A row in COMPACT and SLOTS
 * is the sum over its experts already. Mode LL goes one way whatever two_hops says; copy engines
 * refuse proxied peers, so nobody asks them for hops. */
#define NOT_HOST (BIT(COPY_ENGINES) | BIT(CAPTURE))
#define NOT_LL BIT(TWO_HOPS)
#define SUMMED BIT(OWNER_WEIGHTS)

#define HOST_FUNCTIONS \
    .alloc = mpix_ep_host_alloc, .dealloc = mpix_ep_host_dealloc, .find = mpix_ep_host_find
#define GPU_FUNCTIONS \
    .layout = mpix_ep_gpu_layout, .create = mpix_ep_gpu_create, .part = mpix_ep_gpu_part, \
    .stop = mpix_ep_gpu_stop, .free = mpix_ep_gpu_free, .async_error = mpix_ep_gpu_async_error, \
    .peer = mpix_ep_gpu_peer, .handle_create = mpix_ep_gpu_handle_create, \
    .handle_free = mpix_ep_gpu_handle_free, .alloc = mpix_ep_gpu_alloc, \
    .dealloc = mpix_ep_gpu_dealloc, .find = mpix_ep_gpu_reaches, .route = mpix_ep_gpu_route, \
    .dispatch_end = mpix_ep_gpu_dispatch_end, .combine_end = mpix_ep_gpu_combine_end

const mpix_ep_path mpix_ep_paths[] = {
    {
        .name = "host-ht",
        .what = "Host memory, large batches: the sender's processor writes each row to its place.",
        .memkind = MPIX_EP_HOST,
        .mode = MPIX_EP_HT,
        .can = {[MPIX_EP_COMPACT] = HOST_HT, [MPIX_EP_EXPERT] = HOST_HT | BIT(OWNER_WEIGHTS)},
        .moot = {[MPIX_EP_COMPACT] = NOT_HOST | SUMMED, [MPIX_EP_EXPERT] = NOT_HOST},
        .window_size = mpix_ep_ht_window_size,
        .layout = mpix_ep_ht_layout,
        .free = mpix_ep_ht_free,
        .handle_free = mpix_ep_ht_handle_free,
        .route = mpix_ep_ht_route,
        .dispatch = mpix_ep_ht_dispatch,
        .combine = mpix_ep_ht_combine,
        HOST_FUNCTIONS,
    },
    {
        .name = "host-ll",
        .number = 1,
        .what =
            "Host memory, small batches: fixed banks, and nothing is exchanged before the rows.",
        .memkind = MPIX_EP_HOST,
        .mode = MPIX_EP_LL,
        .can = {[MPIX_EP_EXPERT] = HOST_LL, [MPIX_EP_SLOTS] = HOST_LL | BIT(COMBINE_BUFFER)},
        .moot =
            {[MPIX_EP_EXPERT] = NOT_HOST | NOT_LL, [MPIX_EP_SLOTS] = NOT_HOST | NOT_LL | SUMMED},
        .limits = {.rows = INT32_MAX},
        .window_size = mpix_ep_ll_window_size,
        .layout = mpix_ep_ll_layout,
        .free = mpix_ep_ll_free,
        .handle_create = mpix_ep_ll_handle_create,
        .handle_free = mpix_ep_ll_handle_free,
        .route = mpix_ep_ll_route,
        .dispatch = mpix_ep_ll_dispatch,
        .combine = mpix_ep_ll_combine,
        .combine_buffer = mpix_ep_ll_combine_buffer,
        .call_bytes = sizeof(mpix_ep_ll_part),
        .part_here = mpix_ep_ll_dispatch_here,
        HOST_FUNCTIONS,
    },
    {
        .name = "gpu-ht",
        .number = 2,
        .what =
            "GPU memory, large batches, a row per token and rank: kernels write each row to its "
            "place.",
        .memkind = MPIX_EP_CUDA,
        .mode = MPIX_EP_HT,
        .layouts = LAYOUT(COMPACT) | LAYOUT(SLOTS),
        .can = {[MPIX_EP_COMPACT] = GPU_HT | BIT(TWO_HOPS)},
        .moot = {[MPIX_EP_COMPACT] = BIT(COPY_ENGINES) | SUMMED},
        .limits = {.ranks = MPIX_CUDA_RANKS, .rows = INT32_MAX, .window = MPIX_EP_GPU_WINDOW_MOST},
        .window_size = mpix_ep_gpu_ht_window_size,
        .dispatch = mpix_ep_gpu_dispatch,
        .combine = mpix_ep_gpu_combine,
        GPU_FUNCTIONS,
    },
    {
        .name = "gpu-expert",
        .number = 3,
        .what = "GPU memory, large batches, a row per token and expert: sent once per rank, copied "
                "there.",
        .memkind = MPIX_EP_CUDA,
        .mode = MPIX_EP_HT,
        .layouts = LAYOUT(EXPERT),
        .can = {[MPIX_EP_EXPERT] = GPU_HT | BIT(ANY_INPUT) | BIT(OWNER_WEIGHTS) | BIT(WIRE_F32)},
        .moot = {[MPIX_EP_EXPERT] = BIT(COPY_ENGINES)},
        .limits = {.ranks = MPIX_CUDA_RANKS,
                   .expert_topk = 32,
                   .rows = INT32_MAX,
                   .window = MPIX_EP_GPU_WINDOW_MOST},
        .window_size = mpix_ep_gpu_ht_window_size,
        .dispatch = mpix_ep_gpu_dispatch,
        .combine = mpix_ep_gpu_combine,
        GPU_FUNCTIONS,
    },
    {
        .name = "gpu-copy-engine",
        .number = 4,
        .what = "GPU memory, large batches: copy engines move the rows, and kernels only pack and "
                "sum.",
        .memkind = MPIX_EP_CUDA,
        .mode = MPIX_EP_HT,
        .copy_engine = 1,
        .layouts = LAYOUT(COMPACT) | LAYOUT(EXPERT) | LAYOUT(SLOTS),
        .can = {[MPIX_EP_COMPACT] = BIT(MAPPED) | BIT(COPY_ENGINES) | WAITS | STREAMS |
                                    BIT(ROUTE_COUNTS)},
        .moot = {[MPIX_EP_COMPACT] = BIT(TWO_HOPS) | SUMMED},
        .limits = {.ranks = MPIX_CUDA_RANKS, .rows = INT32_MAX},
        .window_size = mpix_ep_gpu_ht_window_size,
        .dispatch = mpix_ep_gpu_dispatch,
        .combine = mpix_ep_gpu_combine,
        GPU_FUNCTIONS,
    },
    {
        .name = "gpu-ll",
        .number = 5,
        .what = "GPU memory, small batches: fixed banks, and nothing is exchanged before the rows.",
        .memkind = MPIX_EP_CUDA,
        .mode = MPIX_EP_LL,
        .can = {[MPIX_EP_EXPERT] = GPU_LL, [MPIX_EP_SLOTS] = GPU_LL | BIT(COMBINE_BUFFER)},
        .moot = {[MPIX_EP_EXPERT] = NOT_LL, [MPIX_EP_SLOTS] = NOT_LL | SUMMED},
        .limits = {.ranks = MPIX_CUDA_RANKS,
                   .expert_topk = 32,
                   .rows = INT32_MAX,
                   .expert_places = MPIX_EP_GPU_LL_SHARED_WORDS,
                   .window = MPIX_EP_GPU_WINDOW_MOST},
        .window_size = mpix_ep_gpu_ll_window_size,
        .dispatch = mpix_ep_gpu_ll_dispatch,
        .combine = mpix_ep_gpu_ll_combine,
        .combine_buffer = mpix_ep_gpu_ll_combine_buffer,
        GPU_FUNCTIONS,
    },
    {0},
};

const mpix_ep_path *mpix_ep_path_of(const MPIX_Ep_config *c) {
    int copy_engine = c->num_sms == MPIX_EP_SMS_NONE;
    const mpix_ep_path *p = mpix_ep_paths;
    for (; p->name; p++)
        if (p->memkind == c->memkind && p->mode == c->mode &&
            (!p->layouts || (p->layouts >> c->layout & 1 && p->copy_engine == copy_engine)))
            break;
    return p;
}
