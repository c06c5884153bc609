/* test_coll.c - unit tests of coll/'s pure parts (placement, plan, layout of the control window,
 * bounds) and of waiting. */
#include "config.h"

#include "base/clock.h"
#include "base/wait.h"
#include "coll/host/host.h"
#include "coll/path.h"
#include "coll/record.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t seed = 88172645463325252u;

static int64_t rnd(int64_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return n > 0 ? (int64_t)(seed % (uint64_t)n) : 0;
}

static MPIX_Ep_config config_of(int layout, int64_t experts, int topk, int64_t tokens) {
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.layout = layout;
    c.num_experts = experts;
    c.max_topk = topk;
    c.max_tokens = tokens;
    c.max_row_bytes = 64;
    return c;
}

START_TEST(test_placement_blocks) {
    for (int ranks = 1; ranks <= 9; ranks++) {
        for (int64_t experts = 0; experts <= 23; experts++) {
            MPIX_Ep_config c = config_of(MPIX_EP_COMPACT, experts, 1, 1);
            int64_t next = 0, more = experts % ranks;
            for (int r = 0; r < ranks; r++) {
                mpix_ep_placement p;
                ck_assert_int_eq(mpix_ep_placement_init(&p, &c, ranks, r), 0);
                int64_t n = experts / ranks + (r < more);
                ck_assert_int_eq(p.nlocal[r], n);
                for (int64_t i = 0; i < n; i++, next++) {
                    ck_assert_int_eq(p.mine[i], next);
                    ck_assert_int_eq(p.owner[next], r);
                    ck_assert_int_eq(p.local[next], i);
                }
                mpix_ep_placement_free(&p);
            }
            ck_assert_int_eq(next, experts);
        }
    }
}
END_TEST

/* Places that the destinations answer are those that all counts give. Called before plan_finish
 * with the counts, to work on the plans, and after it, to compare what it made with what the
 * answers made. */
static void check_answered(int ranks, const mpix_ep_placement *p, mpix_ep_plan **plan,
                           const mpix_ep_counts_view *views) {
    static mpix_ep_plan *answered[64];
    static int64_t *bases[64];
    for (int d = 0; d < ranks && views; d++) {
        int64_t nlocal = p[d].nlocal[d], choices = plan[d]->tokens * plan[d]->topk;
        int32_t *ids = calloc((size_t)choices + 1, sizeof *ids);
        memcpy(ids, plan[d]->ids, (size_t)choices * sizeof *ids);
        MPIX_Ep_routing routing = {sizeof routing, plan[d]->tokens, plan[d]->topk, 32, ids, 0};
        ck_assert_int_eq(mpix_ep_plan_create(&p[d], &routing, 1, &answered[d]), 0);
        free(ids);
        mpix_ep_counts_view *mine = calloc((size_t)ranks, sizeof *mine);
        uint32_t *experts = calloc((size_t)(ranks * nlocal) + 1, sizeof *experts);
        for (int s = 0; s < ranks; s++) {
            for (int64_t e = 0; e < nlocal; e++)
                experts[s * nlocal + e] = views[s].experts[p[d].mine[e]];
            mine[s] = (mpix_ep_counts_view){views[s].rows + d, views[s].tokens + d,
                                            experts + s * nlocal};
        }
        bases[d] = calloc((size_t)ranks * (size_t)(nlocal + 1), sizeof *bases[d]);
        mpix_ep_plan_receive(answered[d], &p[d], mine, bases[d]);
        free(experts);
        free(mine);
    }
    for (int s = 0; s < ranks && !views; s++) {
        const mpix_ep_plan *a = answered[s], *b = plan[s];
        const int64_t *base[64];
        for (int d = 0; d < ranks; d++) {
            base[d] = bases[d] + s * (p[d].layout == MPIX_EP_COMPACT ? 1 : p[d].nlocal[d]);
            ck_assert_int_eq(answered[d]->recv_total, b->total[d]);
            ck_assert_int_eq(a->recv_rank[d], b->recv_rank[d]);
            ck_assert_int_eq(a->recv_tokens[d], b->recv_tokens[d]);
        }
        mpix_ep_plan_place(answered[s], &p[s], base);
        ck_assert_int_eq(a->recv_total, b->recv_total);
        ck_assert_int_eq(a->nsegments, b->nsegments);
        for (int64_t i = 0; i < b->first[b->tokens]; i++)
            ck_assert(a->entries[i].rank == b->entries[i].rank &&
                      a->entries[i].row == b->entries[i].row &&
                      a->entries[i].item == b->entries[i].item);
        for (int64_t i = 0; i < p[s].nlocal[s]; i++)
            ck_assert(a->recv_expert[i] == b->recv_expert[i] &&
                      (p[s].layout == MPIX_EP_COMPACT || a->offset[i + 1] == b->offset[i + 1]));
        for (int64_t i = 0; i < b->nsegments; i++) {
            const mpix_ep_segment *g = &a->segments[i], *h = &b->segments[i];
            ck_assert(g->row == h->row && g->n == h->n && g->source == h->source &&
                      g->expert == h->expert);
        }
    }
    for (int r = 0; r < ranks && !views; r++) {
        mpix_ep_plan_free(answered[r]);
        free(bases[r]);
    }
}

