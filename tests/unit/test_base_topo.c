/* test_base_topo.c - unit tests of what the process knows of its machine. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/topo.h"
#include "tests/unit/base_fixture.h"

START_TEST(topo_sane) {
    const mpix_topo *topo = mpix_topo_get();
    cpu_set_t set;

    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    ck_assert_int_ge(topo->pus, 1);
    ck_assert_int_le(topo->pus, CPU_COUNT(&set));
    ck_assert_int_ge(topo->pus_host, topo->pus);
    ck_assert_int_ge(topo->numa_nodes, 1);
    ck_assert_int_ge(topo->numa_local, -1);
    ck_assert_int_ge(topo->l3_pus, 1);
    if (topo->l2_bytes)
        ck_assert_uint_ge(topo->l2_bytes, 16 << 10);
    if (topo->l3_bytes)
        ck_assert_uint_ge(topo->l3_bytes, topo->l2_bytes);
#ifdef HAVE_HWLOC
    ck_assert_int_eq(strncmp(topo->source, "hwloc ", 6), 0);
#else
    ck_assert_str_eq(topo->source, "sysconf");
#endif
    ck_assert_ptr_eq(mpix_topo_get(), topo);
}
END_TEST

static void *bind_helper(void *arg) {
    int *pus = arg;
    cpu_set_t set;

    pus[1] = mpix_topo_bind_helper(pus[0], pus[4]);
    sched_getaffinity(0, sizeof set, &set);
    pus[2] = CPU_COUNT(&set);
    pus[3] = pus[1] >= 0 && CPU_ISSET(pus[1], &set);
    return NULL;
}

START_TEST(topo_bind) {
    int pus[5] = {sched_getcpu()}, unknown[5] = {-1}, others[5] = {pus[0]}, all;
    pthread_t thread;
    cpu_set_t set;

    sched_getaffinity(0, sizeof set, &set);
    all = CPU_COUNT(&set);
    ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, pus), 0);
    pthread_join(thread, NULL);
    if (all > 1) {
        ck_assert_int_ge(pus[1], 0);
        ck_assert_int_ne(pus[1], pus[0]);
        ck_assert_int_eq(pus[2], 1);
        ck_assert_int_eq(pus[3], 1);
    } else {
        ck_assert_int_eq(pus[1], -1);
    }
    /* each helper another one, until all but the main thread's are used */
    for (others[4] = 1; others[4] < all; others[4]++) {
        ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, others), 0);
        pthread_join(thread, NULL);
        ck_assert_int_ne(others[1], pus[0]);
        ck_assert_int_eq(others[1] == pus[1], others[4] == all - 1);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, unknown), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(unknown[1], -1);
    ck_assert_int_eq(unknown[2], all);
    /* A process with a single PU: nothing to choose from. */
    CPU_ZERO(&set);
    CPU_SET(pus[0], &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
    ck_assert_int_eq(mpix_topo_bind_helper(pus[0], 0), -1);
}
END_TEST

TCase *base_topo_case(void) {
    TCase *c = tcase_create("topo");

    tcase_add_test(c, topo_sane);
    tcase_add_test(c, topo_bind);
    return c;
}
