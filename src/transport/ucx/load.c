/*
 * load.c - the transport `ucx` in the library: loads the module that does the work when the
 * transport is opened first. What it opens carries the module's own table; this one serves to find
 * the transport, and for the sizes of its blobs.
 */
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "base/log.h"
#include "base/module.h"
#include "base/number.h"
#include "transport/ucx/module.h"

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static const mpix_net_ops *load_ops; /* the module's */
static char load_why[512];

/*
 * libucs puts handlers of its own in place of the program's when it is loaded, to print where it
 * was. Faults are the program's matter, which may have a handler, a debugger or a language's run
 * time that lives by them.
 */
static const int load_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { LOAD_SIGNALS = sizeof load_signals / sizeof *load_signals };

static void *load_keeping_handlers(void) {
    struct sigaction before[LOAD_SIGNALS], after;
    void *dl;

    for (int i = 0; i < LOAD_SIGNALS; i++)
        (void)sigaction(load_signals[i], NULL, &before[i]);
    dl = mpix_module_open("", "libmpixep_ucx.so", load_why, sizeof load_why);
    for (int i = 0; i < LOAD_SIGNALS; i++)
        if (sigaction(load_signals[i], NULL, &after) == 0 &&
            after.sa_sigaction != before[i].sa_sigaction)
            (void)sigaction(load_signals[i], &before[i], NULL);
    return dl;
}

static void load_module(void) {
    static const mpix_ucx_host host = {
        MPIX_UCX_ABI,   sizeof(mpix_boot), sizeof(mpix_params), sizeof(mpix_net_op), mpix_fail,
        mpix_fail_peer, mpix_log};
    void *dl = load_keeping_handlers();
    mpix_ucx_module_fn *get = dl ? (mpix_ucx_module_fn *)(uintptr_t)dlsym(dl, MPIX_UCX_SYMBOL)
                                 : NULL;

    if (!get)
        return;
    load_ops = get(&host);
    if (!load_ops)
        snprintf(load_why, sizeof load_why,
                 "libmpixep_ucx.so was built with another version of this library");
}

static int ucx_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                    mpix_net **net) {
    pthread_once(&load_once, load_module);
    if (!load_ops)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_transport",
                         "transport ucx can't be loaded: %s", load_why);
    /* libucp compares the words of its configuration by the locale's letters. */
    locale_t before = mpix_number_enter();
    int kind = load_ops->open(boot, params, want, net);
    mpix_number_leave(before);
    return kind;
}

static int ucx_present(char *why, size_t len) {
    pthread_once(&load_once, load_module);
    if (!load_ops)
        snprintf(why, len, "%s", load_why);
    return load_ops != NULL;
}

const mpix_net_ops mpix_net_ucx = {
    .name = "ucx",
    .address_bytes = MPIX_UCX_ADDRESS_BYTES,
    .key_bytes = MPIX_UCX_KEY_BYTES,
    .present = ucx_present,
    .open = ucx_open,
};