/* A random batch: some choices are none, no token has an expert twice. */
static int64_t *random_ids(int64_t tokens, int topk, int64_t experts) {
    int64_t *ids = calloc((size_t)(tokens * topk + 1), sizeof *ids);
    for (int64_t t = 0; t < tokens; t++) {
        for (int k = 0; k < topk; k++) {
            int64_t id;
            int again;
            do {
                id = rnd(5) ? rnd(experts) : -1;
                again = 0;
                for (int j = 0; j < k; j++)
                    again |= id >= 0 && ids[t * topk + j] == id;
            } while (again);
            ids[t * topk + k] = id;
        }
    }
    return ids;
}

/* What source s sends rank d: each of its entries has a place of its own there. */
static void check_source(mpix_ep_plan **plan, int s, int d, unsigned char *hit) {
    int64_t total = plan[d]->recv_total;
    int64_t sum = 0, items = 0, tokens = 0;
    ck_assert_int_eq(plan[s]->total[d], total);
    ck_assert_int_eq(plan[d]->recv_tokens[s], plan[s]->send_tokens[d]);
    /* an entry's item is its place among the source's segments here, one after the other */
    for (int64_t g = 0; g < plan[d]->nsegments; g++) {
        if (plan[d]->segments[g].source != s)
            continue;
        for (int64_t i = 0; i < plan[s]->first[plan[s]->tokens]; i++) {
            const mpix_ep_entry *e = &plan[s]->entries[i];
            int64_t in = e->row - plan[d]->segments[g].row;
            if (e->rank == d && in >= 0 && in < plan[d]->segments[g].n)
                ck_assert_int_eq(e->item, items + in);
        }
        items += plan[d]->segments[g].n;
    }
    for (int64_t t = 0; t < plan[s]->tokens; t++) {
        int there = 0;
        for (int64_t i = plan[s]->first[t]; i < plan[s]->first[t + 1]; i++)
            there |= plan[s]->entries[i].rank == d;
        tokens += there;
    }
    ck_assert_int_eq(tokens, plan[s]->send_tokens[d]);
    for (int64_t i = 0; i < plan[s]->first[plan[s]->tokens]; i++) {
        const mpix_ep_entry *e = &plan[s]->entries[i];
        if (e->rank != d)
            continue;
        ck_assert_int_ge(e->row, 0);
        ck_assert_int_lt(e->row, total);
        ck_assert_int_eq(hit[e->row], 0);
        hit[e->row] = 1;
        sum++;
    }
    ck_assert_int_eq(sum, plan[d]->recv_rank[s]);
}

/* All ranks' plans of one random batch; afterwards every place of every rank is written exactly
 * once, or is padding. */
