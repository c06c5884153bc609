/*
 * chaos_move.c - operations of the transport chaos: each is held back for a number of polls and a
 * time, cut into pieces, and handed to the inner net; what the inner net completes is told late.
 *
 * Why the order of a lane holds with reorder=no: only the oldest operation that is not wholly with
 * the inner net may go, so pieces of different operations are posted to the inner lane in the order
 * of the operations, and the inner net keeps the order of a lane, or else says that it is not
 * ordered, and so does chaos.
 *
 * Why a counted write has landed when its arrival is told: its last piece, which carries the
 * counter, is posted when the inner net has reported the others as complete.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "transport/chaos/chaos.h"

_Static_assert(CHAOS_FLIGHT >= CHAOS_DEPTH * CHAOS_PIECES,
               "every piece of a lane finds room in the list");

static uint64_t chaos_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t chaos_hash(const chaos_net *c, uint64_t what, uint64_t number) {
    return chaos_mix(chaos_mix(chaos_mix(c->seed) + (uint64_t)c->rank) + (what << 40) + number);
}

/* Half of all things are not held back at all, so that slow and fast ones meet. */
static void chaos_hold(const chaos_net *c, uint64_t hash, uint64_t *poll, uint64_t *ns) {
    *poll = c->polls + (hash & 1 ? 1 + (hash >> 1) % CHAOS_TURNS : 0);
    *ns = c->delay_ns && hash & 1 ? c->now + (hash >> 8) % (c->delay_ns + 1) : 0;
}

static int chaos_due(const chaos_net *c, uint64_t poll, uint64_t ns) {
    return c->polls >= poll && c->now >= ns;
}

/* With chaos_stall_thread this is where the thread does not get on. */
static int chaos_stalled(chaos_net *c) {
    if (c->params.chaos_stall_thread && c->now < c->stall_end) {
        const struct timespec rest = {(time_t)((c->stall_end - c->now) / 1000000000u),
                                      (long)((c->stall_end - c->now) % 1000000000u)};
        (void)nanosleep(&rest, NULL);
        c->now = mpix_clock_ns();
    }
    if (c->stall_end == 0 || c->now < c->stall_end)
        return c->stall_end != 0;
    c->stall_end = 0;
    return 0;
}

/* ---- posting --------------------------------------------------------------------------------- */

/* Cuts a write at random places; a counted one keeps its last piece for the end, the others go
 * in any order. */
static void chaos_cut(const chaos_net *c, chaos_op *o) {
    uint64_t h = chaos_mix(o->hash), n = 1;

    if (o->op.op == MPIX_NET_WRITE && o->op.len > 1)
        n = 1 + h % (uint64_t)c->pieces;
    o->pieces = (uint8_t)(n < o->op.len || n == 1 ? n : o->op.len);
    o->cut[0] = 0;
    /* ascending: each between the last one and what the rest needs */
    for (int i = 1; i < o->pieces; i++) {
        uint64_t most = o->op.len - o->cut[i - 1] - (uint64_t)(o->pieces - i);
        h = chaos_mix(h);
        o->cut[i] = o->cut[i - 1] + 1 + h % most;
    }
    o->cut[o->pieces] = o->op.len;
    for (int i = 0; i < o->pieces; i++)
        o->order[i] = (uint8_t)i;
    for (int i = o->pieces - 1 - (o->op.counter >= 0); i > 0; i--) {
        int j = (int)((h = chaos_mix(h)) % (uint64_t)(i + 1));
        uint8_t other = o->order[j];
        o->order[j] = o->order[i];
        o->order[i] = other;
    }
}

/* Whether the operation is one that shall fail; and the stall that begins after it. */
static int chaos_doom(chaos_net *c, uint64_t hash) {
    uint64_t number = ++c->nops;

    if (!c->chosen)
        return 0;
    if (c->params.chaos_stall_at && number == (uint64_t)c->params.chaos_stall_at)
        c->stall_end = c->params.chaos_stall_ms
                           ? c->now + (uint64_t)c->params.chaos_stall_ms * 1000000u
                           : UINT64_MAX;
    return number == (uint64_t)c->params.chaos_fail_at ||
           chaos_mix(hash + 1) % 1000000u < (uint64_t)c->params.chaos_fail_ppm;
}

