/* net.c - the network transports of this build, by name. */
#include "config.h"

#include "transport/net.h"

#include <string.h>

extern const mpix_net_ops mpix_net_chaos, mpix_net_null, mpix_net_shmem, mpix_net_ucx;
#ifdef HAVE_VERBS
extern const mpix_net_ops mpix_net_verbs;
#endif

/* A transport over another has a name that ends with a colon; the other's follows, and it finds it
 * by itself in params->transport. */
static const struct {
    const char *name;
    const mpix_net_ops *ops;
    int tests; /* it serves tests only */
} net_table[] = {
#ifdef HAVE_VERBS
    {"verbs", &mpix_net_verbs, 0},
#endif
    {"ucx", &mpix_net_ucx, 0},     {"shmem", &mpix_net_shmem, 0},
    {"null", &mpix_net_null, 1},   {"chaos:", &mpix_net_chaos, 1},
};

const mpix_net_ops *mpix_net_find(const char *name) {
    for (size_t i = 0; i < sizeof net_table / sizeof *net_table; i++) {
        size_t len = strlen(net_table[i].name);
        if (net_table[i].name[len - 1] == ':'
                ? strncmp(name, net_table[i].name, len) == 0 && mpix_net_find(name + len) != NULL
                : strcmp(name, net_table[i].name) == 0)
            return net_table[i].ops;
    }
    return NULL;
}

const char *mpix_net_names(int tests) {
    static char all[2][128]; /* always written with the same bytes */
    char *names = all[tests];
    size_t used = 0;

    for (size_t i = 0; i < sizeof net_table / sizeof *net_table; i++) {
        size_t len = strlen(net_table[i].name);
        if (net_table[i].tests && !tests)
            continue;
        if (used + len + 4 >= sizeof all[0])
            break;
        if (used) {
            names[used++] = ',';
            names[used++] = ' ';
        }
        memcpy(names + used, net_table[i].name, len);
        used += len;
    }
    return names;
}
