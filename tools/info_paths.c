/*
 * info_paths.c - the table of paths: as a matrix for people, as the tables of README and the
 * manual, and cell by cell for tests.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coll/path.h"
#include "tools/info.h"

enum { WORDS = 40 };

/* What a path says of a feature: in all its layouts, in one, in none, or that nobody can ask. */
static const char *cell(const mpix_ep_path *p, int feature) {
    const char *one = NULL;
    int layouts = 0, can = 0, moot = 0;

    for (int l = 0; l < MPIX_EP_LAYOUTS; l++) {
        if (!p->can[l])
            continue;
        layouts++;
        moot += p->moot[l] >> feature & 1;
        if (p->can[l] >> feature & 1) {
            one = mpix_ep_layout_name(l);
            can++;
        }
    }
    return can == layouts ? "yes" : can ? one : moot == layouts ? "-" : "no";
}

/* Two layouts at most; the one that is the mode's own comes first. */
static const char *layouts(const mpix_ep_path *p, char text[WORDS]) {
    static const int order[] = {MPIX_EP_COMPACT, MPIX_EP_SLOTS, MPIX_EP_EXPERT};
    int n = 0;

    for (int i = 0; i < MPIX_EP_LAYOUTS; i++)
        if (p->can[order[i]])
            n += snprintf(text + n, (size_t)(WORDS - n), "%s%s", n ? ", " : "",
                          mpix_ep_layout_name(order[i]));
    return text;
}

static int can(const mpix_ep_path *p, int feature) {
    uint32_t bits = 0;

    for (int l = 0; l < MPIX_EP_LAYOUTS; l++)
        bits |= p->can[l];
    return (int)(bits >> feature & 1);
}

static const char *forms(const mpix_ep_path *p) {
    if (!can(p, MPIX_EP_CAN_STREAM))
        return "blocking, nonblocking";
    return can(p, MPIX_EP_CAN_CAPTURE) ? "all" : "all, no graphs";
}

static const char *converts(const mpix_ep_path *p) {
    if (!can(p, MPIX_EP_CAN_QUANTISE))
        return "-";
    return can(p, MPIX_EP_CAN_NARROW) ? "narrower, fp8" : "fp8";
}

/* README's. */
static void print_summary(void) {
    char text[WORDS];

    puts("| path | layouts | peers | hops | forms of calls | dispatch converts to |\n"
         "| --- | --- | --- | --- | --- | --- |");
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
        printf("| %s | %s | %s | %s | %s | %s |\n", p->name, layouts(p, text),
               can(p, MPIX_EP_CAN_PROXIED) ? "mapped, proxied" : "mapped",
               can(p, MPIX_EP_CAN_TWO_HOPS) ? "1, 2" : "1", forms(p), converts(p));
}

/* Lines of their own, each behind `indent`. */
static void print_limits(const mpix_ep_path *p, const char *indent) {
    const mpix_ep_limits *l = &p->limits;

    if (l->ranks)
        printf("%sAt most %d ranks.\n", indent, l->ranks);
    if (l->rows)
        printf("%sAt most %" PRId64 " rows in a batch.\n", indent, l->rows);
    if (l->expert_topk)
        printf("%sIn EXPERT max_topk is at most %d.\n", indent, l->expert_topk);
    if (l->expert_places)
        printf("%sIn EXPERT (experts of a rank + 1) * (ranks + 1) is at most %" PRId64 ".\n",
               indent, l->expert_places);
    if (l->window)
        printf("%sA handle takes less than %" PRIu64 " GiB for proxied peers.\n", indent,
               l->window >> 30);
}

/* The manual's: what each path is, then features by paths. The dashes are the columns' widths. */
static void print_matrix(void) {
    char text[WORDS];

    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++) {
        printf("* **%s** (%s).\n  %s\n", p->name, layouts(p, text), p->what);
        print_limits(p, "  ");
    }
    printf("\n| |");
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
        printf(" %s |", p->name);
    printf("\n| ---------------------------- |");
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
        printf(" ------- |");
    puts("");
    for (int f = 0; f < MPIX_EP_FEATURES; f++) {
        printf("| %s |", mpix_ep_features[f].what);
        for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
            printf(" %s |", cell(p, f));
        puts("");
    }
}

/* A row of the matrix: what, then a word of each path. The last word is not padded. */
static void print_row(const char *what, int feature) {
    printf("%-50s", what);
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
        printf(" %-*s", p[1].name ? (int)strlen(p->name) : 0,
               feature < 0 ? p->name : cell(p, feature));
    puts("");
}

static void print_text(void) {
    char text[WORDS];

    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++) {
        printf("%s (%s): %s\n", p->name, layouts(p, text), p->what);
        print_limits(p, "    ");
    }
    puts("");
    print_row("", -1);
    for (int f = 0; f < MPIX_EP_FEATURES; f++)
        print_row(mpix_ep_features[f].what, f);
    puts("\nyes: in each layout of the path; a layout's name: in that one; no: "
         "MPIX_ERRK_UNSUPPORTED; "
         "-: nobody can ask for it.");
}

static void print_cells(void) {
    for (const mpix_ep_path *p = mpix_ep_paths; p->name; p++)
        for (int l = 0; l < MPIX_EP_LAYOUTS; l++) {
            printf("%s %s layout %s\n", p->name, mpix_ep_layout_name(l), p->can[l] ? "yes" : "no");
            for (int f = 0; p->can[l] && f < MPIX_EP_FEATURES; f++)
                printf("%s %s %s %s\n", p->name, mpix_ep_layout_name(l), mpix_ep_features[f].name,
                       p->can[l] >> f & 1    ? "yes"
                       : p->moot[l] >> f & 1 ? "moot"
                                             : "no");
        }
}

int info_paths(const char *how) {
    static const struct {
        const char *name;
        void (*print)(void);
    } all[] = {{"text", print_text},
               {"summary", print_summary},
               {"matrix", print_matrix},
               {"cells", print_cells}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(how, all[i].name) == 0) {
            all[i].print();
            return 0;
        }
    fprintf(stderr, "mpix_ep_info: --paths=%s: expected text, summary, matrix or cells\n", how);
    return 2;
}