int chaos_post(mpix_net *net, const mpix_net_op *ops, int n) {
    chaos_net *c = (chaos_net *)net;
    int i;

    c->now = mpix_clock_ns();
    for (i = 0; i < n; i++) {
        int index = ops[i].peer * c->params.lanes + ops[i].lane;
        chaos_lane *lane = &c->lanes[index];
        chaos_op *o = &lane->ring[lane->head % CHAOS_DEPTH];
        uint64_t hash = chaos_hash(c, (uint64_t)index, lane->head);
        if (lane->broken)
            return -mpix_fail(lane->broken, NULL, "%s", lane->text);
        if (lane->head - lane->done == (uint64_t)net->caps.depth)
            break;
        *o = (chaos_op){.op = ops[i], .hash = hash};
        o->doomed = (uint8_t)chaos_doom(c, hash);
        o->number = c->nops;
        if (o->doomed && chaos_mix(hash) & 1) /* refused at once, or by completion */
            return -mpix_fail(MPIX_ERRK_TRANSPORT, NULL,
                              "chaos: operation %" PRIu64 " is refused, as the parameters ask",
                              c->nops);
        chaos_cut(c, o);
        chaos_hold(c, hash, &o->ready_poll, &o->ready_ns);
        chaos_hold(c, chaos_mix(hash + 2), &o->told_poll, &o->told_ns);
        lane->head++;
        c->held++;
    }
    return i;
}

/* ---- letting go ------------------------------------------------------------------------------ */

/* Makes a piece of an operation into an operation of the inner net. */
static void chaos_piece(const chaos_op *o, mpix_net_op *op) {
    int i = o->order[o->posted];

    *op = o->op;
    if (o->pieces == 1)
        return;
    op->local = (char *)o->op.local + o->cut[i];
    op->roff = o->op.roff + o->cut[i];
    op->len = o->cut[i + 1] - o->cut[i];
    if (o->posted + 1 < o->pieces)
        op->counter = -1;
}

/* Hands pieces to the inner net, as far as they may go and fit. 1: all of the
 * operation is there. */
static int chaos_push(chaos_net *c, chaos_lane *lane, uint64_t number) {
    chaos_op *o = &lane->ring[number % CHAOS_DEPTH];
    int most = o->doomed ? o->pieces - 1 : o->pieces; /* of one that fails a part lands */

    while (o->posted < most) {
        mpix_net_op op;
        int taken;
        if (o->op.counter >= 0 && o->posted + 1 == o->pieces && o->complete < o->posted)
            return 0;
        chaos_piece(o, &op);
        taken = c->inner->ops->post(c->inner, &op, 1);
        if (taken == 0)
            return 0;
        if (taken < 0) {
            lane->broken = -taken;
            snprintf(lane->text, sizeof lane->text, "%.127s", mpix_error_tls()->text);
            return 0;
        }
        lane->flight[lane->flight_head++ % CHAOS_FLIGHT] = (uint32_t)(number % CHAOS_DEPTH);
        o->posted++;
    }
    return o->posted == o->pieces;
}

static void chaos_break(chaos_lane *lane, const chaos_op *o) {
    lane->broken = MPIX_ERRK_TRANSPORT;
    snprintf(lane->text, sizeof lane->text,
             "chaos: operation %" PRIu64 " fails, as the parameters ask", o->number);
}

static void chaos_push_lane(chaos_net *c, chaos_lane *lane) {
    for (uint64_t at = lane->open; at < lane->head && !lane->broken; at++) {
        chaos_op *o = &lane->ring[at % CHAOS_DEPTH];
        int full = o->posted == o->pieces;
        if (!full && chaos_due(c, o->ready_poll, o->ready_ns))
            full = chaos_push(c, lane, at);
        if (full && at == lane->open)
            lane->open++;
        if (o->doomed || (!full && !c->reorder))
            break; /* what comes after one that fails never lands */
    }
}

/* ---- what the inner net tells ---------------------------------------------------------------- */

static void chaos_inner_done(chaos_net *c, const mpix_net_done *done) {
    chaos_lane *lane = &c->lanes[done->peer * c->params.lanes + done->lane];

    for (int i = 0; i < done->n && lane->flight_tail < lane->flight_head; i++)
        lane->ring[lane->flight[lane->flight_tail++ % CHAOS_FLIGHT]].complete++;
    if (done->kind && !lane->broken) {
        lane->broken = done->kind;
        memcpy(lane->text, done->text, sizeof lane->text);
    }
}

