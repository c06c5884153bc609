/* thread.c - starting threads of the library. */
#include "config.h"

#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/trace.h"

typedef struct thread_card {
    void *(*main)(void *);
    void *arg;
    char name[16];
} thread_card;

/* The name is set from within: then it is there before the first event of the thread is traced. */
static void *thread_begin(void *arg) {
    const thread_card card = *(thread_card *)arg;

    free(arg);
    (void)pthread_setname_np(pthread_self(), card.name);
    mpix_trace_thread(card.name);
    return card.main(card.arg);
}

int mpix_thread_start(pthread_t *thread, const char *name, const char *what, void *(*main)(void *),
                      void *arg) {
    thread_card *card = malloc(sizeof *card);
    sigset_t all, old;
    int err;

    if (!card)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory to start %s", what);
    *card = (thread_card){.main = main, .arg = arg};
    snprintf(card->name, sizeof card->name, "%s", name);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(thread, NULL, thread_begin, card);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        free(card);
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "%s can't be started", what);
    }
    return 0;
}
