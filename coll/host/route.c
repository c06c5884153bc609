/*
 * route.c - route: every rank tells every rank its counts; from all counts each rank knows where
 * its rows go and what it receives.
 *
 * This rank's own part of the plan is made in the call itself; the step publishes the counts, waits
 * for everybody's, and finishes the plan. A handle's routes run alone, so two banks of counts
 * suffice (wire.h).
 *
 * With more ranks than the parameter counts_ranks such tables would be quadratic in every rank.
 * Then a rank gets the counts for itself alone, lays its rows out, and answers each source with the
 * places of that source's rows and the total.
 */
#include "config.h"

#include "coll/host/forward.h"

#include <stdio.h>

enum { ROUTE_START, ROUTE_WAIT, ROUTE_BASES };

/* Places answered: what this rank has for each other one. */
static void counts_answered_fill(mpix_ep_call *call) {
    const mpix_ep_placement *p = &call->ep->placement;
    const mpix_ep_plan *plan = call->plan;
    for (int peer = 0; peer < p->ranks; peer++) {
        uint32_t *n = mpix_ep_peer_counts(call, peer)->n;
        n[0] = (uint32_t)plan->send_rows[peer];
        n[1] = (uint32_t)plan->send_tokens[peer];
    }
    for (int64_t e = 0; e < p->experts; e++)
        mpix_ep_peer_counts(call, p->owner[e])->n[2 + p->local[e]] =
            (uint32_t)plan->send_experts[e];
}

/* Otherwise: all that this rank has for anybody. */
static void counts_fill(const mpix_ep *ep, const mpix_ep_plan *plan, uint32_t *n) {
    for (int r = 0; r < ep->size; r++) {
        n[r] = (uint32_t)plan->send_rows[r];
        n[ep->size + r] = (uint32_t)plan->send_tokens[r];
    }
    for (int64_t e = 0; e < ep->placement.experts; e++)
        n[2 * ep->size + e] = (uint32_t)plan->send_experts[e];
}

/* (token, rank) and (token, host) pairs between hosts, for the choice of two hops. */
static void pairs_count(const mpix_ep_call *call, int64_t *flat, int64_t *forwarded) {
    const mpix_ep *ep = call->ep;
    *flat = *forwarded = 0;
    for (int r = 0; ep->forward && r < ep->size; r++)
        *flat += mpix_ep_is_remote(ep, r) ? call->plan->send_tokens[r] : 0;
    for (int h = 0; ep->forward && h < ep->boot->nhosts; h++)
        *forwarded += h != ep->boot->host_of[ep->rank] ? call->plan->send_hosts[h] : 0;
}

static void counts_send(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    /* a rank that has failed has an empty batch */
    const mpix_ep_plan *plan = call->kind ? NULL : call->plan;
    int64_t flat = 0, forwarded = 0;
    if (plan)
        pairs_count(call, &flat, &forwarded);
    if (plan && ep->ht->answered)
        counts_answered_fill(call);
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        mpix_ep_counts *c = mpix_ep_peer_counts(call, peer);
        c->status = call->kind;
        if (plan) {
            c->topk = plan->topk;
            c->tokens = plan->tokens;
            c->flat = flat;
            c->forwarded = forwarded;
            if (!ep->ht->answered)
                counts_fill(ep, plan, c->n);
        }
        mpix_ep_publish(call, peer, c, ep->layout.counts_bytes,
                        &mpix_ep_peer_words(call, peer)->route);
    }
}

static int counts_seen(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    for (int peer = 0; peer < ep->size; peer++) {
        if (call->seen[peer] || atomic_load_explicit(&mpix_ep_my_words(call, peer)->route,
                                                     memory_order_acquire) < call->epoch)
            continue;
        mpix_ep_peer_seen(call, peer, mpix_ep_my_counts(call, peer)->status, NULL);
    }
    return call->nseen == ep->size;
}

/* What a peer says of itself is bounded before anything is sized by it. */
static void counts_check(mpix_ep_call *call) {
    const mpix_ep *ep = call->ep;
    for (int peer = 0; peer < ep->size; peer++) {
        const mpix_ep_counts *c = mpix_ep_my_counts(call, peer);
        if (c->tokens >= 0 && c->tokens <= ep->config.max_tokens && c->topk >= 0 &&
            c->topk <= ep->config.max_topk)
            continue;
        mpix_ep_call_fail(call,
                          mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, ep->boot->hostnames[peer],
                                         "rank %d says that it has %lld tokens with %d choices; at "
                                         "most %lld with %d are possible",
                                         peer, (long long)c->tokens, c->topk,
                                         (long long)ep->config.max_tokens, ep->config.max_topk));
        return;
    }
}

