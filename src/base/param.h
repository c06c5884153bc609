/*
 * param.h - the table of parameters: the only source of info keys mpix_ep_<name>, environment
 * variables MPIX_EP_<NAME>, `mpix_ep_info --params` and the manual. Nothing else calls getenv.
 */
#ifndef MPIX_BASE_PARAM_H
#define MPIX_BASE_PARAM_H
#include <stddef.h>

enum { MPIX_PROGRESS_CALLER, MPIX_PROGRESS_THREAD };
enum { MPIX_STORES_AUTO, MPIX_STORES_ORDINARY, MPIX_STORES_STREAMING };
enum { MPIX_CACHES_AUTO, MPIX_CACHES_SHARED, MPIX_CACHES_APART };
enum { MPIX_ISA_AUTO, MPIX_ISA_PORTABLE, MPIX_ISA_AVX2, MPIX_ISA_AVX512 };
enum { MPIX_FD_AUTO, MPIX_FD_PROC, MPIX_FD_SOCKET };
enum { MPIX_HUGE_NO, MPIX_HUGE_TRY };
enum { MPIX_PROXY_AUTO, MPIX_PROXY_CALLER, MPIX_PROXY_THREAD };
enum { MPIX_SIGNAL_AUTO, MPIX_SIGNAL_ORDERED, MPIX_SIGNAL_COUNTED };
enum { MPIX_REACH_AUTO, MPIX_REACH_FORCE_PROXIED };
enum { MPIX_HOPS_AUTO, MPIX_HOPS_ON, MPIX_HOPS_OFF };
enum { MPIX_ORDERED_AUTO, MPIX_ORDERED_YES, MPIX_ORDERED_NO };
enum {
    MPIX_CHAOS_NONE,
    MPIX_CHAOS_OPEN,
    MPIX_CHAOS_ADDRESS,
    MPIX_CHAOS_CONNECT,
    MPIX_CHAOS_REGISTER,
    MPIX_CHAOS_KEY
};
enum { MPIX_GPU_MEMORY_AUTO, MPIX_GPU_MEMORY_VMM, MPIX_GPU_MEMORY_IPC };
enum { MPIX_GPU_NET_AUTO, MPIX_GPU_NET_HOST, MPIX_GPU_NET_GPU };
enum { MPIX_GPU_PATH_AUTO, MPIX_GPU_PATH_BULK, MPIX_GPU_PATH_VECTOR };
enum { MPIX_P2P_MEMORY_HOST, MPIX_P2P_MEMORY_CUDA };
/* bits of mpix_param_desc.flags */
enum { MPIX_PARAM_OWN = 0, MPIX_PARAM_SAME = 1, MPIX_PARAM_DEVELOPER = 2 };
enum { MPIX_PARAM_STRING = 256 }; /* room of every string, its terminator included */