static void check_batch(int layout, int ranks, int64_t experts, int topk, int64_t most, int align) {
    MPIX_Ep_config c = config_of(layout, experts, topk, most);
    c.expert_align = align;
    int owner[64];
    for (int64_t e = 0; e < experts; e++)
        owner[e] = (int)rnd(ranks);
    c.expert_owner = owner;
    mpix_ep_placement *p = calloc((size_t)ranks, sizeof *p);
    mpix_ep_plan **plan = calloc((size_t)ranks, sizeof *plan);
    mpix_ep_counts_view *views = calloc((size_t)ranks, sizeof *views);
    for (int r = 0; r < ranks; r++) {
        int64_t tokens = rnd(3) ? rnd(most + 1) : 0;
        int64_t *ids = random_ids(tokens, topk, experts);
        MPIX_Ep_routing routing = {sizeof routing, tokens, topk, 64, ids, 0};
        ck_assert_int_eq(mpix_ep_placement_init(&p[r], &c, ranks, r), 0);
        ck_assert_int_eq(mpix_ep_plan_create(&p[r], &routing, 1, &plan[r]), 0);
        uint32_t *n = calloc((size_t)(2 * ranks + experts), sizeof *n);
        for (int d = 0; d < ranks; d++) {
            n[d] = (uint32_t)plan[r]->send_rows[d];
            n[ranks + d] = (uint32_t)plan[r]->send_tokens[d];
        }
        for (int64_t e = 0; e < experts; e++)
            n[2 * ranks + e] = (uint32_t)plan[r]->send_experts[e];
        views[r] = (mpix_ep_counts_view){n, n + ranks, n + 2 * ranks};
        free(ids);
    }
    check_answered(ranks, p, plan, views);
    for (int r = 0; r < ranks; r++)
        mpix_ep_plan_finish(plan[r], &p[r], views);
    check_answered(ranks, p, plan, NULL);
    for (int d = 0; d < ranks; d++) {
        int64_t total = plan[d]->recv_total, padding = 0;
        ck_assert_int_le(total, mpix_ep_worst_rows(&c, &p[d], d));
        unsigned char *hit = calloc((size_t)total + 1, 1);
        for (int s = 0; s < ranks; s++)
            check_source(plan, s, d, hit);
        for (int64_t i = 0; i < plan[d]->nsegments; i++)
            for (int64_t j = 0; j < plan[d]->segments[i].n; j++) {
                ck_assert_int_eq(hit[plan[d]->segments[i].row + j], 1);
                hit[plan[d]->segments[i].row + j] = 2;
            }
        for (int64_t i = 0; i < total; i++) {
            ck_assert_int_ne(hit[i], 1);
            padding += hit[i] == 0;
        }
        if (layout == MPIX_EP_COMPACT)
            ck_assert_int_eq(padding, 0);
        else
            for (int64_t e = 0; e < p[d].nlocal[d]; e++)
                ck_assert_int_eq(plan[d]->offset[e] % align, 0);
        free(hit);
    }
    for (int r = 0; r < ranks; r++) {
        free((void *)views[r].rows);
        mpix_ep_plan_free(plan[r]);
        mpix_ep_placement_free(&p[r]);
    }
    free(views);
    free(plan);
    free(p);
}

START_TEST(test_plan_places) {
    for (int i = 0; i < 300; i++) {
        int64_t experts = 1 + rnd(40);
        int topk = 1 + (int)rnd(experts < 9 ? experts : 9);
        check_batch(i % 2 ? MPIX_EP_EXPERT : MPIX_EP_COMPACT, 1 + (int)rnd(7), experts, topk,
                    rnd(30), i % 2 ? 1 + (int)rnd(9) : 1);
    }
}
END_TEST

