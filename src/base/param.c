/*
 * param.c - the table of parameters and the parsing of their values.
 *
 * Every parameter is one row of the table; the field's type decides how text is parsed and printed,
 * so a value is checked the same way whether it comes from the environment, from an info key or
 * from the table's own default.
 */
#include "config.h"

#include "base/param.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/number.h"
#include "base/status.h"
#include "base/trace.h"

#define PARAM_ENV_PREFIX "MPIX_EP_"
#define PARAM_KEY_PREFIX "mpix_ep_"
#define FIELD(name) offsetof(mpix_params, name)

/*
 * SAME: the layout of what ranks share, or who takes part in which step, follows from the value;
 * creation compares it.
 * OWN: it concerns this rank's work only, or what a peer must know of it travels in an address, a
 * blob or an offer.
 * DEV: it serves tests and measurements of the library itself. Lists for users leave it out.
 */
enum { OWN = MPIX_PARAM_OWN, SAME = MPIX_PARAM_SAME, DEV = MPIX_PARAM_DEVELOPER };

/* The words of an enum stand in the order of its constants. */
static const mpix_param_desc param_table[] = {
    {"log_level", "enum", "none|error|warn|info|debug|trace", "warn", OWN,
     "Least important events that are written to the log; it holds for the whole process.",
     FIELD(log_level)},
    {"log_file", "string", "at most 255 characters", "", OWN,
     "File the log is appended to, standard error if empty; %p becomes the process id, %h the "
     "host's name.",
     FIELD(log_file)},
    {"trace", "string", "a file, at most 255 characters; %p: process id, %h: host", "", OWN,
     "Writes what calls and the proxy did when to this file, for Chrome's trace viewer or "
     "Perfetto, each time an object is freed: the last 65536 "
     "events of the process.",
     FIELD(trace)},
    {"timeout", "seconds", "greater than 0; inf: no limit", "300", SAME,
     "Longest wait for a peer where the configuration of a context does not give one.",
     FIELD(timeout)},
    {"progress", "enum", "caller|thread", "caller", OWN,
     "Who works on nonblocking calls between the caller's calls: nobody, or a helper thread per "
     "context.",
     FIELD(progress)},
    {"stores", "enum", "auto|ordinary|streaming", "auto", OWN,
     "Stores for rows: through the caches, around them, or by the size of the data and of the "
     "cache.",
     FIELD(stores)},
    {"stream_bytes", "bytes", "0 or more, suffix k, m or g", "0", OWN,
     "With stores=auto, a call that writes more than this uses streaming stores; 0: decided from "
     "the cache's size.",
     FIELD(stream_bytes)},
    {"ll_pull_bytes", "bytes", "0 or more, suffix k, m or g", "1048576", OWN,
     "Mode LL in host memory, EXPERT: a combine whose rank has more than this of rows for others, "
     "in memory from MPIX_Ep_alloc and not to be converted, lets them read the rows where they "
     "lie, and waits for that; otherwise it writes a sum per token.",
     FIELD(ll_pull_bytes)},
    {"caches", "enum", "auto|shared|apart", "auto", OWN,
     "Whether the ranks of this host share their last cache, as far as the choice of stores goes; "
     "auto: what hwloc says of their bindings (a virtual "
     "machine's may be untrue).",
     FIELD(caches)},
    {"isa", "enum", "auto|portable|avx2|avx512", "auto", OWN,
     "Instruction set of the work on rows; auto takes the best this CPU has. One that the CPU "
     "lacks is an error.",
     FIELD(isa)},
    {"huge_pages", "enum", "no|try", "try", OWN,
     "Whether windows are put in huge pages where the system has them to spare; without any, "
     "ordinary pages are used.",
     FIELD(huge_pages)},
    {"fd_passing", "enum", "auto|proc|socket", "auto", OWN,
     "How ranks of a host get each other's memory: through /proc, through a Unix socket, or the "
     "first of them that "
     "works.",
     FIELD(fd_passing)},
    {"max_handles", "int", "1..4096", "64", SAME, "Handles that may be alive at once in a context.",
     FIELD(max_handles)},
    {"spin_us", "int", "-1..1000000", "-1", OWN,
     "Microseconds a wait spins before it yields the core; -1: little when the host has more ranks "
     "than cores, else "
     "longer.",
     FIELD(spin_us)},
    {"prefault", "enum", "no|yes", "yes", OWN,
     "Whether window memory is touched when it is committed, so that the first calls do not pay "
     "for it.",
     FIELD(prefault)},
    {"transport", "string",
     "auto, or a transport: verbs, ucx, shmem, null, chaos:verbs, chaos:ucx, chaos:shmem", "auto",
     SAME,
     "What reaches peers whose memory can't be mapped; auto: shmem if they are all on this host; "
     "otherwise verbs if all ranks have a device, else ucx.",
     FIELD(transport)},
    {"proxy", "enum", "auto|caller|thread", "auto", OWN,
     "Who executes commands for proxied peers: whoever waits for the object, or a thread of its "
     "own that sleeps when "
     "idle; auto: a thread where the transport needs the target's work (ucx), else the caller.",
     FIELD(proxy)},
    {"proxy_threads", "int", "0..8", "0", SAME,
     "Threads that execute commands for proxied peers, each with lanes of its own: a peer's lanes "
     "are spread over them, and the peers are. No more are started "
     "than there are lanes to peers; for GPU memory each thread gets a lane to every peer. 0: one "
     "for every two of a rank's cores where the transport copies (shmem) "
     "and threads run the proxy (GPU memory, proxy=thread), else one. 2 or more: threads run it "
     "with proxy=auto too.",
     FIELD(proxy_threads)},
    {"signal", "enum", "auto|ordered|counted", "auto", SAME,
     "Form of signals over the network: a word behind the data where the network keeps order, or "
     "counted writes; auto: "
     "as it allows.",
     FIELD(signal)},
    {"lanes", "int", "1..16", "1", SAME, "In-order ways (queue pairs) to each proxied peer.",
     FIELD(lanes)},
    {"chunk_bytes", "bytes", "0 or more, suffix k, m or g", "262144", SAME,
     "Pieces in which a batch for a proxied peer is packed and posted, so that packing and the "
     "network overlap; 0: one "
     "piece, as far as the send buffer of 64 MiB for all peers allows.",
     FIELD(chunk_bytes)},
    {"max_op", "bytes", "0, or 64 or more, suffix k, m or g", "0", OWN,
     "Longest single operation that the proxy posts, longer puts are split; 0: the device's limit.",
     FIELD(max_op)},
    {"fifo_slots", "int", "2..1048576", "1024", OWN,
     "Commands that the proxy's queue holds; rounded up to a power of two.", FIELD(fifo_slots)},
    {"proxy_depth", "int", "1..65536", "256", OWN,
     "Commands that may be incomplete per peer and lane; rounded up to a power of two.",
     FIELD(proxy_depth)},
    {"proxy_descs", "int", "1..1048576", "1024", OWN,
     "Queued commands that may be signals, long or unaligned puts.", FIELD(proxy_descs)},
    {"credit_ops", "int", "0..1048576", "0", OWN,
     "Operations that may be incomplete per peer and lane; 0: as many as the device's queue holds.",
     FIELD(credit_ops)},
    {"credit_bytes", "bytes", "0 or more, suffix k, m or g", "16777216", OWN,
     "Bytes that may be incomplete per peer and lane; a longer operation goes alone; 0: no limit.",
     FIELD(credit_bytes)},
    {"p2p_slots", "int", "1..65536", "64", SAME,
     "MPIX_P2p: notification counters of each ordered pair of ranks.", FIELD(p2p_slots)},
    {"p2p_ring", "int", "4..4096", "16", SAME,
     "MPIX_P2p: messages that may be on their way from one rank to another.", FIELD(p2p_ring)},
    {"p2p_eager", "bytes", "256 to 1m, suffix k or m", "8192", SAME,
     "MPIX_P2p: longest message of send that is copied through the ring; longer ones are read by "
     "the receiver.",
     FIELD(p2p_eager)},
    {"p2p_cma", "enum", "no|yes", "yes", OWN,
     "MPIX_P2p: whether ordinary memory of this host's processes is reached by process_vm_readv; "
     "otherwise their owners "
     "are asked.",
     FIELD(p2p_cma)},
    {"p2p_memory", "enum", "host|cuda", "host", SAME,
     "MPIX_P2p_alloc: kind of memory; also an info key of that call.", FIELD(p2p_memory)},
    {"p2p_gpu_kernel", "int", "0..4194304", "131072", OWN | DEV,
     "MPIX_P2p in GPU memory: pieces of up to so many bytes are copied by a kernel, longer ones by "
     "the copy engine.",
     FIELD(p2p_gpu_kernel)},
    {"reach", "enum", "auto|proxied", "auto", SAME,
     "How peers of the same host are reached: by mapping their memory, or as if they were on "
     "another host.",
     FIELD(reach)},
    {"two_hops", "enum", "auto|on|off", "auto", SAME,
     "Mode HT, several ranks per host (GPU memory: COMPACT; EXPERT refuses on): rows cross the "
     "network once per host and a rank there forwards them; combine returns one "
     "partial sum per host. auto: where a routing's duplication makes it worth while.",
     FIELD(two_hops)},
    {"two_hops_chunks", "int", "1..16", "4", SAME,
     "With two hops in host memory: chunks that a forwarding rank has for each rank that sends "
     "through it.",
     FIELD(two_hops_chunks)},
    {"two_hops_bytes", "bytes", "0 or more, suffix k, m or g", "131072", SAME,
     "With two_hops=auto: bytes that a dispatch must save per rank at least, for rows of the "
     "configuration's largest size.",
     FIELD(two_hops_bytes)},
    {"counts_ranks", "int", "0..16777216", "256", SAME,
     "Host memory, mode HT: up to so many ranks route tells every rank all counts; with more, each "
     "rank gets those for itself and answers with the places "
     "of the rows: one message more each way, but no table of ranks times ranks.",
     FIELD(counts_ranks)},
    {"hosts", "int", "0..1000000", "0", SAME | DEV,
     "Splits the ranks of each host into so many virtual hosts, which do not map each other's "
     "memory; 0: hosts as they "
     "are.",
     FIELD(hosts)},
    {"net_devices", "string", "names of verbs devices with or without :PORT, separated by commas",
     "", OWN,
     "RDMA devices to use, lanes are spread over them in this order; empty: the best one, by "
     "address, speed and "
     "distance to this rank.",
     FIELD(net_devices)},
    {"gid_index", "int", "-1..255", "-1", OWN,
     "Index of the GID in the port's table; -1: chosen by type and address, routable RoCE v2 "
     "first.",
     FIELD(gid_index)},
    {"net_mtu", "int", "0..65536", "0", OWN,
     "Upper bound of the MTU of RDMA connections in bytes; 0: the lower of both ports'.",
     FIELD(net_mtu)},
    {"net_depth", "int", "8..16384", "128", OWN,
     "Operations that the send queue of an RDMA connection holds; the device may have less.",
     FIELD(net_depth)},
    {"net_timeout", "seconds", "greater than 0, at most 1e9", "10", OWN,
     "How long an RDMA device repeats what a peer does not acknowledge before the connection is "
     "broken; also for a "
     "port that is down.",
     FIELD(net_timeout)},
    {"traffic_class", "int", "0..255", "0", OWN,
     "Traffic class of RDMA connections with a global header (RoCE).", FIELD(traffic_class)},
    {"service_level", "int", "0..15", "0", OWN, "Service level of RDMA connections.",
     FIELD(service_level)},
    {"ordered", "enum", "auto|yes|no", "auto", OWN,
     "Whether RDMA writes of a connection are taken to be seen in order; auto: for devices that "
     "are known to keep it. That mlx5 does is an assumption, "
     "untrue where its firmware forces adaptive routing on; a warning says so once: yes confirms "
     "it, no takes counted signals.",
     FIELD(ordered)},
    {"chaos_seed", "int", "0..2147483647", "1", OWN | DEV,
     "Transport chaos:X, which disturbs the transport X for tests: all its choices follow from "
     "this number.",
     FIELD(chaos_seed)},
    {"chaos_reorder", "enum", "no|yes", "yes", OWN | DEV,
     "Transport chaos: whether operations of a lane land in any order; then signals are counted, "
     "and ordered ones are "
     "refused.",
     FIELD(chaos_reorder)},
    {"chaos_pieces", "int", "1..8", "4", OWN | DEV,
     "Transport chaos: pieces that a write is cut into, at most.", FIELD(chaos_pieces)},
    {"chaos_delay_us", "int", "0..10000000", "0", OWN | DEV,
     "Transport chaos: microseconds for which operations, completions and arrivals are held back, "
     "at most; 0: for some "
     "polls only.",
     FIELD(chaos_delay_us)},
    {"chaos_fail_at", "int", "0..2147483647", "0", OWN | DEV,
     "Transport chaos: the operation that fails, counted from 1 on each rank and in each context; "
     "0: none.",
     FIELD(chaos_fail_at)},
    {"chaos_fail_ppm", "int", "0..1000000", "0", OWN | DEV,
     "Transport chaos: operations of a million that fail.", FIELD(chaos_fail_ppm)},
    {"chaos_fail_call", "enum", "none|open|address|connect|register|key", "none", OWN | DEV,
     "Transport chaos: the call of the transport's set-up that fails.", FIELD(chaos_fail_call)},
    {"chaos_stall_at", "int", "0..2147483647", "0", OWN | DEV,
     "Transport chaos: the operation after which nothing moves; 0: none.", FIELD(chaos_stall_at)},
    {"chaos_stall_ms", "int", "0..86400000", "0", OWN | DEV,
     "Transport chaos: milliseconds for which nothing moves; 0: for good.", FIELD(chaos_stall_ms)},
    {"chaos_stall_thread", "enum", "no|yes", "no", OWN | DEV,
     "Transport chaos: whether who turns the proxy, its thread or a caller, sleeps during a stall, "
     "so that nobody takes what is queued. chaos_stall_ms is the time.",
     FIELD(chaos_stall_thread)},
    {"chaos_rank", "int", "-1..2147483647", "-1", OWN | DEV,
     "Transport chaos: the rank on which operations fail and stall; -1: all.", FIELD(chaos_rank)},
    {"cuda_module", "string", "a file, at most 255 characters", "", OWN,
     "The CUDA module; empty: libmpixep_cuda.so next to this library.", FIELD(cuda_module)},
    {"gpu_memory", "enum", "auto|vmm|ipc", "auto", OWN,
     "How GPU memory is shared: allocations with descriptors, CUDA IPC, or the first that all "
     "ranks' drivers have.",
     FIELD(gpu_memory)},
    {"gpu_path", "enum", "auto|bulk|vector", "auto", OWN | DEV,
     "How kernels move rows: bulk copies (where the GPU and the rows' alignment allow them), or "
     "vector loads and stores.",
     FIELD(gpu_path)},
    {"gpu_net_memory", "enum", "auto|host|gpu", "auto", OWN,
     "Where kernels pack and find rows of proxied peers: pinned host memory, or GPU memory that "
     "the network device reads and writes by itself. auto: the "
     "latter where the transport can register it and kernels see a device's writes in order; gpu: "
     "an error where it can't. (Not proven on hardware: no machine had both.)",
     FIELD(gpu_net_memory)},
    {"gpu_partial_bytes", "bytes", "0 or more, suffix k, m or g", "62914560", SAME,
     "GPU memory of a handle for the peers' partial sums (combine, EXPERT layout); room for one "
     "chunk of 128 tokens per peer at least.",
     FIELD(gpu_partial_bytes)},
    {"gpu_copy_streams", "int", "1..4", "1", OWN | DEV,
     "With config.num_sms = MPIX_EP_SMS_NONE: streams that share each copy, so that several copy "
     "engines serve a peer.",
     FIELD(gpu_copy_streams)},
    {"gpu_delay_us", "int", "0..1000000", "0", OWN | DEV,
     "For tests: kernels pause for up to so many microseconds, at random, where they meet other "
     "ranks or blocks; 0: never.",
     FIELD(gpu_delay_us)},
};

