/*
 * test_fifo.c - unit tests of the command FIFO, of descriptors and of the encoding of commands. No
 * MPI, no network.
 */
#include "config.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proxy/desc.h"
#include "proxy/encode.h"
#include "proxy/fifo.h"

#define TOP ((uint64_t)1 << 63)

static uint64_t rnd_state = 88172645463325252u;

static uint64_t rnd(void) {
    rnd_state ^= rnd_state << 13;
    rnd_state ^= rnd_state >> 7;
    rnd_state ^= rnd_state << 17;
    return rnd_state;
}

static void quiet(void) { mpix_log_configure(MPIX_LOG_NONE, ""); }

/* ---- FIFO, one thread ------------------------------------------------------------------------ */

START_TEST(fifo_sizes) {
    static const size_t bad[] = {0, 1, 3, 6, 1000, SIZE_MAX, (SIZE_MAX >> 1) + 1};
    mpix_fifo fifo;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(mpix_fifo_init(&fifo, bad[i]), MPIX_ERRK_ARG);
    for (size_t entries = 2; entries <= 4096; entries *= 2) {
        mpix_cmd cmd = {{1, 2}};
        size_t n = 0;
        ck_assert_int_eq(mpix_fifo_init(&fifo, entries), 0);
        ck_assert_int_eq(mpix_fifo_take(&fifo, &cmd, 1), 0);
        while (mpix_fifo_push(&fifo, cmd))
            n++;
        ck_assert_uint_eq(n, entries);
        mpix_fifo_free(&fifo);
    }
}
END_TEST

/* Random numbers of pushes and takes over many laps, against a count of each. Every bit but the top
 * one comes back. */
START_TEST(fifo_laps) {
    for (size_t entries = 2; entries <= 64; entries *= 4) {
        uint64_t pushed = 0, taken = 0, position;
        mpix_cmd cmds[16];
        mpix_fifo fifo;

        ck_assert_int_eq(mpix_fifo_init(&fifo, entries), 0);
        while (taken < 50 * entries) {
            for (uint64_t n = rnd() % (entries + 2); n > 0; n--) {
                mpix_cmd cmd = {{~pushed | (rnd() & TOP), pushed ^ (rnd() & TOP)}};
                int queued = mpix_fifo_push_at(&fifo, cmd, &position);
                ck_assert_int_eq(queued, pushed - taken < entries);
                if (queued)
                    ck_assert_uint_eq(position, pushed++);
            }
            int max = (int)(rnd() % 17), n = mpix_fifo_take(&fifo, cmds, max);
            uint64_t there = pushed - taken;
            ck_assert_int_eq(n, there < (uint64_t)max ? (int)there : max);
            for (int i = 0; i < n; i++, taken++) {
                ck_assert_uint_eq(cmds[i].half[0], ~taken & ~TOP);
                ck_assert_uint_eq(cmds[i].half[1], taken);
            }
        }
        mpix_fifo_free(&fifo);
    }
}
END_TEST

/* An entry of which only one half has been written is not taken, nor is what follows it: what a
 * GPU's stores may look like. */
START_TEST(fifo_halves) {
    mpix_cmd cmd = {{5, 6}}, out[4];
    mpix_fifo fifo;

    ck_assert_int_eq(mpix_fifo_init(&fifo, 4), 0);
    for (int half = 0; half < 2; half++)
        for (int lap = 0; lap < 2; lap++) {
            uint64_t at = atomic_load(&fifo.head), parity = at & 4 ? 0 : TOP;
            mpix_fifo_entry *entry = &fifo.entries[at & 3];
            atomic_store(&fifo.head, at + 1); /* claimed */
            ck_assert_int_eq(mpix_fifo_push(&fifo, cmd), 1);
            ck_assert_int_eq(mpix_fifo_take(&fifo, out, 4), 0);
            atomic_store(&entry->half[half], parity | 7);
            ck_assert_int_eq(mpix_fifo_take(&fifo, out, 4), 0);
            atomic_store(&entry->half[1 - half], parity | 8);
            ck_assert_int_eq(mpix_fifo_take(&fifo, out, 4), 2);
            ck_assert_uint_eq(out[0].half[half], 7);
            ck_assert_uint_eq(out[0].half[1 - half], 8);
            ck_assert_uint_eq(out[1].half[0], 5);
            ck_assert_uint_eq(out[1].half[1], 6);
            ck_assert_int_eq(mpix_fifo_push(&fifo, cmd), 1);
            ck_assert_int_eq(mpix_fifo_push(&fifo, cmd), 1);
            ck_assert_int_eq(mpix_fifo_take(&fifo, out, 4), 2);
        }
    mpix_fifo_free(&fifo);
}
END_TEST

