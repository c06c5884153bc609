/*
 * cells.h - the table of paths as `mpix_ep_info --paths=cells` prints it, for the programs of
 * tests/paths.sh: what the library claims, and a cell tried against its claim.
 */
#ifndef TESTS_CELLS_H
#define TESTS_CELLS_H
#include "harness.h"

enum { CELL_NONE, CELL_NO, CELL_MOOT, CELL_YES };

/* Reads the file. path: whose cells are meant from here on. */
void cells_read(const char *file, const char *path);
/* What the table says of a feature in a layout ("COMPACT", ...); CELL_NONE: nothing. */
int cells_say(const char *layout, const char *feature);
/* Checks the code of a call that asks for it, on every rank: success where the table says yes, else
 * UNSUPPORTED with the path's name. Gives 1 if the call succeeded as it should. */
int cells_hold(const char *layout, const char *feature, int code);
/* How many cells were tried; the verdict names it. */
extern int cells_tried;
#endif
