/*
 * topo.c - the machine as this process sees it: hwloc where it was found, sysconf and
 * sched_getaffinity otherwise.
 */
#include "config.h"

#include "base/topo.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

static pthread_once_t topo_once = PTHREAD_ONCE_INIT;
static mpix_topo topo;

/* The set of a process may name more CPUs than a cpu_set_t holds, so it is sized by trial. NULL
 * without memory. */
static cpu_set_t *topo_affinity(pid_t pid, size_t *bytes, int *ncpus) {
    for (int n = CPU_SETSIZE; n <= (1 << 20); n *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n);
        if (!set)
            return NULL;
        *bytes = CPU_ALLOC_SIZE((size_t)n);
        *ncpus = n;
        if (sched_getaffinity(pid, *bytes, set) == 0)
            return set;
        CPU_FREE(set);
        if (errno != EINVAL)
            return NULL;
    }
    return NULL;
}

static size_t topo_sysconf_cache(int name) {
    long n = sysconf(name);
    return n > 0 ? (size_t)n : 0;
}

/* What needs no library. hwloc refines it. */
static void topo_basic(void) {
    size_t bytes;
    int ncpus;
    cpu_set_t *set = topo_affinity(0, &bytes, &ncpus);
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    topo.pus = set ? CPU_COUNT_S(bytes, set) : 0;
    if (set)
        CPU_FREE(set);
    topo.pus_host = online > 0 ? (int)online : 1;
    if (topo.pus < 1)
        topo.pus = topo.pus_host;
    topo.numa_nodes = 1;
    topo.numa_local = 0;
    topo.l2_bytes = topo_sysconf_cache(_SC_LEVEL2_CACHE_SIZE);
    topo.l3_bytes = topo_sysconf_cache(_SC_LEVEL3_CACHE_SIZE);
    topo.l3_pus = 1;
    topo.l3_index = -1;
    topo.source = "sysconf";
}

#ifdef HAVE_HWLOC
static void topo_hwloc_numa(hwloc_topology_t tree, hwloc_const_cpuset_t mine) {
    hwloc_nodeset_t nodes = hwloc_bitmap_alloc();
    int n = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_NUMANODE);

    if (n > 0)
        topo.numa_nodes = n;
    if (!nodes)
        return;
    hwloc_cpuset_to_nodeset(tree, mine, nodes);
    /* The operating system's number, as mbind takes it. */
    topo.numa_local = hwloc_bitmap_weight(nodes) == 1 ? hwloc_bitmap_first(nodes) : -1;
    hwloc_bitmap_free(nodes);
}

static void topo_hwloc_caches(hwloc_topology_t tree, hwloc_const_cpuset_t mine) {
    hwloc_obj_t obj = hwloc_get_pu_obj_by_os_index(tree, (unsigned)hwloc_bitmap_first(mine));

    for (; obj; obj = obj->parent) {
        if (obj->type == HWLOC_OBJ_L2CACHE && obj->attr->cache.size)
            topo.l2_bytes = (size_t)obj->attr->cache.size;
        if (obj->type == HWLOC_OBJ_L3CACHE && obj->attr->cache.size) {
            topo.l3_bytes = (size_t)obj->attr->cache.size;
            topo.l3_pus = hwloc_bitmap_weight(obj->cpuset);
            topo.l3_index = hwloc_bitmap_isincluded(mine, obj->cpuset) ? (int)obj->logical_index
                                                                       : -2;
        }
    }
    if (topo.l3_pus < 1)
        topo.l3_pus = 1;
}

static void topo_hwloc(void) {
    static char source[32];
    hwloc_topology_t tree;
    hwloc_cpuset_t mine;
    unsigned version = hwloc_get_api_version();

    if (hwloc_topology_init(&tree) != 0)
        return;
    if (hwloc_topology_load(tree) != 0) {
        mpix_log(MPIX_LOG_INFO, "hwloc could not look at the machine; sysconf is used");
        goto destroy;
    }
    mine = hwloc_bitmap_alloc();
    if (!mine)
        goto destroy;
    /* What this process may use: its binding, cut to what the topology shows (a cgroup may
     * forbid the rest). */
    if (hwloc_get_cpubind(tree, mine, HWLOC_CPUBIND_PROCESS) != 0)
        hwloc_bitmap_copy(mine, hwloc_topology_get_allowed_cpuset(tree));
    hwloc_bitmap_and(mine, mine, hwloc_topology_get_topology_cpuset(tree));
    if (hwloc_bitmap_weight(mine) > 0) {
        topo.pus = hwloc_bitmap_weight(mine);
        topo_hwloc_numa(tree, mine);
        topo_hwloc_caches(tree, mine);
        snprintf(source, sizeof source, "hwloc API %u.%u.%u", version >> 16, (version >> 8) & 0xff,
                 version & 0xff);
        topo.source = source;
    }
    hwloc_bitmap_free(mine);
destroy:
    hwloc_topology_destroy(tree);
}
#endif

static void topo_look(void) {
    topo_basic();
#ifdef HAVE_HWLOC
    topo_hwloc();
#endif
}

const mpix_topo *mpix_topo_get(void) {
    pthread_once(&topo_once, topo_look);
    return &topo;
}

int mpix_topo_bind_helper(int main_pu, int which) {
    size_t bytes;
    int ncpus, others, chosen = -1;
    cpu_set_t *set, *one = NULL;

    /* Ranks that are not bound and do not know where they run would all choose the same PU: the
     * scheduler knows better.
     */
    if (main_pu < 0)
        return -1;
    /* The main thread's set is the process's; the caller may have been bound before. */
    set = topo_affinity(getpid(), &bytes, &ncpus);
    if (!set)
        return -1;
    if (CPU_COUNT_S(bytes, set) < 2)
        goto free_set;
    others = CPU_COUNT_S(bytes, set) -
             (main_pu < ncpus && CPU_ISSET_S((size_t)main_pu, bytes, set) != 0);
    which %= others;
    /* The next ones after main_pu, cyclically: ranks spread over the cores spread
     * their helpers too. */
    for (int i = 1; i <= ncpus && chosen < 0; i++) {
        int pu = (int)(((long)main_pu + i) % ncpus);
        if (pu != main_pu && CPU_ISSET_S((size_t)pu, bytes, set) && which-- == 0)
            chosen = pu;
    }
    one = chosen >= 0 ? CPU_ALLOC((size_t)ncpus) : NULL;
    if (!one) {
        chosen = -1;
        goto free_set;
    }
    CPU_ZERO_S(bytes, one);
    CPU_SET_S((size_t)chosen, bytes, one);
    if (sched_setaffinity(0, bytes, one) != 0) /* 0: the calling thread */
        chosen = -1;
    CPU_FREE(one);
free_set:
    CPU_FREE(set);
    return chosen;
}
