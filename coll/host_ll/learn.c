/*
 * learn.c - low-latency dispatch: what batches tell this rank of the routing. Their heads are
 * compared, and rows of EXPERT get their places.
 */
#include "config.h"

#include "coll/host_ll/ll.h"

#include <stdlib.h>

static void head_check(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head) {
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    if (!call->kind || call->kind == MPIX_ERRK_REMOTE)
        mpix_ep_ll_compare(call, peer, head, in->hidden, x->dtype, x->scale_kind,
                           mpix_ep_converts(call) ? "out.x.dtype" : "in.x.dtype");
    if (!call->kind && call->dispatch.out.topk_weights && head->rows > 0 &&
        !(head->flags & MPIX_EP_LL_WEIGHTS))
        mpix_ep_call_fail(
            call,
            mpix_fail(MPIX_ERRK_ARG, "in.topk_weights",
                      "out.topk_weights is wanted, but rank %d gave no in.topk_weights", peer));
}

/* What must hold before anything of the batch is copied: ranks that have tokens have the same
 * number of choices, and a routing that is known already is still the peer's. */
static void head_fits(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head) {
    mpix_ep *ep = call->ep;
    const mpix_ep_ll_handle *h = call->handle->ll;
    if (head->flags & MPIX_EP_LL_TOKENS) {
        if (call->ll.width > 0 && (int)head->width != call->ll.width - 1)
            mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "routing.topk",
                                              "routing.topk = %d on rank %d differs from %d "
                                              "on another",
                                              (int)head->width, peer, call->ll.width - 1));
        call->ll.width = (int)head->width + 1;
    }
    if (head->flags & MPIX_EP_LL_TOKENS && h->valid && (int)head->width != h->width)
        mpix_ep_call_fail(
            call,
            mpix_fail(
                MPIX_ERRK_ARG, "handle",
                "rank %d sends %u choices of a token here, its routing had %d: route is collective",
                peer, head->width, h->width));
    if (head->rows > (uint64_t)ep->config.max_tokens ||
        (h->valid && (int64_t)head->rows != h->n[peer]))
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "handle",
                                          "rank %d sends %u rows here, not what its routing "
                                          "said before: route is collective",
                                          peer, head->rows));
}

/* Notes the heads that have come; 1: all. */
int mpix_ep_ll_heads_take(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    if (call->ll.heads == ep->size)
        return 1;
    for (int p = 0; p < ep->size; p++) {
        mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[p];
        int32_t status = 0;
        const mpix_ep_ll_head *head = part->n < 0 ? mpix_ep_ll_head_seen(call, p, &status) : NULL;
        if (status) {
            part->n = 0;
            call->ll.heads++;
            mpix_ep_ll_taken(call, p);
            mpix_ep_peer_seen(call, p, status, NULL);
        }
        if (!head)
            continue;
        const MPIX_Ep_rows rows = {.dtype = head->dtype, .scale_kind = head->scale_kind};
        part->n = head->rows;
        part->flags = head->flags;
        part->in = mpix_ep_ll_shape_of(
            part->n,
            mpix_record_bytes(MPIX_RECORD_HOST,
                              head->flags & MPIX_EP_LL_WEIGHTS ? MPIX_RECORD_ROW : 1, head->width),
            mpix_ep_scale_bytes(&rows, head->hidden), mpix_ep_row_bytes(&rows, head->hidden),
            !mpix_ep_is_remote(ep, p));
        call->ll.heads++;
        if (head->rows > (uint64_t)ep->config.max_tokens ||
            head->width > (uint32_t)ep->config.max_topk || part->in.bytes > ep->ll->region ||
            (head->rows > 0 && !(head->flags & MPIX_EP_LL_TOKENS))) {
            mpix_ep_call_fail(call, mpix_fail_peer(MPIX_ERRK_INTERNAL, p, ep->boot->hostnames[p],
                                                   "rank %d sends a batch of %u rows with %u "
                                                   "choices (%zu bytes), which has no room here",
                                                   p, head->rows, head->width, part->in.bytes));
            part->n = 0; /* nothing of it is read */
            continue;
        }
        head_fits(call, p, head);
        if (p != ep->rank)
            head_check(call, p, head);
    }
    return call->ll.heads == ep->size;
}

