/*
 * info_machine.c - what mpix_ep_info prints without ranks: build, processor, memory,
 * parameters, window sizes.
 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/topo.h"
#include "kernels/host/rows.h"
#include "mem/mem_internal.h"
#include "tools/info.h"
#include "transport/net.h"
#include "transport/transport.h"

const char *info_bytes(unsigned long long bytes, char *buf, size_t len) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes;
    int unit = 0;

    for (; x >= 1024 && unit < 6; unit++)
        x /= 1024;
    snprintf(buf, len, unit ? "%.4g %s" : "%.0f %s", x, units[unit]);
    return buf;
}

/* ---- build ----------------------------------------------------------------------------------- */

void info_build(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int len = 0;

    MPI_Get_library_version(version, &len);
    version[strcspn(version, "\r\n")] = '\0';
    printf("build\n");
#if defined(__clang__)
    printf("  compiler             %s\n", __VERSION__);
#else
    printf("  compiler             gcc %s\n", __VERSION__);
#endif
    printf("  built with           %s\n", MPIX_MPI_NAME);
    printf("  running with         %.120s\n", version);
    printf("  topology             %s\n",
#ifdef HAVE_HWLOC
           "hwloc"
#else
           "sysconf (built without hwloc)"
#endif
    );
    printf("  JSON in benchmark    %s\n",
#ifdef HAVE_JANSSON
           "yes"
#else
           "no (built without jansson)"
#endif
    );
    printf("  GPU memory           %s\n",
#ifdef HAVE_CUDA
           "yes, code for " MPIX_CUDA_ARCHS
#else
           "no (built without CUDA)"
#endif
    );
    printf("  Fortran module       %s\n",
#ifdef HAVE_FORTRAN
           "yes"
#else
           "no (built without a Fortran compiler)"
#endif
    );
    printf("  configured with      %s\n", MPIX_CONFIGURED[0] ? MPIX_CONFIGURED : "no options");
    printf("  mapped transports    %s, %s\n", mpix_transport_self.name, mpix_transport_mapped.name);
    printf("  network transports   %s\n", mpix_net_names(0));
    printf("  sanitizers           %s\n",
#ifdef __SANITIZE_ADDRESS__
           "address"
#else
           "none seen"
#endif
    );
}

/* ---- processor and memory -------------------------------------------------------------------- */

/* The value after "key :" in a file such as /proc/cpuinfo, in buf. */
static const char *machine_value(const char *path, const char *key, char *buf, size_t len) {
    FILE *file = fopen(path, "re");
    char line[1024];
    size_t n = strlen(key);

    snprintf(buf, len, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *p = line + n;
        if (strncmp(line, key, n) != 0)
            continue;
        p += strspn(p, " \t:");
        p[strcspn(p, "\n")] = '\0';
        snprintf(buf, len, "%s", p);
        break;
    }
    if (file)
        fclose(file);
    return buf;
}

/* The first line of a file, or missing. */
static const char *machine_line(const char *path, const char *missing, char *buf, size_t len) {
    FILE *file = fopen(path, "re");

    snprintf(buf, len, "%s", missing);
    if (file) {
        if (fgets(buf, (int)len, file))
            buf[strcspn(buf, "\n")] = '\0';
        fclose(file);
    }
    return buf;
}

static void machine_limit(const char *label, int resource, int bytes) {
    struct rlimit limit;
    char soft[32] = "unlimited", hard[32] = "unlimited";

    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0)
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        bytes ? (void)info_bytes(limit.rlim_cur, soft, sizeof soft)
              : (void)snprintf(soft, sizeof soft, "%llu", (unsigned long long)limit.rlim_cur);
    if (limit.rlim_max != RLIM_INFINITY)
        bytes ? (void)info_bytes(limit.rlim_max, hard, sizeof hard)
              : (void)snprintf(hard, sizeof hard, "%llu", (unsigned long long)limit.rlim_max);
    printf("  %-20s %s (at most %s)\n", label, soft, hard);
}

static void machine_cpu(const mpix_params *params) {
    static const int isas[] = {MPIX_ISA_PORTABLE, MPIX_ISA_AVX2, MPIX_ISA_AVX512};
    const mpix_topo *topo = mpix_topo_get();
    const mpix_rows_ops *best = mpix_rows_get(params->isa);
    char buf[128];

    printf("processor\n");
    printf("  model                %s\n",
           machine_value("/proc/cpuinfo", "model name", buf, sizeof buf));
    printf("  PUs of this process  %d of %d\n", topo->pus, topo->pus_host);
    if (topo->numa_local >= 0)
        printf("  NUMA nodes           %d, this process on node %d\n", topo->numa_nodes,
               topo->numa_local);
    else
        printf("  NUMA nodes           %d, this process on several\n", topo->numa_nodes);
    printf("  L2 cache             %s per core\n",
           topo->l2_bytes ? info_bytes(topo->l2_bytes, buf, sizeof buf) : "unknown");
    printf("  L3 cache             %s",
           topo->l3_bytes ? info_bytes(topo->l3_bytes, buf, sizeof buf) : "unknown");
    printf(topo->l3_bytes ? " shared by %d PUs\n" : "\n", topo->l3_pus);
    printf("  as told by           %s\n", topo->source);
    printf("  instruction sets    ");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        const mpix_rows_ops *ops = mpix_rows_get(isas[i]);
        if (ops)
            printf(" %s", ops->name);
    }
    printf("; in use: %s\n",
           best ? best->name : "none: the parameter isa asks for one that is not there");
}

