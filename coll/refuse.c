/* refuse.c - what a path does not support is told here, with the nearest that does. */
#include "config.h"

#include "coll/path.h"

#include <stdio.h>

static const char *const layouts[] = {"MPIX_EP_COMPACT", "MPIX_EP_EXPERT", "MPIX_EP_SLOTS"};

const char *mpix_ep_layout_name(int layout) { return layouts[layout] + sizeof "MPIX_EP_" - 1; }

static int has(const mpix_ep_path *p, int layout, mpix_ep_feature feature) {
    return feature == MPIX_EP_FEATURES ? p->can[layout] != 0 : (int)(p->can[layout] >> feature & 1);
}

/* How far the other path and layout are from these: memory weighs most, then layout, then mode. */
static int distance(const mpix_ep_path *a, int la, const mpix_ep_path *b, int lb) {
    return 8 * (a->memkind != b->memkind) + 4 * (la != lb) + 2 * (a->mode != b->mode) + (a != b);
}

/* The nearest path with the feature, NULL: none has it. */
static const mpix_ep_path *nearest(const mpix_ep_path *path, int layout, mpix_ep_feature feature,
                                   int *in) {
    const mpix_ep_path *best = NULL;
    int least = 16;
    for (const mpix_ep_path *p = path - path->number; p->name; p++)
        for (int l = 0; l < MPIX_EP_LAYOUTS; l++)
            if (has(p, l, feature) && distance(path, layout, p, l) < least) {
                least = distance(path, layout, p, l);
                best = p;
                *in = l;
            }
    return best;
}

/* What the configuration of the nearest path has otherwise. */
static void differs(const mpix_ep_path *path, int layout, const mpix_ep_path *to, int to_layout,
                    char *text, size_t bytes) {
    int n = 0;
    text[0] = 0;
    if (to->memkind != path->memkind)
        n += snprintf(text + n, bytes - (size_t)n, ", config.memkind = %s",
                      to->memkind == MPIX_EP_HOST ? "MPIX_EP_HOST" : "MPIX_EP_CUDA");
    if (to->mode != path->mode)
        n += snprintf(text + n, bytes - (size_t)n, ", config.mode = %s",
                      to->mode == MPIX_EP_HT ? "MPIX_EP_HT" : "MPIX_EP_LL");
    if (to_layout != layout)
        n += snprintf(text + n, bytes - (size_t)n, ", config.layout = %s", layouts[to_layout]);
    if (to->copy_engine != path->copy_engine)
        snprintf(text + n, bytes - (size_t)n, ", config.num_sms %s MPIX_EP_SMS_NONE",
                 to->copy_engine ? "=" : "other than");
}

int mpix_ep_path_refuse(const mpix_ep_path *path, int layout, mpix_ep_feature feature,
                        const char *arg, const char *why) {
    char text[160];
    int in = layout;
    const mpix_ep_path *to = nearest(path, layout, feature, &in);
    const char *what = feature == MPIX_EP_FEATURES ? layouts[layout]
                                                   : mpix_ep_features[feature].what;
    const char *of = feature == MPIX_EP_FEATURES ? "" : layouts[layout];
    const char *sep = feature == MPIX_EP_FEATURES ? "" : " with ", *colon = why ? ": " : "";
    why = why ? why : "";
    if (!to)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, arg,
                         "the path %s%s%s does not support %s%s%s; no path does in this version",
                         path->name, sep, of, what, colon, why);
    differs(path, layout, to, in, text, sizeof text);
    return mpix_fail(MPIX_ERRK_UNSUPPORTED, arg,
                     "the path %s%s%s does not support %s%s%s; the nearest that does is %s%s",
                     path->name, sep, of, what, colon, why, to->name, text);
}