START_TEST(test_plan_rejects) {
    MPIX_Ep_config c = config_of(MPIX_EP_COMPACT, 10, 3, 4);
    mpix_ep_placement p;
    mpix_ep_plan *plan = NULL;
    int32_t twice[] = {0, 1, 2, 4, -1, 4}, high[] = {0, 1, 10}, low[] = {0, -2, 1},
            none[] = {-1, -1, -1, -1, -1, -1};
    ck_assert_int_eq(mpix_ep_placement_init(&p, &c, 2, 0), 0);
    MPIX_Ep_routing routing = {sizeof routing, 2, 3, 32, twice, 0};
    ck_assert_int_eq(mpix_ep_plan_create(&p, &routing, 1, &plan), MPIX_ERRK_ARG);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "routing.ids[1] has expert 4 twice"));
    routing.num_tokens = 1;
    routing.ids = high;
    ck_assert_int_eq(mpix_ep_plan_create(&p, &routing, 1, &plan), MPIX_ERRK_ARG);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "routing.ids[0][2] = 10"));
    routing.ids = low;
    ck_assert_int_eq(mpix_ep_plan_create(&p, &routing, 1, &plan), MPIX_ERRK_ARG);
    ck_assert_str_eq(mpix_error_tls()->arg, "routing.ids");
    ck_assert_ptr_null(plan);
    routing.num_tokens = 2;
    routing.ids = none; /* no choice twice is no duplicate */
    ck_assert_int_eq(mpix_ep_plan_create(&p, &routing, 1, &plan), 0);
    ck_assert_int_eq(plan->first[2], 0);
    mpix_ep_plan_free(plan);
    mpix_ep_placement_free(&p);
}
END_TEST

START_TEST(test_worst_rows) {
    MPIX_Ep_config c = config_of(MPIX_EP_EXPERT, INT64_C(1) << 20, 1 << 20, 0x7fffffff);
    mpix_ep_placement p;
    c.expert_align = 0x7fffffff;
    ck_assert_int_eq(mpix_ep_placement_init(&p, &c, 2, 0), 0);
    int64_t rows = mpix_ep_worst_rows(&c, &p, 0);
    /* too large, and said so */
    ck_assert_int_eq(rows < 0 || mpix_ep_bank_size(&c, rows, 0, 0) == SIZE_MAX, 1);
    c.max_recv_rows = 77;
    ck_assert_int_eq(mpix_ep_worst_rows(&c, &p, 0), 77);
    mpix_ep_placement_free(&p);
}
END_TEST

START_TEST(test_ctl_layout) {
    for (int ranks = 1; ranks < 70; ranks += 7) {
        for (int depth = 1; depth < 6; depth++) {
            mpix_ep_ctl_layout l;
            int64_t experts = 3 * ranks;
            mpix_ep_ctl_layout_init(&l, ranks, experts, depth, 9, -1);
            ck_assert_uint_ge(l.offers_dispatch, sizeof(mpix_ep_words));
            ck_assert_uint_ge(l.offers_combine,
                              l.offers_dispatch + (size_t)depth * sizeof(mpix_ep_offer));
            ck_assert_uint_ge(l.status, l.offers_combine + (size_t)depth * sizeof(mpix_ep_offer));
            ck_assert_uint_ge(l.counts, l.status + (size_t)depth * sizeof(mpix_ep_status));
            ck_assert_uint_ge(l.counts_bytes,
                              sizeof(mpix_ep_counts) + 4 * (size_t)(2 * ranks + experts));
            ck_assert_uint_ge(l.block, l.counts + 2 * l.counts_bytes);
            ck_assert_uint_eq(l.block % 64, 0); /* no two writers share a line */
            ck_assert_uint_eq(l.forward, l.handles_at + 9 * l.handle);
            ck_assert_uint_eq(l.forward % 64, 0);
            ck_assert_uint_eq(l.total, l.forward + (size_t)ranks * sizeof(mpix_ep_forward_words));
            /* the bound that mpix_ep.h states */
            ck_assert_uint_le(l.total, 9 * (size_t)ranks *
                                               ((size_t)(experts + 2 * ranks) * 8 +
                                                (size_t)depth * 520 + 640) +
                                           192 * (size_t)ranks + 4096);
            for (int64_t most = 0; most < 40; most += 13) { /* places answered */
                mpix_ep_ctl_layout_init(&l, ranks, experts, depth, 9, most);
                ck_assert_uint_ge(l.counts_bytes, sizeof(mpix_ep_counts) + 4 * (size_t)(2 + most));
                ck_assert_uint_ge(l.bases, l.counts + 2 * l.counts_bytes);
                ck_assert_uint_ge(l.bases_bytes,
                                  sizeof(mpix_ep_bases) + 8 * (size_t)(most ? most : 1));
                ck_assert_uint_ge(l.block, l.bases + l.bases_bytes);
                ck_assert_uint_eq(l.block % 64, 0);
                ck_assert_uint_le(l.total, 9 * (size_t)ranks *
                                                   (16 * (size_t)most + (size_t)depth * 520 + 640) +
                                               192 * (size_t)ranks + 4096);
            }
        }
    }
    mpix_ep_ctl_layout l; /* what doc/scaling.md says */
    mpix_ep_ctl_layout_init(&l, 4, 64, 2, 64, -1);
    ck_assert_uint_eq(2 * l.total, 927232);
    mpix_ep_ctl_layout_init(&l, 4, 64, 2, 64, 16);
    ck_assert_uint_eq(2 * l.total, 828928);
}
END_TEST