enum { PARAM_COUNT = sizeof param_table / sizeof *param_table };

const mpix_param_desc *mpix_param_table(int *n) {
    *n = PARAM_COUNT;
    return param_table;
}

static int param_refuse(const mpix_param_desc *desc, const char *arg, const char *value) {
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s=\"%.64s\": takes %s (%s)%s%s", arg, value,
                     desc->values, desc->type, desc->dflt[0] ? "; default " : "", desc->dflt);
}

static void param_env_name(char *buf, size_t len, const char *name) {
    size_t n = (size_t)snprintf(buf, len, PARAM_ENV_PREFIX "%s", name);

    for (size_t i = sizeof PARAM_ENV_PREFIX - 1; i < n && i < len; i++)
        buf[i] = (char)mpix_upper((unsigned char)buf[i]);
}

static void param_defaults(mpix_params *params) {
    memset(params, 0, sizeof *params);
    for (int i = 0; i < PARAM_COUNT; i++)
        /* a test sees to it that all of them parse */
        (void)mpix_param_parse(params, &param_table[i], param_table[i].dflt);
}

static const mpix_param_desc *param_find(const char *name) {
    for (int i = 0; i < PARAM_COUNT; i++)
        if (strcmp(param_table[i].name, name) == 0)
            return &param_table[i];
    return NULL;
}

