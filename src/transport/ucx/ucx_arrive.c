/*
 * ucx_arrive.c - messages that arrive at a rank of the transport ucx: what is stored,
 * what is answered.
 */
#include "config.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx.h"

/* It names memory that is registered, or else it is not for us. */
static const mpix_net_mem *store_place(const ucx_net *net, uint64_t addr, uint64_t len) {
    /* of those that begin behind addr the first is in [low, high] */
    size_t low = 0, high = net->nmems;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uint64_t)(uintptr_t)net->mems[middle].mem->base <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low > 0 && net->mems[low - 1].reach > addr; low--) {
        const mpix_net_mem *mem = net->mems[low - 1].mem;
        uint64_t at = addr - (uint64_t)(uintptr_t)mem->base;
        if (len <= mem->bytes && at <= mem->bytes - len)
            return mem;
    }
    return NULL;
}

static ucx_peer *peer_of(ucx_net *net, uint32_t rank, uint32_t lane) {
    return rank < (uint32_t)net->boot->size && net->peers[rank].lanes &&
                   lane < (uint32_t)net->nlanes
               ? &net->peers[rank]
               : NULL;
}

/* ---- memory of the program's ----------------------------------------------------------------- */

/*
 * It may be unmapped, or its file cut short, while it is registered. libucp's emulation of puts
 * and gets over TCP would end the process by that. So what goes there is a message, what is wanted
 * from there is asked for by one, and both are moved with a guard. A write that fails has been
 * complete for its origin, as with a device whose peer refuses; the origin is told, and its
 * connection is broken.
 */
static void refuse(ucx_peer *peer) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = ucx_sent,
                                 .user_data = peer};

    if (peer->broken == UCS_OK && !peer->net->closing)
        ucx_begun(peer,
                  ucp_am_send_nbx(peer->ep, UCX_AM_REFUSED, &peer->net->rank,
                                  sizeof peer->net->rank, NULL, 0, &param),
                  "a message was refused");
}

ucs_status_t ucx_refused(void *arg, const void *header, size_t header_length, void *data,
                         size_t length, const ucp_am_recv_param_t *param) {
    ucx_net *net = arg;
    ucx_peer *peer;
    uint32_t rank;

    (void)data, (void)length, (void)param;
    if (header_length != sizeof rank)
        return UCS_OK;
    memcpy(&rank, header, sizeof rank);
    peer = peer_of(net, rank, 0);
    if (peer)
        ucx_break(peer, UCS_ERR_INVALID_ADDR,
                  "memory of the peer's program is not mapped as it was registered");
    return UCS_OK;
}

typedef struct reply {
    ucx_peer *peer;
    ucx_read read;
    char data[];
} reply;

static void reply_sent(void *request, ucs_status_t status, void *arg) {
    reply *r = arg;

    if (status != UCS_OK)
        ucx_break(r->peer, status, "an answer failed");
    free(r);
    ucp_request_free(request);
}

static void answer(ucx_peer *peer, const ucx_read *asked, const mpix_net_mem *mem, uint64_t off,
                   uint64_t len) {
    reply *r = malloc(sizeof *r + len);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = reply_sent,
                                 .user_data = r};
    ucs_status_ptr_t result;

    if (!r) {
        ucx_break(peer, UCS_ERR_NO_MEMORY, "no memory for an answer");
        return;
    }
    r->peer = peer;
    r->read = *asked;
    r->read.off = off;
    r->read.rank = peer->net->rank;
    r->read.failed = !mem || !peer->net->guard ||
                     mpix_guard_read(peer->net->guard, r->data,
                                     (const void *)(uintptr_t)(asked->addr + off), len) != 0;
    result = ucp_am_send_nbx(peer->ep, UCX_AM_DATA, &r->read, sizeof r->read, r->data,
                             r->read.failed ? 0 : len, &param);
    if (!UCS_PTR_IS_PTR(result))
        free(r);
    ucx_begun(peer, result, "an answer was refused");
}

