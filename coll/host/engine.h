/*
 * engine.h - what the files of the engine offer each other: engine.c (progress and waiting), pool.c
 * (memory of calls), watch.c (deaths and time limits). All is called with the context's lock.
 */
#ifndef MPIX_COLL_HOST_ENGINE_H
#define MPIX_COLL_HOST_ENGINE_H
#include "coll/ep.h"

/* pool.c. give: a call that nobody uses any more. alloc: NULL without memory. */
mpix_ep_call *mpix_ep_call_alloc(const mpix_ep *ep);
void mpix_ep_call_give(mpix_ep *ep, mpix_ep_call *call);

/* engine.c. told: the kind of a failure that a peer has told of, with the thread's error, or 0. */
void mpix_ep_progress_all(mpix_ep *ep);
int mpix_ep_told(mpix_ep *ep);

/* watch.c. Deaths are looked for now and then; what fails a context ends its calls. */
void mpix_ep_check_deaths(mpix_ep *ep);
void mpix_ep_time_out(mpix_ep *ep);
#endif