/* A misspelt variable would be ignored silently otherwise. Once per process: it does not change. */
static void param_warn_unknown(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    extern char **environ;

    if (atomic_flag_test_and_set(&done) || !environ)
        return;
    for (char **env = environ; *env; env++) {
        int known = 0;
        const char *eq = strchr(*env, '=');
        size_t len = eq ? (size_t)(eq - *env) : strlen(*env);

        if (strncmp(*env, PARAM_ENV_PREFIX, sizeof PARAM_ENV_PREFIX - 1) != 0)
            continue;
        for (int i = 0; i < PARAM_COUNT && !known; i++) {
            char name[64];
            param_env_name(name, sizeof name, param_table[i].name);
            known = strlen(name) == len && strncmp(name, *env, len) == 0;
        }
        if (!known)
            mpix_log(
                MPIX_LOG_WARN,
                "environment variable %.*s is not a parameter; `mpix_ep_info --params` lists them",
                (int)(len < 128 ? len : 128), *env);
    }
}

int mpix_params_read(mpix_params *params) {
    mpix_params read;
    int kind = 0;

    param_defaults(&read);
    for (int i = 0; i < PARAM_COUNT && !kind; i++) {
        char name[64];
        const char *value;

        param_env_name(name, sizeof name, param_table[i].name);
        value = getenv(name);
        if (value && mpix_param_parse(&read, &param_table[i], value))
            kind = param_refuse(&param_table[i], name, value);
    }
    if (kind)
        return kind;
    mpix_log_configure(read.log_level, read.log_file);
    mpix_trace_configure(read.trace);
    param_warn_unknown();
    *params = read;
    return 0;
}