/* ---- waiting --------------------------------------------------------------------------------- */

typedef struct ping {
    mpix_doorbell bell[2];
    _Alignas(64) _Atomic uint64_t word[2];
    int rounds, spin_us;
} ping;

static void wait_for(ping *p, int side, uint64_t value) {
    mpix_wait wait;
    mpix_wait_start(&wait, &p->bell[side], p->spin_us, 0);
    wait.yield_ns = 0; /* sleep at once: that is what is tested */
    while (atomic_load_explicit(&p->word[side], memory_order_acquire) < value)
        mpix_wait_pause(&wait);
    mpix_wait_end(&wait);
}

static void *echo(void *arg) {
    ping *p = arg;
    for (int i = 1; i <= p->rounds; i++) {
        wait_for(p, 1, (uint64_t)i);
        atomic_store_explicit(&p->word[0], (uint64_t)i, memory_order_release);
        mpix_doorbell_ring(&p->bell[0]);
    }
    return NULL;
}

/* A lost wake-up costs a sleep of 20 ms: 20 000 round trips with a few of them would
 * show in the time. */
START_TEST(test_wait_no_lost_wakeup) {
    ping *p = aligned_alloc(64, sizeof *p);
    pthread_t thread;
    memset(p, 0, sizeof *p);
    p->rounds = 20000;
    ck_assert_int_eq(pthread_create(&thread, NULL, echo, p), 0);
    int slow = 0;
    for (int i = 1; i <= p->rounds; i++) {
        uint64_t start = mpix_clock_ns();
        atomic_store_explicit(&p->word[1], (uint64_t)i, memory_order_release);
        mpix_doorbell_ring(&p->bell[1]);
        wait_for(p, 0, (uint64_t)i);
        slow += mpix_clock_ns() - start > 19000000; /* a preempted machine makes some */
    }
    pthread_join(thread, NULL);
    ck_assert_int_lt(slow, p->rounds / 100);
    ck_assert_uint_eq(p->bell[0].sleepers, 0);
    ck_assert_uint_eq(p->bell[1].sleepers, 0);
    free(p);
}
END_TEST

START_TEST(test_wait_sleeps) {
    mpix_doorbell *bell = aligned_alloc(64, sizeof *bell);
    mpix_wait wait;
    memset(bell, 0, sizeof *bell);
    mpix_wait_start(&wait, bell, 0, 1);
    uint64_t start = mpix_clock_ns();
    while (wait.slept < 3)
        mpix_wait_pause(&wait);
    mpix_wait_end(&wait);
    ck_assert_uint_gt(mpix_clock_ns() - start, 20000000u); /* three timed sleeps, not a spin */
    ck_assert_uint_eq(bell->sleepers, 0);
    free(bell);
}
END_TEST