/* One field per parameter, in the order of the table. */
typedef struct mpix_params {
    int log_level;                    /* none error warn info debug trace; default warn */
    char log_file[MPIX_PARAM_STRING]; /* default "" */
    char trace[MPIX_PARAM_STRING];    /* default "": none */
    double timeout;                   /* seconds, default 300; > 0 */
    int progress; /* caller | thread: who works on nonblocking calls between the caller's calls;
                   * default caller */
    int stores;   /* auto | ordinary | streaming: for rows; default auto */
    size_t stream_bytes;  /* auto stores: stream when a call writes more than this; 0: from the size
                            of the cache; units k m g */
    size_t ll_pull_bytes; /* mode LL, EXPERT: combine's rows are read by their owners if a rank has
                           * more of them; units k, m, g */
    int caches;           /* auto | shared | apart: whether this host's ranks have a cache in
                           * common; default auto */
    int isa;              /* auto | portable | avx2 | avx512 */
    int huge_pages;       /* no | try: explicit huge pages for windows; default try */
    int fd_passing;       /* auto | proc | socket: how ranks of a host map each other's windows */
    int max_handles;      /* handles alive at once per context, default 64, 1..4096 */
    int spin_us;          /* how long a wait spins before it yields, microseconds; -1: by the
                           * load of the cores */
    int prefault;         /* no | yes: touch window memory when it is committed; default yes */
    char transport[MPIX_PARAM_STRING]; /* auto, or a name that mpix_net_find knows: what reaches
                                          peers that can't be mapped */
    int proxy;                         /* auto | caller | thread: who runs the
                                        * proxy; default auto */
    int proxy_threads;                 /* threads of the proxy, 0: by transport and cores; 0..8 */
    int signal;                        /* auto | ordered | counted: form of signals
                                        * over the network */
    int lanes;                         /* in-order ways to each proxied peer, default 1, 1..16 */
    size_t chunk_bytes;                /* pieces in which a batch for a proxied peer is packed and
                                        * posted, default 256k */
    size_t max_op;   /* longest operation that the proxy posts, longer puts are split; 0: the
                      * device's limit */
    int fifo_slots;  /* commands a FIFO holds, default 1024; rounded up to a power of two */
    int proxy_depth; /* commands that may be incomplete per peer and lane, default 256; rounded up
                      * to a power of two */
    int proxy_descs; /* descriptors for commands that do not fit 16 bytes, default 1024 */
    int credit_ops;  /* operations that may be incomplete per lane, 0: the device's limit */
    size_t credit_bytes; /* bytes that may be incomplete per lane, a longer operation goes alone; 0:
                            no limit; default 16m */
    int p2p_slots;       /* notification counters of each pair of ranks, default 64 */
    int p2p_ring;        /* messages on their way between two ranks, default 16 */
    size_t p2p_eager;    /* bytes of a send that travel with the message, default 8k */
    int p2p_cma;         /* no | yes: reach ordinary memory of this host's processes by
                          * process_vm_readv */
    int p2p_memory;      /* host | cuda: what MPIX_P2p_alloc gives */
    int p2p_gpu_kernel;  /* bytes of a piece in GPU memory that a kernel copies at most */
    int reach;           /* auto | proxied: treat peers of the same host as not mappable */
    int two_hops;        /* auto | on | off: a row crosses the network once per host */
    int two_hops_chunks; /* chunks that a forwarder keeps for each rank it serves, 1..16 */
    size_t two_hops_bytes; /* auto: bytes per rank that must be saved at least */
    int counts_ranks;      /* more ranks: each gets its own counts only, and answers with places */
    int hosts;             /* split the ranks of each host into so many virtual ones, 0: do not */
    char net_devices[MPIX_PARAM_STRING]; /* verbs: devices to use, comma separated, "mlx5_0:1"; "":
                                            the best for this rank */
    int gid_index;                       /* verbs: index of the port's GID, -1: chosen by
                                          * type and address */
    int net_mtu;                         /* verbs: upper bound of the path's MTU, 0: the lower
                                          * of both ports' */
    int net_depth;                       /* verbs: operations per queue pair, default 128 */
    double net_timeout;     /* verbs: how long the device repeats what is not acknowledged,
                             * seconds, default 10 */
    int traffic_class;      /* verbs: of packets with a global header (RoCE) */
    int service_level;      /* verbs */
    int ordered;            /* auto | yes | no: whether the network is taken to keep the
                             * order of writes */
    int chaos_seed;         /* chaos: all its choices follow from it */
    int chaos_reorder;      /* no | yes: writes of a lane land in any order */
    int chaos_pieces;       /* pieces that a write is cut into, at most; 1..8 */
    int chaos_delay_us;     /* longest time that something is held back; 0: for some polls only */
    int chaos_fail_at;      /* the operation that fails, counted from 1 on each rank; 0: none */
    int chaos_fail_ppm;     /* operations of a million that fail */
    int chaos_fail_call;    /* none | open | address | connect | register | key: the call of the
                             * set-up that fails */
    int chaos_stall_at;     /* the operation after which nothing moves; 0: none */
    int chaos_stall_ms;     /* for how long; 0: for good */
    int chaos_stall_thread; /* no | yes: who turns the proxy sleeps meanwhile */
    int chaos_rank;         /* the rank on which things fail and stall; -1: all */
    char cuda_module[MPIX_PARAM_STRING]; /* default "": libmpixep_cuda.so next to the library */
    int gpu_memory;                      /* auto | vmm | ipc; default auto */
    int gpu_path;                        /* auto | bulk | vector; default auto */
    int gpu_net_memory;                  /* auto | host | gpu; default auto */
    size_t gpu_partial_bytes; /* EXPERT combine: for partial sums from all peers, per handle */
    int gpu_copy_streams;     /* 1..4; default 1 */
    int gpu_delay_us;         /* tests: random pauses in kernels, 0: none */
} mpix_params;

typedef struct mpix_param_desc {
    const char *name;   /* "log_level" */
    const char *type;   /* "enum", "int", "seconds", "bytes", "string" */
    const char *values; /* "none|error|warn|..." for an enum, "" otherwise, or a range as text */
    const char *dflt;   /* as text, parsed like a user's value */
    int flags;          /* MPIX_PARAM_SAME: all ranks of an object must have the same value, else
                         * each its own; MPIX_PARAM_DEVELOPER */
    const char *help;   /* one sentence */
    size_t offset;      /* into mpix_params */
} mpix_param_desc;

const mpix_param_desc *mpix_param_table(int *n);
/* Defaults, then environment. An environment value that does not parse is an error (ARG, names the
 * variable and what it takes); an unknown MPIX_EP_* variable is warned about, once per process.
 * Also configures the log. */
int mpix_params_read(mpix_params *params);
/* What the environment says about the log, for events before the first mpix_params_read.
 * Reports nothing. */
void mpix_params_peek_log(int *level, char *file, size_t len);
/* Sets one parameter by its name without prefix. log_level and log_file, which belong to the
 * process, take effect at once. ARG for an unknown name or a value that does not parse, naming key,
 * value, limits. */
int mpix_params_set(mpix_params *params, const char *name, const char *value);
/* 0, or -1 if value is none that the parameter takes; then nothing is changed. */
int mpix_param_parse(mpix_params *params, const mpix_param_desc *desc, const char *value);
/* The value of a parameter as text, for printing. */
void mpix_params_print(const mpix_params *params, const mpix_param_desc *desc, char *buf,
                       size_t len);
#endif