/* Every rank with tokens must have the same topk; the receivers' arrays are [rows][that]. Decided
 * alike on all ranks. */
static void agree_topk(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    int width = -1, first = -1;
    for (int peer = 0; peer < ep->size; peer++) {
        const mpix_ep_counts *c = mpix_ep_my_counts(call, peer);
        if (c->tokens == 0)
            continue;
        if (first < 0) {
            first = peer;
            width = c->topk;
        } else if (c->topk != width) {
            mpix_ep_call_fail(
                call, mpix_fail_peer(MPIX_ERRK_ARG, peer, ep->boot->hostnames[peer],
                                     "routing.topk = %d on rank %d differs from %d on rank %d",
                                     c->topk, peer, width, first));
            snprintf(call->error.arg, sizeof call->error.arg, "routing.topk");
            return;
        }
    }
    if (width >= 0)
        call->plan->width = width;
}

/* A rank that would receive more than it has room for. With overflow = error the call fails:
 * TRUNCATE there, REMOTE elsewhere. */
static void check_totals(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    for (int peer = 0; ep->forward && peer < ep->size; peer++) /* alike on all ranks */
        if (call->plan->total[peer] >= (int64_t)MPIX_RECORD_NO_ROW) {
            mpix_ep_call_fail(call,
                              mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, ep->boot->hostnames[peer],
                                             "rank %d would receive %lld rows: with two hops a "
                                             "row's number has 32 bits, set mpix_ep_two_hops=off",
                                             peer, (long long)call->plan->total[peer]));
            return;
        }
    if (ep->config.overflow == MPIX_EP_OVERFLOW_DROP || ep->config.max_recv_rows == 0)
        return;
    int64_t limit = ep->config.max_recv_rows;
    if (call->plan->recv_total > limit) {
        mpix_ep_call_fail(
            call, mpix_fail(MPIX_ERRK_TRUNCATE, "config.max_recv_rows",
                            "this rank would receive %lld rows, config.max_recv_rows is %lld",
                            (long long)call->plan->recv_total, (long long)limit));
        return;
    }
    for (int peer = 0; peer < ep->size; peer++) {
        if (call->plan->total[peer] <= limit)
            continue;
        mpix_ep_call_fail(
            call,
            mpix_fail_peer(MPIX_ERRK_REMOTE, peer, ep->boot->hostnames[peer],
                           "rank %d on %s would receive %lld rows, config.max_recv_rows is %lld",
                           peer, ep->boot->hostnames[peer], (long long)call->plan->total[peer],
                           (long long)limit));
        return;
    }
}

static void send_per_host(mpix_ep_call *call, MPI_Count *out) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->plan;
    int hosts = ep->boot->nhosts;
    int64_t *last = plan->scratch; /* token last counted for each host */
    for (int h = 0; h < hosts; h++) {
        last[h] = -1;
        out[h] = 0;
    }
    for (int64_t t = 0; t < plan->tokens; t++) {
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
            int h = ep->boot->host_of[plan->entries[i].rank];
            out[h] += last[h] != t;
            last[h] = t;
        }
    }
}

static void copy_counts(MPI_Count *to, const int64_t *from, int64_t n) {
    for (int64_t i = 0; to && i < n; i++)
        to[i] = from[i];
}

void mpix_ep_route_sends_fill(mpix_ep_call *call) {
    const MPIX_Ep_counts *out = &call->route.counts;
    const mpix_ep_plan *plan = call->plan;
    const mpix_ep_placement *p = &call->ep->placement;
    copy_counts(out->send_per_rank, plan->send_tokens, p->ranks);
    copy_counts(out->send_per_expert, plan->send_experts, p->experts);
    if (out->send_per_host)
        send_per_host(call, out->send_per_host);
    if (out->token_in_rank) {
        memset(out->token_in_rank, 0, (size_t)plan->tokens * (size_t)p->ranks);
        for (int64_t t = 0; t < plan->tokens; t++)
            for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++)
                out->token_in_rank[t * p->ranks + plan->entries[i].rank] = 1;
    }
}

static void outputs_fill(mpix_ep_call *call) {
    const MPIX_Ep_counts *out = &call->route.counts;
    const mpix_ep_plan *plan = call->plan;
    const mpix_ep_placement *p = &call->ep->placement;
    copy_counts(out->recv_total, &plan->recv_total, 1);
    copy_counts(out->recv_per_rank, plan->recv_rank, p->ranks);
    copy_counts(out->recv_per_expert, plan->recv_expert, p->nlocal[p->rank]);
    copy_counts(out->expert_offset, plan->offset, p->nlocal[p->rank] + 1);
    mpix_ep_route_sends_fill(call);
}