void info_machine(const mpix_params *params) {
    char a[64], b[64], c[64];

    machine_cpu(params);
    printf("memory\n");
    printf(
        "  for windows          about %s can be had now (free, swap, limits of control groups)\n",
        info_bytes(mpix_mem_available(), a, sizeof a));
    printf("  explicit huge pages  %s free of %s, each %s\n",
           machine_value("/proc/meminfo", "HugePages_Free", a, sizeof a),
           machine_value("/proc/meminfo", "HugePages_Total", b, sizeof b),
           machine_value("/proc/meminfo", "Hugepagesize", c, sizeof c));
    printf("  transparent, shared  %s\n",
           machine_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "not in this kernel",
                        a, sizeof a));
    printf("  ptrace scope         %s\n", machine_line("/proc/sys/kernel/yama/ptrace_scope",
                                                       "no restriction (no Yama)", a, sizeof a));
    printf("  mappings at most     %s\n",
           machine_line("/proc/sys/vm/max_map_count", "unknown", a, sizeof a));
    printf("limits\n");
    machine_limit("open files", RLIMIT_NOFILE, 0);
    machine_limit("locked memory", RLIMIT_MEMLOCK, 1);
    machine_limit("address space", RLIMIT_AS, 1);
    machine_limit("file size", RLIMIT_FSIZE, 1);
}

/* ---- parameters ------------------------------------------------------------------------------ */

void info_params(const mpix_params *params, int all) {
    int n;
    const mpix_param_desc *table = mpix_param_table(&n);

    for (int i = 0; i < n; i++) {
        char value[300], env[64];
        size_t k;

        if ((table[i].flags & MPIX_PARAM_DEVELOPER) && !all)
            continue;
        mpix_params_print(params, &table[i], value, sizeof value);
        for (k = 0; table[i].name[k] && k + 1 < sizeof env; k++)
            env[k] = (char)toupper((unsigned char)table[i].name[k]);
        env[k] = '\0';
        printf("%s = %s\n", table[i].name, value[0] ? value : "\"\"");
        printf("    %s\n", table[i].help);
        printf("    %s: %s; default %s\n", table[i].type, table[i].values,
               table[i].dflt[0] ? table[i].dflt : "\"\"");
        printf("    environment MPIX_EP_%s, info key mpix_ep_%s; %s%s\n", env, table[i].name,
               table[i].flags & MPIX_PARAM_SAME ? "equal on all ranks" : "may differ between ranks",
               table[i].flags & MPIX_PARAM_DEVELOPER ? "; for developers" : "");
    }
}

/* ---- window sizes ---------------------------------------------------------------------------- */

int info_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host) {
    static const char *const layouts[] = {"compact", "expert", "slots"};
    MPI_Count bytes = 0;
    char buf[32];

    if (MPIX_Ep_window_size(config, ranks, ranks_per_host, &bytes) != MPI_SUCCESS) {
        info_error("window size");
        return 1;
    }
    printf("window size\n");
    printf("  shape                %d ranks, %d per host, %lld experts, %lld tokens per rank, "
           "top-%d\n",
           ranks, ranks_per_host, (long long)config->num_experts, (long long)config->max_tokens,
           config->max_topk);
    printf("  carried out as       mode %s, layout %s, %s memory\n",
           config->mode == MPIX_EP_LL ? "ll" : "ht", layouts[config->layout],
           config->memkind == MPIX_EP_CUDA ? "cuda" : "host");
    printf("  rows                 %lld bytes each; received at most: ",
           (long long)config->max_row_bytes);
    if (config->max_recv_rows)
        printf("%lld\n", (long long)config->max_recv_rows);
    else
        printf("worst case\n");
    printf("  reserved per rank    %lld bytes (%s), committed when first needed\n",
           (long long)bytes, info_bytes((unsigned long long)bytes, buf, sizeof buf));
    printf("  reserved per host    %s\n",
           info_bytes((unsigned long long)bytes * (unsigned long long)ranks_per_host, buf,
                      sizeof buf));
    return 0;
}
