/* p2p_thread.c - the parameter progress = thread: a thread that makes progress on an object while
 * its rank computes. */
#include "config.h"

#include "p2p/p2p.h"

#include "base/thread.h"

static void *thread_main(void *arg) {
    mpix_p2p *p2p = arg;
    mpix_wait wait;
    /* Its own waiter rings nobody: it is woken through the doorbell by peers that map our window,
     * and by time otherwise. */
    mpix_doorbell *bell = mpix_proxy_rings(p2p->proxy) ? &p2p->ctl->bell : NULL;

    mpix_wait_start(&wait, bell, p2p->params.spin_us, p2p->oversubscribed);
    while (!atomic_load_explicit(&p2p->stop, memory_order_acquire)) {
        pthread_mutex_lock(&p2p->lock);
        int did = p2p->failed ? 0 : p2p_progress(p2p);
        pthread_mutex_unlock(&p2p->lock);
        if (did) {
            mpix_wait_end(&wait);
            mpix_wait_start(&wait, bell, p2p->params.spin_us, p2p->oversubscribed);
        } else {
            mpix_wait_pause(&wait);
        }
    }
    mpix_wait_end(&wait);
    return NULL;
}

int p2p_thread_start(mpix_p2p *p2p) {
    int kind = mpix_thread_start(&p2p->thread, "mpixp2p-progres",
                                 "the progress thread (parameter progress = thread)", thread_main,
                                 p2p);

    p2p->threaded = !kind;
    return kind;
}

void p2p_thread_stop(mpix_p2p *p2p) {
    if (!p2p->threaded)
        return;
    atomic_store_explicit(&p2p->stop, 1, memory_order_release);
    mpix_doorbell_ring(&p2p->ctl->bell);
    pthread_join(p2p->thread, NULL);
    p2p->threaded = 0;
}
