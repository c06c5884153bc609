/* cells.c - the table of paths, read and held to its word. */
#include "cells.h"

#include <stdlib.h>
#include <string.h>

enum { CELLS = 1000 };

typedef struct cell {
    char path[32], layout[16], feature[32], state[8];
} cell;

static cell cells[CELLS];
static int ncells;
static const char *of;
int cells_tried;

void cells_read(const char *file, const char *path) {
    FILE *f = fopen(file, "r");
    REQUIRE(f, "%s can't be read", file);
    while (ncells < CELLS) {
        cell *c = &cells[ncells];
        if (fscanf(f, "%31s %15s %31s %7s", c->path, c->layout, c->feature, c->state) != 4)
            break;
        ncells++;
    }
    fclose(f);
    REQUIRE(ncells > 0 && ncells < CELLS, "%s has %d cells", file, ncells);
    of = path;
}

int cells_say(const char *layout, const char *feature) {
    for (int i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        if (strcmp(c->path, of) || strcmp(c->layout, layout) || strcmp(c->feature, feature))
            continue;
        return !strcmp(c->state, "yes") ? CELL_YES : !strcmp(c->state, "no") ? CELL_NO : CELL_MOOT;
    }
    return CELL_NONE;
}

int cells_hold(const char *layout, const char *feature, int code) {
    MPIX_Error e;
    int kind = -1, say = cells_say(layout, feature);
    cells_tried++;
    REQUIRE(say == CELL_YES || say == CELL_NO, "%s %s %s is no cell to be tried", of, layout,
            feature);
    MPIX_INIT(&e);
    if (code == MPI_SUCCESS)
        return CHECK(say == CELL_YES, "%s %s: %s is denied by the table, and the call succeeds", of,
                     layout, feature);
    MPIX_Error_kind(code, &kind);
    MPIX_Error_last(&e);
    if (say == CELL_YES)
        t_fail(__FILE__, __LINE__, "%s %s: %s is claimed by the table, and the call fails: %s", of,
               layout, feature, e.text);
    else
        CHECK(kind == MPIX_ERRK_UNSUPPORTED && strstr(e.text, of),
              "%s %s: %s is refused with kind %d: %s", of, layout, feature, kind, e.text);
    return 0;
}
