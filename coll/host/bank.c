/*
 * bank.c - what a step asks about its own call: whether its turn has come, a staging bank, its
 * first error.
 */
#include "config.h"

#include "coll/ep.h"

const char *mpix_ep_call_name(const mpix_ep_call *call) {
    static const char *const names[] = {"route", "dispatch", "combine"};
    return names[call->type];
}

void mpix_ep_call_fail(mpix_ep_call *call, int kind) {
    if (call->kind && !(call->kind == MPIX_ERRK_REMOTE && kind != MPIX_ERRK_REMOTE))
        return;
    call->kind = kind;
    call->error = *mpix_error_tls();
}

int mpix_ep_call_ready(mpix_ep_call *call) {
    uint64_t depth = (uint64_t)call->ep->config.depth;
    for (mpix_ep_call *c = call->ep->first; c != call; c = c->next) {
        if (c->handle != call->handle)
            continue;
        if (call->type == MPIX_EP_ROUTE || c->type == MPIX_EP_ROUTE)
            return 0; /* a route runs alone: it replaces what the others use */
        if (c->type == call->type && c->epoch + depth <= call->epoch)
            return 0; /* its bank of words is in use */
    }
    return 1;
}

int mpix_ep_bank_take(mpix_ep_call *call, size_t bytes) {
    mpix_ep *ep = call->ep;
    int b = 0;
    while (b < ep->config.depth && ep->ht->banks[b].busy)
        b++;
    if (b == ep->config.depth)
        return 0;
    mpix_ep_bank *bank = &ep->ht->banks[b];
    if (bytes > ep->ht->bank_bytes) {
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                                          "a batch needs %zu bytes of staging, a bank has %zu",
                                          bytes, ep->ht->bank_bytes));
        return 1;
    }
    if (bytes > bank->committed) {
        size_t upto = (bytes + 4095) & ~(size_t)4095;
        if (upto > ep->ht->bank_bytes)
            upto = ep->ht->bank_bytes;
        int kind =
            mpix_win_commit(ep->stage,
                            ep->ht->banks_at + (size_t)b * ep->ht->bank_bytes + bank->committed,
                            upto - bank->committed);
        if (kind) {
            mpix_ep_call_fail(call, kind);
            return 1;
        }
        bank->committed = upto;
    }
    bank->busy = 1;
    call->bank = b;
    return 1;
}

void mpix_ep_bank_give(mpix_ep_call *call) {
    if (call->bank >= 0)
        call->ep->ht->banks[call->bank].busy = 0;
    call->bank = -1;
}