/* What the counts of all give; the places of this rank's rows, unless they will be answered. */
static void plan_complete(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    if (call->kind)
        return;
    for (int peer = 0; peer < ep->size; peer++) {
        const uint32_t *n = mpix_ep_my_counts(call, peer)->n;
        call->plan->views[peer] = (mpix_ep_counts_view){n, n + ep->size, n + 2 * ep->size};
    }
    mpix_ep_plan_finish(call->plan, &ep->placement, call->plan->views);
}

/* Everybody's counts for this rank are here: tells each where its rows go. */
static void bases_send(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_plan *plan = call->plan;
    int64_t n = ep->placement.layout == MPIX_EP_COMPACT ? 1 : ep->placement.nlocal[ep->rank];
    for (int peer = 0; peer < ep->size; peer++) {
        const uint32_t *c = mpix_ep_my_counts(call, peer)->n;
        plan->views[peer] = (mpix_ep_counts_view){c, c + 1, c + 2};
    }
    mpix_ep_plan_receive(plan, &ep->placement, plan->views, plan->scratch);
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        mpix_ep_bases *b = mpix_ep_peer_bases(call, peer);
        b->status = 0;
        b->total = plan->recv_total;
        if (n > 0)
            memcpy(b->base, plan->scratch + peer * n, (size_t)n * sizeof *plan->scratch);
        mpix_ep_publish(call, peer, b, ep->layout.bases_bytes,
                        &mpix_ep_peer_words(call, peer)->bases);
    }
}

static int bases_seen(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    for (int peer = 0; peer < ep->size; peer++)
        if (!call->seen[peer] && atomic_load_explicit(&mpix_ep_my_words(call, peer)->bases,
                                                      memory_order_acquire) >= call->epoch)
            mpix_ep_peer_seen(call, peer, mpix_ep_my_bases(call, peer)->status, NULL);
    return call->nseen == ep->size;
}

/* Whether the places that a peer answered are places at all. */
static int bases_sound(const mpix_ep_call *call, const mpix_ep_bases *bases, int peer) {
    const mpix_ep_placement *p = &call->ep->placement;
    int64_t n = p->layout == MPIX_EP_COMPACT ? 1 : p->nlocal[peer];
    for (int64_t i = 0; i < n; i++)
        if (bases->base[i] < 0 || bases->base[i] > INT64_C(1) << 46)
            return 0;
    return bases->total >= 0 && bases->total <= INT64_C(1) << 46;
}

static void bases_take(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_plan *plan = call->plan;
    if (call->kind)
        return;
    for (int peer = 0; peer < ep->size; peer++) {
        if (!bases_sound(call, mpix_ep_my_bases(call, peer), peer)) {
            mpix_ep_call_fail(call,
                              mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, ep->boot->hostnames[peer],
                                             "rank %d answers places that can't be", peer));
            return;
        }
        plan->bases[peer] = mpix_ep_my_bases(call, peer)->base;
        plan->total[peer] = mpix_ep_my_bases(call, peer)->total;
    }
    mpix_ep_plan_place(plan, &ep->placement, plan->bases);
}

static void route_finish(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    struct mpix_ep_handle *handle = call->handle;
    if (!call->kind)
        check_totals(call);
    if (!call->kind && ep->forward)
        mpix_ep_forward_choose(call);
    if (!call->kind)
        outputs_fill(call);
    if (!call->kind) {
        handle->plan = call->plan;
        call->plan = NULL;
    }
}

int mpix_ep_route_step(mpix_ep_call *call, int *banks_open) {
    (void)banks_open;
    if (call->state == ROUTE_START) {
        if (!mpix_ep_call_ready(call))
            return MPIX_EP_STEP_WAITING;
        counts_send(call);
        mpix_ep_peers_reset(call);
        call->state = ROUTE_WAIT;
    }
    if (call->state == ROUTE_WAIT) {
        if (!counts_seen(call))
            return MPIX_EP_STEP_WAITING;
        mpix_ep_plan_free(call->handle->plan);
        call->handle->plan = NULL;
        if (!call->kind)
            counts_check(call);
        if (!call->kind)
            agree_topk(call);
        /* an error up to here is one on all ranks: nobody answers, nobody waits */
        if (call->kind || !call->ep->ht->answered) {
            plan_complete(call);
            route_finish(call);
            return MPIX_EP_STEP_COMPLETE;
        }
        bases_send(call);
        mpix_ep_peers_reset(call);
        call->state = ROUTE_BASES;
    }
    if (!bases_seen(call))
        return MPIX_EP_STEP_WAITING;
    bases_take(call);
    route_finish(call);
    return MPIX_EP_STEP_COMPLETE;
}