/* ---- FIFO, threads --------------------------------------------------------------------------- */

typedef struct producer {
    mpix_fifo *fifo;
    pthread_t thread;
    uint64_t id, commands, patience; /* patience: tries before a command is given up, 0: no end */
    uint64_t queued;
} producer;

static void *produce(void *arg) {
    producer *p = arg;

    for (uint64_t i = 0; i < p->commands; i++) {
        mpix_cmd cmd = {{p->id << 32 | i, i << 8 | p->id}};
        uint64_t tries = 0;
        int queued = mpix_fifo_push(p->fifo, cmd);
        while (!queued && (p->patience == 0 || ++tries < p->patience)) {
            sched_yield();
            queued = mpix_fifo_push(p->fifo, cmd);
        }
        p->queued += (uint64_t)queued;
    }
    return NULL;
}

/* All that was queued arrives once, each producer's commands in its order; what was given up
 * leaves no hole. */
static void check_threads(size_t entries, int producers, uint64_t commands, uint64_t patience) {
    uint64_t next[8] = {0}, seen[8] = {0}, queued = 0, total = 0;
    mpix_cmd cmds[16];
    producer p[8];
    mpix_fifo fifo;
    int running = producers;

    ck_assert_int_eq(mpix_fifo_init(&fifo, entries), 0);
    for (int i = 0; i < producers; i++) {
        p[i] = (producer){.fifo = &fifo,
                          .id = (uint64_t)i,
                          .commands = commands,
                          .patience = patience};
        ck_assert_int_eq(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
    }
    while (running > 0 || total < queued) {
        int n = mpix_fifo_take(&fifo, cmds, (int)(1 + rnd() % 16));
        for (int i = 0; i < n; i++) {
            uint64_t id = cmds[i].half[0] >> 32, number = cmds[i].half[0] & 0xffffffffu;
            ck_assert_uint_lt(id, (uint64_t)producers);
            ck_assert_uint_eq(cmds[i].half[1], number << 8 | id);
            ck_assert_uint_ge(number, next[id]);
            if (!patience)
                ck_assert_uint_eq(number, next[id]);
            next[id] = number + 1;
            seen[id]++;
        }
        total += (uint64_t)n;
        if (n == 0 || (patience && rnd() % 4 == 0)) /* a slow consumer, with patience */
            sched_yield();
        if (n == 0 && running > 0 && pthread_tryjoin_np(p[running - 1].thread, NULL) == 0)
            queued += p[--running].queued;
    }
    for (int i = 0; i < producers; i++) {
        ck_assert_uint_eq(seen[i], p[i].queued);
        if (!patience)
            ck_assert_uint_eq(seen[i], commands);
    }
    /* Empty, and all of it still usable. */
    ck_assert_int_eq(mpix_fifo_take(&fifo, cmds, 16), 0);
    for (size_t i = 0; i < entries; i++)
        ck_assert_int_eq(mpix_fifo_push(&fifo, cmds[0]), 1);
    ck_assert_int_eq(mpix_fifo_push(&fifo, cmds[0]), 0);
    mpix_fifo_free(&fifo);
}

START_TEST(fifo_threads) {
    for (int producers = 1; producers <= 8; producers++) {
        check_threads(2, producers, 300, 0); /* a pass of the core per command when cores are few */
        check_threads(64, producers, 10000, 0);
    }
}
END_TEST

START_TEST(fifo_patience) {
    for (int producers = 1; producers <= 8; producers += producers < 3 ? 1 : 3)
        for (uint64_t patience = 1; patience <= 16; patience *= 4)
            check_threads(4, producers, 2000, patience);
}
END_TEST

/* ---- encoding -------------------------------------------------------------------------------- */

typedef struct fields {
    uint64_t loff, roff, len;
    uint32_t counter;
    int peer, lane, lwin, rwin;
} fields;

static int encode(const fields *f, mpix_cmd *cmd) {
    return mpix_cmd_put(f->peer, f->lane, f->lwin, f->loff, f->rwin, f->roff, f->len, f->counter,
                        cmd);
}

static void check_round_trip(const fields *f) {
    mpix_cmd cmd;

    ck_assert_int_eq(encode(f, &cmd), 1);
    ck_assert_uint_eq((cmd.half[0] | cmd.half[1]) & TOP, 0);
    ck_assert_int_eq(mpix_cmd_op(&cmd), MPIX_CMD_PUT);
    ck_assert_int_eq(mpix_cmd_lane(&cmd), f->lane);
    ck_assert_int_eq(mpix_cmd_peer(&cmd), f->peer);
    ck_assert_int_eq(mpix_cmd_lwin(&cmd), f->lwin);
    ck_assert_int_eq(mpix_cmd_rwin(&cmd), f->rwin);
    ck_assert_uint_eq(mpix_cmd_counter(&cmd), f->counter);
    ck_assert_uint_eq(mpix_cmd_len(&cmd), f->len);
    ck_assert_uint_eq(mpix_cmd_loff(&cmd), f->loff);
    ck_assert_uint_eq(mpix_cmd_roff(&cmd), f->roff);
}

/* Every field at its ends, the others at theirs, and at random. */
START_TEST(encode_limits) {
    const uint64_t max_len = ((1u << 18) - 1) * 16ull, max_loff = ((1ull << 31) - 1) * 16,
                   max_roff = ((1ull << 32) - 1) * 16;

    for (int i = 0; i < 512; i++) {
        fields r = {.loff = i & 1 ? max_loff : 0,
                    .roff = i & 2 ? max_roff : 0,
                    .len = i & 4 ? max_len : 0,
                    .counter = i & 8 ? 65535 : 0,
                    .peer = i & 16 ? 65535 : 0,
                    .lane = i & 32 ? 15 : 0,
                    .lwin = i & 64 ? 7 : 0,
                    .rwin = i & 128 ? 7 : 0};
        check_round_trip(&r);
        r = (fields){.loff = rnd() % (max_loff + 16) & ~15ull,
                     .roff = rnd() % (max_roff + 16) & ~15ull,
                     .len = rnd() % (max_len + 16) & ~15ull,
                     .counter = rnd() & 65535,
                     .peer = rnd() & 65535,
                     .lane = rnd() & 15,
                     .lwin = rnd() & 7,
                     .rwin = rnd() & 7};
        check_round_trip(&r);
    }
}
END_TEST

/* What does not fit asks for a descriptor. */
START_TEST(encode_descriptor) {
    static const fields bad[] = {
        {.len = 1},
        {.loff = 8},
        {.roff = 15},
        {.len = (1ull << 18) * 16},
        {.loff = (1ull << 31) * 16},
        {.roff = (1ull << 32) * 16},
        {.roff = 1ull << 63},
        {.len = 1ull << 63},
    };
    mpix_cmd cmd;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(encode(&bad[i], &cmd), 0);
    for (uint32_t index = 1; index; index <<= 1) {
        mpix_cmd_desc(65535, 15, index, &cmd);
        ck_assert_uint_eq((cmd.half[0] | cmd.half[1]) & TOP, 0);
        ck_assert_int_eq(mpix_cmd_op(&cmd), MPIX_CMD_DESC);
        ck_assert_uint_eq(mpix_cmd_index(&cmd), index);
        ck_assert_int_eq(mpix_cmd_peer(&cmd), 65535);
        ck_assert_int_eq(mpix_cmd_lane(&cmd), 15);
    }
}
END_TEST

/* ---- descriptors ----------------------------------------------------------------------------- */

START_TEST(descs_all) {
    for (uint32_t n = 1; n <= 33; n += 8) {
        char taken[33] = {0};
        mpix_descs descs;
        ck_assert_int_eq(mpix_descs_init(&descs, n), 0);
        for (int round = 0; round < 3; round++) {
            memset(taken, 0, sizeof taken);
            for (uint32_t i = 0; i < n; i++) {
                int64_t index = mpix_descs_get(&descs);
                ck_assert_int_ge(index, 0);
                ck_assert_int_lt(index, n);
                ck_assert_int_eq(taken[index], 0);
                taken[index] = 1;
            }
            ck_assert_int_eq(mpix_descs_get(&descs), -1);
            for (uint32_t i = 0; i < n; i++)
                mpix_descs_put(&descs, (i + 3) % n);
        }
        mpix_descs_free(&descs);
    }
}
END_TEST

enum { DESCS = 5, DESC_ROUNDS = 30000 };

static mpix_descs shared_descs;
static _Atomic int owners[DESCS];
static _Atomic int clashes;

static void *use_descs(void *arg) {
    for (int i = 0; i < DESC_ROUNDS; i++) {
        int64_t a = mpix_descs_get(&shared_descs), b = mpix_descs_get(&shared_descs);
        if (a >= 0) {
            /* the thread sanitizer sees a second owner */
            shared_descs.table[a].request.net.len = (uint64_t)(uintptr_t)arg;
            if (atomic_fetch_add(&owners[a], 1) != 0)
                atomic_fetch_add(&clashes, 1);
        }
        if (b >= 0 && atomic_fetch_add(&owners[b], 1) != 0)
            atomic_fetch_add(&clashes, 1);
        if (a >= 0) {
            atomic_fetch_sub(&owners[a], 1);
            mpix_descs_put(&shared_descs, (uint32_t)a);
        }
        if (b >= 0) {
            atomic_fetch_sub(&owners[b], 1);
            mpix_descs_put(&shared_descs, (uint32_t)b);
        }
    }
    return NULL;
}

START_TEST(descs_threads) {
    pthread_t threads[4];

    ck_assert_int_eq(mpix_descs_init(&shared_descs, DESCS), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_descs, &owners[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(atomic_load(&clashes), 0);
    for (int i = 0; i < DESCS; i++)
        ck_assert_int_ge(mpix_descs_get(&shared_descs), 0);
    ck_assert_int_eq(mpix_descs_get(&shared_descs), -1);
    mpix_descs_free(&shared_descs);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fifo");
    TCase *queue = tcase_create("fifo"), *encode = tcase_create("encode"),
          *descs = tcase_create("descs");
    TCase *cases[] = {queue, encode, descs};
    SRunner *runner;
    int failed;

    tcase_add_test(queue, fifo_sizes);
    tcase_add_test(queue, fifo_laps);
    tcase_add_test(queue, fifo_halves);
    tcase_add_test(queue, fifo_threads);
    tcase_add_test(queue, fifo_patience);
    tcase_add_test(encode, encode_limits);
    tcase_add_test(encode, encode_descriptor);
    tcase_add_test(descs, descs_all);
    tcase_add_test(descs, descs_threads);
    tcase_set_timeout(queue, 300);
    tcase_set_timeout(descs, 300);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tcase_add_checked_fixture(cases[i], quiet, NULL);
        suite_add_tcase(suite, cases[i]);
    }
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