static int64_t align_up(int64_t n, int64_t align) { return (n + align - 1) / align * align; }

/* EXPERT: the row of each choice. recv_expert is counted. */
static void rows_assign(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_ll_handle *h = call->handle->ll;
    int64_t nlocal = ep->placement.nlocal[ep->rank], at = 0;
    for (int64_t e = 0; e < nlocal; e++) {
        h->offset[e] = at;
        at = align_up(at + h->recv_expert[e], ep->config.expert_align);
        h->recv_expert[e] = 0; /* counted once more below */
    }
    h->offset[nlocal] = h->total = at;
    if (at > INT32_MAX) {
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_TRUNCATE, "config.expert_align",
                                          "this rank receives %lld rows, padding included",
                                          (long long)at));
        return;
    }
    int32_t *row = h->rows;
    for (int s = 0; s < ep->size; s++) /* sources ascending, tokens ascending */
        for (int64_t i = 0; i < h->n[s]; i++, row += h->width) {
            const int32_t *local =
                mpix_record_local(mpix_ep_ll_record_of(&mpix_ep_ll_parts(call)[s], i));
            for (int k = 0; k < h->width; k++)
                row[k] = local[k] < 0 ? -1
                                      : (int32_t)(h->offset[local[k]] + h->recv_expert[local[k]]++);
        }
}

/* All heads are here, and well: what this rank receives under the handle's routing. */
void mpix_ep_ll_routing_learn(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_ll_handle *h = call->handle->ll;
    int64_t nlocal = ep->placement.nlocal[ep->rank];
    h->width = call->handle->plan->width = call->ll.width > 0 ? call->ll.width - 1
                                                              : call->handle->plan->topk;
    memset(h->recv_expert, 0, (size_t)nlocal * sizeof *h->recv_expert);
    h->first[0] = 0;
    for (int s = 0; s < ep->size; s++) {
        const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
        h->n[s] = part->n;
        h->first[s + 1] = h->first[s] + part->n;
        h->reply[s] = mpix_ep_ll_head_of(part)->reply;
        h->recv_rank[s] = mpix_ep_ll_is_expert(call) ? 0 : part->n;
        if (h->reply[s] + mpix_ep_ll_answer_bytes(&ep->config, (size_t)part->n) > ep->ll->bank[1]) {
            mpix_ep_call_fail(call,
                              mpix_fail_peer(MPIX_ERRK_INTERNAL, s, ep->boot->hostnames[s],
                                             "rank %d wants its answer at %llu of %zu", s,
                                             (unsigned long long)h->reply[s], ep->ll->bank[1]));
            return;
        }
        for (int64_t i = 0; i < part->n; i++)
            for (int k = 0; k < h->width; k++) {
                int32_t local = mpix_record_local(mpix_ep_ll_record_of(part, i))[k];
                if (local >= nlocal) {
                    mpix_ep_call_fail(call,
                                      mpix_fail_peer(MPIX_ERRK_INTERNAL, s, ep->boot->hostnames[s],
                                                     "rank %d sends a row for expert %d of "
                                                     "%lld here",
                                                     s, (int)local, (long long)nlocal));
                    return;
                }
                if (local >= 0) {
                    h->recv_expert[local]++;
                    h->recv_rank[s] += mpix_ep_ll_is_expert(call);
                }
            }
    }
    h->total = (int64_t)ep->size * ep->config.max_tokens;
    if (mpix_ep_ll_is_expert(call)) {
        size_t room = (size_t)h->first[ep->size] * (size_t)h->width;
        if (room > h->rows_room) {
            free(h->rows);
            h->rows = malloc(room * sizeof *h->rows);
            h->rows_room = h->rows ? room : 0;
        }
        if (room > 0 && !h->rows) {
            mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                              "no memory for a routing of %zu choices", room));
            return;
        }
        rows_assign(call);
    }
    h->valid = !call->kind;
}
