/*
 * sides.c - arrays in both memories, and the calls of one side in every form.
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- arrays on both sides -------------------------------------------------------------------- */

both both_make(size_t bytes, MPIX_Ep ep) {
    both b = {malloc(bytes + 64), NULL, bytes, ep};
    void *dev;
    REQUIRE(b.host, "no memory");
    if (ep)
        EP(MPIX_Ep_alloc(ep, (MPI_Count)bytes + 64, MPI_INFO_NULL, &dev));
    else
        CU(cudaMalloc(&dev, bytes + 64));
    b.dev = dev;
    both_poison(&b);
    return b;
}

void both_up(const both *b) { CU(cudaMemcpy(b->dev, b->host, b->bytes, cudaMemcpyDefault)); }

void both_poison(const both *b) {
    memset(b->host, POISON, b->bytes);
    CU(cudaMemset(b->dev, POISON, b->bytes));
}

void both_compare(const both *b, const char *what) {
    char *got = malloc(b->bytes + 16);
    size_t i = 0;
    REQUIRE(got, "no memory");
    CU(cudaMemcpy(got, b->dev, b->bytes, cudaMemcpyDefault));
    while (i < b->bytes && got[i] == b->host[i])
        i++;
    CHECK(i == b->bytes, "%s: byte %zu of %zu is %02x, on the host %02x", what, i, b->bytes,
          (unsigned char)got[i], (unsigned char)b->host[i]);
    free(got);
}

void both_free(both *b) {
    free(b->host);
    if (b->ep)
        EP(MPIX_Ep_dealloc(b->ep, b->dev));
    else
        CU(cudaFree(b->dev));
}

/* ---- one side's calls ------------------------------------------------------------------------ */

void side_init(side *s) {
    MPIX_INIT(&s->r);
    MPIX_INIT(&s->c);
    MPIX_INIT(&s->in);
    MPIX_INIT(&s->out);
    MPIX_INIT(&s->ci);
    MPIX_INIT(&s->co);
    s->routing = MPIX_XFER_NULL;
}

/* A route that is not waited for is complete when a dispatch behind it is, and side_routed. */
void side_route(side *s, int counted, int form, cudaStream_t stream) {
    const MPIX_Ep_counts *c = counted ? &s->c : NULL;
    if (form == XFER)
        EP(MPIX_Ep_iroute(s->h, &s->r, c, &s->routing));
    else if (form == ENQUEUE)
        EP(MPIX_Ep_route_enqueue(s->h, &s->r, c, stream));
    else
        EP(MPIX_Ep_route(s->h, &s->r, c));
}

void side_routed(side *s) { EP(MPIX_Xfer_wait(&s->routing)); }

typedef struct recording {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} recording;

static void enqueued_begin(int form, cudaStream_t stream) {
    if (form == GRAPH)
        CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

/* What was enqueued since has run, a graph three times, without an error. */
static void enqueued_end(const side *s, int form, cudaStream_t stream) {
    recording rec;
    MPIX_Error e;
    MPIX_INIT(&e);
    if (form == GRAPH) {
        CU(cudaStreamEndCapture(stream, &rec.graph));
        CU(cudaGraphInstantiate(&rec.exec, rec.graph, 0));
        for (int i = 0; i < 3; i++)
            CU(cudaGraphLaunch(rec.exec, stream));
    }
    CU(cudaStreamSynchronize(stream));
    if (form == GRAPH) {
        CU(cudaGraphExecDestroy(rec.exec));
        CU(cudaGraphDestroy(rec.graph));
    }
    EP(MPIX_Ep_get_async_error(s->ep, &e));
    CHECK(e.kind == 0, "an enqueued call failed: %s", e.text);
}

void side_dispatch(side *s, int form, cudaStream_t stream) {
    MPIX_Xfer xfer;
    if (form == BLOCKING) {
        EP(MPIX_Ep_dispatch(s->h, &s->in, &s->out));
        return;
    }
    if (form == XFER) {
        EP(MPIX_Ep_idispatch(s->h, &s->in, &s->out, &xfer));
        EP(MPIX_Xfer_wait(&xfer));
        return;
    }
    enqueued_begin(form, stream);
    if (form == HALVES) {
        EP(MPIX_Ep_dispatch_begin_enqueue(s->h, &s->in, &s->out, stream));
        EP(MPIX_Ep_dispatch_end_enqueue(s->h, stream));
    } else {
        EP(MPIX_Ep_dispatch_enqueue(s->h, &s->in, &s->out, stream));
    }
    enqueued_end(s, form, stream);
}

void side_combine(side *s, int form, cudaStream_t stream) {
    MPIX_Xfer xfer;
    if (form == BLOCKING) {
        EP(MPIX_Ep_combine(s->h, &s->ci, &s->co));
        return;
    }
    if (form == XFER) {
        EP(MPIX_Ep_icombine(s->h, &s->ci, &s->co, &xfer));
        EP(MPIX_Xfer_wait(&xfer));
        return;
    }
    enqueued_begin(form, stream);
    if (form == HALVES) {
        EP(MPIX_Ep_combine_begin_enqueue(s->h, &s->ci, &s->co, stream));
        EP(MPIX_Ep_combine_end_enqueue(s->h, stream));
    } else {
        EP(MPIX_Ep_combine_enqueue(s->h, &s->ci, &s->co, stream));
    }
    enqueued_end(s, form, stream);
}