/* Each path knows its place, has layouts, and is the one that its own settings choose. */
START_TEST(test_paths) {
    int n = 0;
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++, n++) {
        ck_assert_int_eq(p->number, n);
        int layouts = 0;
        for (int layout = 0; layout < MPIX_EP_LAYOUTS; layout++) {
            if (!p->can[layout])
                continue;
            layouts++;
            MPIX_Ep_config c = config_of(layout, 8, 2, 4);
            c.memkind = p->memkind;
            c.mode = p->mode;
            c.num_sms = p->copy_engine ? MPIX_EP_SMS_NONE : 0;
            ck_assert_str_eq(mpix_ep_path_of(&c)->name, p->name);
            ck_assert_ptr_nonnull(mpix_ep_layout_name(layout));
        }
        ck_assert_int_gt(layouts, 0);
    }
    ck_assert_int_gt(n, 1);
}
END_TEST

/* What stands at which byte, by numbers: peers of one context read it. */
START_TEST(test_records) {
    enum { WIDTH = 3, RANK = 1 };
    const int owner[] = {0, 1, 1, 0}, local[] = {0, 0, 1, 1};
    const int32_t ids[WIDTH] = {2, -1, 3};
    const float weights[WIDTH] = {0.5f, 2.0f, -4.0f};
    const mpix_ep_record r = {7, WIDTH, ids, weights};
    int32_t words[16], expected[] = {7, 1, -1, -1};
    float w[WIDTH];
    memset(words, 0x55, sizeof words);
    mpix_record_row_write(words, &r, owner, local, RANK);
    ck_assert_mem_eq(words, expected, sizeof expected);
    memcpy(w, &words[4], sizeof w);
    ck_assert_mem_eq(w, weights, sizeof w);
    ck_assert_int_eq(words[7], 0x55555555);
    ck_assert_uint_eq(mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_ROW, WIDTH), 28);

    MPI_Count token[2] = {-1, -1};
    int ids_out[2 * WIDTH] = {0};
    float weights_out[2 * WIDTH] = {0};
    MPIX_Ep_dispatch_out out = {.src_token = token, .local_ids = ids_out};
    out.topk_weights = weights_out;
    mpix_record_row_read(words, WIDTH, -1, &out, 1);
    ck_assert_int_eq(token[1], 7);
    ck_assert_int_eq(token[0], -1);
    ck_assert_mem_eq(&ids_out[WIDTH], &expected[1], sizeof w);
    ck_assert_mem_eq(&weights_out[WIDTH], weights, sizeof w);
    mpix_record_row_read(words, WIDTH, 2, &out, 0);
    ck_assert(weights_out[0] == -4.0f); /* the row's own */

    mpix_record_choice_write(words, &r, 1);
    out.local_ids = NULL;
    mpix_record_choice_read(words, &out, 0);
    ck_assert(words[0] == 7 && weights_out[0] == 2.0f && token[0] == 7);

    for (int i = 0; i < 16; i++)
        words[i] = i;
    mpix_ep_forward_record f = mpix_record_forward_read(words, WIDTH);
    ck_assert(f.token == 0 && f.ids[0] == 1 && f.rows[0] == 4);
    ck_assert(f.ids[2] == 3 && f.rows[2] == 6);
    ck_assert_ptr_eq(f.weights, (const float *)(const void *)&words[7]);
    /* GPU memory: a head of 8 bytes */
    ck_assert_ptr_eq(mpix_record_int(words, MPIX_RECORD_GPU, MPIX_RECORD_FORWARD_ROW, 8, 2),
                     &words[2 + 8 + 2]);
    ck_assert_int_eq(mpix_record_word(MPIX_RECORD_LL_WEIGHT, 8, 3), 1 + 16 + 3);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("coll");
    TCase *plan = tcase_create("plan"), *wait = tcase_create("wait");
    tcase_add_test(plan, test_placement_blocks);
    tcase_add_test(plan, test_plan_places);
    tcase_add_test(plan, test_plan_rejects);
    tcase_add_test(plan, test_worst_rows);
    tcase_add_test(plan, test_ctl_layout);
    tcase_add_test(plan, test_paths);
    tcase_add_test(plan, test_records);
    tcase_add_test(wait, test_wait_no_lost_wakeup);
    tcase_add_test(wait, test_wait_sleeps);
    tcase_set_timeout(wait, 60);
    suite_add_tcase(suite, plan);
    suite_add_tcase(suite, wait);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