/* Completions of a lane that may be told, oldest first, then its failure. */
static int chaos_tell(chaos_net *c, int index, mpix_net_done *done) {
    chaos_lane *lane = &c->lanes[index];
    int n = 0;

    for (; lane->done < lane->head; lane->done++, n++) {
        const chaos_op *o = &lane->ring[lane->done % CHAOS_DEPTH];
        if (o->doomed && !lane->broken && o->complete == o->pieces - 1)
            chaos_break(lane, o);
        if (o->complete < o->pieces ||
            (!c->armed && !lane->broken && !chaos_due(c, o->told_poll, o->told_ns)))
            break;
    }
    c->held -= n;
    if (n == 0 && (!lane->broken || lane->told))
        return 0;
    *done =
        (mpix_net_done){.peer = index / c->params.lanes, .lane = index % c->params.lanes, .n = n};
    if (lane->broken && !lane->told) {
        lane->told = 1;
        done->kind = lane->broken;
        memcpy(done->text, lane->text, sizeof done->text);
        c->held -= (int)(lane->head - lane->done); /* they are nobody's any more */
    }
    return 1;
}

int chaos_poll(mpix_net *net, mpix_net_done *done, int max) {
    chaos_net *c = (chaos_net *)net;
    int nlanes = c->size * c->params.lanes, stored = 0, n;
    mpix_net_done inner[64];

    c->now = mpix_clock_ns();
    if (chaos_stalled(c))
        return 0;
    c->polls++;
    do {
        n = c->inner->ops->poll(c->inner, inner, 64);
        for (int i = 0; i < n; i++)
            chaos_inner_done(c, &inner[i]);
    } while (n == 64);
    for (int i = 0; c->held > 0 && i < nlanes; i++) {
        int index = (int)((c->polls * 7 + (uint64_t)i) % (uint64_t)nlanes);
        if (c->lanes[index].open < c->lanes[index].head)
            chaos_push_lane(c, &c->lanes[index]);
    }
    for (int i = 0; i < nlanes && stored < max; i++)
        if (c->lanes[i].done < c->lanes[i].head || (c->lanes[i].broken && !c->lanes[i].told))
            stored += chaos_tell(c, i, done + stored);
    return stored;
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void chaos_take_arrivals(chaos_net *c) {
    mpix_net_arrival arrivals[CHAOS_ARRIVALS];
    int n = c->inner->ops->poll_arrivals(c->inner, arrivals, CHAOS_ARRIVALS - c->narrivals);

    for (int i = 0; i < n; i++) {
        chaos_arrival *a = &c->arrivals[c->narrivals++];
        a->arrival = arrivals[i];
        chaos_hold(c, chaos_hash(c, 1u << 20, c->narrived++), &a->ready_poll, &a->ready_ns);
    }
}

/* With reorder=no they are told in the order in which they came. */
int chaos_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    chaos_net *c = (chaos_net *)net;
    int stored = 0, kept = 0;

    c->now = mpix_clock_ns();
    if (chaos_stalled(c))
        return 0;
    if (c->narrivals < CHAOS_ARRIVALS)
        chaos_take_arrivals(c);
    for (int i = 0; i < c->narrivals; i++) {
        chaos_arrival *a = &c->arrivals[i];
        if (stored < max && (c->armed || chaos_due(c, a->ready_poll, a->ready_ns)) &&
            (c->reorder || kept == 0))
            arrivals[stored++] = a->arrival;
        else
            c->arrivals[kept++] = *a;
    }
    c->narrivals = kept;
    return stored;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

/* Nobody wakes a sleeper for what is held back here: then it sleeps by time. In the poll that
 * follows nothing is held. */
int chaos_arm(mpix_net *net, int *fd) {
    chaos_net *c = (chaos_net *)net;
    int kind = c->inner->ops->arm(c->inner, fd);

    c->armed = 1;
    if (c->held > 0 || c->narrivals > 0 || c->stall_end)
        *fd = -1;
    return kind;
}

void chaos_ack(mpix_net *net) {
    chaos_net *c = (chaos_net *)net;

    c->armed = 0;
    c->inner->ops->ack(c->inner);
}