void mpix_params_peek_log(int *level, char *file, size_t len) {
    static const char *const names[] = {"log_level", "log_file"};
    mpix_params peek;

    param_defaults(&peek);
    for (int i = 0; i < 2; i++) {
        char env[64];
        const char *value;

        param_env_name(env, sizeof env, names[i]);
        value = getenv(env);
        if (value)
            /* mpix_params_read refuses a bad one */
            (void)mpix_param_parse(&peek, param_find(names[i]), value);
    }
    *level = peek.log_level;
    snprintf(file, len, "%s", peek.log_file);
}

int mpix_params_set(mpix_params *params, const char *name, const char *value) {
    const mpix_param_desc *desc = param_find(name);
    char key[64];

    snprintf(key, sizeof key, PARAM_KEY_PREFIX "%s", name);
    if (!desc)
        return mpix_fail(MPIX_ERRK_ARG, key,
                         "info key %s is not a parameter (its value is \"%.64s\"); `mpix_ep_info "
                         "--params` lists them",
                         key, value);
    if (mpix_param_parse(params, desc, value))
        return param_refuse(desc, key, value);
    if (desc->offset == FIELD(log_level) || desc->offset == FIELD(log_file))
        mpix_log_configure(params->log_level, params->log_file);
    if (desc->offset == FIELD(trace))
        mpix_trace_configure(params->trace);
    return 0;
}