/* No piece is longer than a message may be. */
ucs_status_t ucx_asked(void *arg, const void *header, size_t header_length, void *data,
                       size_t length, const ucp_am_recv_param_t *param) {
    ucx_net *net = arg;
    const mpix_net_mem *mem;
    ucx_peer *peer;
    ucx_read asked;

    (void)data, (void)length, (void)param;
    if (header_length != sizeof asked)
        return UCS_OK;
    memcpy(&asked, header, sizeof asked);
    peer = peer_of(net, asked.rank, asked.lane);
    if (!peer || net->closing)
        return UCS_OK;
    mem = store_place(net, asked.addr, asked.len);
    for (uint64_t off = 0, part; off < asked.len && peer->broken == UCS_OK; off += part) {
        part = asked.len - off < peer->message ? asked.len - off : peer->message;
        answer(peer, &asked, mem, off, mem ? part : 0);
    }
    return UCS_OK;
}

ucs_status_t ucx_data(void *arg, const void *header, size_t header_length, void *data,
                      size_t length, const ucp_am_recv_param_t *param) {
    ucx_net *net = arg;
    ucx_peer *peer;
    ucx_lane *lane;
    ucx_read h;
    ucx_op *o;

    (void)param;
    if (header_length != sizeof h)
        return UCS_OK;
    memcpy(&h, header, sizeof h);
    peer = peer_of(net, h.rank, h.lane);
    lane = peer ? &peer->lanes[h.lane] : NULL;
    o = lane && h.number >= lane->done && h.number < lane->head ? ucx_lane_op(lane, h.number)
                                                                : NULL;
    if (!o || o->state != UCX_READING)
        return UCS_OK;
    if (h.failed) {
        ucx_break(peer, UCS_ERR_INVALID_ADDR,
                  "memory of the peer's program is not mapped as it was registered");
        return UCS_OK;
    }
    if (h.off > o->op.len || length > o->op.len - h.off)
        return UCS_OK;
    memcpy((char *)o->op.local + h.off, data, length);
    o->read.off += length;
    if (o->read.off == o->op.len) {
        o->state = UCX_ISSUED;
        lane->reading--;
    }
    return UCS_OK;
}

/* ---- messages that are stored ---------------------------------------------------------------- */

/* libucp delivers messages of one fragment in the order of sending; that it does is checked. */
ucs_status_t ucx_store(void *arg, const void *header, size_t header_length, void *data,
                       size_t length, const ucp_am_recv_param_t *param) {
    ucx_net *net = arg;
    ucx_header h;
    const mpix_net_mem *mem;
    ucx_peer *peer;

    (void)param;
    if (header_length == 0 && length >= sizeof h) { /* a long write */
        memcpy(&h, data, sizeof h);
        if (h.word || h.value < sizeof h || h.value > length)
            return UCS_OK;
        data = (char *)data + h.value;
        length -= h.value;
    } else if (header_length == sizeof h) {
        memcpy(&h, header, sizeof h);
    } else {
        return UCS_OK;
    }
    peer = peer_of(net, h.rank, h.lane);
    if (!peer)
        return UCS_OK;
    if (h.seq != peer->lanes[h.lane].seq_in++) {
        ucx_break(peer, UCS_ERR_MESSAGE_TRUNCATED, "messages arrived in another order");
        return UCS_OK;
    }
    mem = store_place(net, h.addr, h.word ? 8 : length);
    if (!mem || (h.word && h.addr % 8 != 0)) {
        /* Memory that was deregistered with writes under way: as with a device, they are lost. */
        ucx_host->log(MPIX_LOG_INFO,
                      "ucx: a message of rank %u names memory that is not registered", h.rank);
        return UCS_OK;
    }
    if (mem->foreign) { /* writes only: words lie in windows */
        if (h.word || !net->guard ||
            mpix_guard_write(net->guard, (void *)(uintptr_t)h.addr, data, length))
            refuse(peer);
    } else if (h.word)
        atomic_store_explicit((_Atomic uint64_t *)(uintptr_t)h.addr, h.value, memory_order_release);
    else
        memcpy((void *)(uintptr_t)h.addr, data, length);
    net->stored = 1;
    return UCS_OK;
}
