/* plot.h - curves of a benchmark as an SVG file: times over sizes, both on logarithmic scales; bars
 * if there is one size only. */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H
#include <stddef.h>

enum { PLOT_POINTS = 64, PLOT_LINES = 8 };

typedef struct plot_line {
    char name[64];
    int dashed; /* a baseline */
    int n;
    double x[PLOT_POINTS], y[PLOT_POINTS];
} plot_line;

typedef struct plot {
    char title[256], subtitle[256];
    const char *xlabel, *ylabel;
    int nlines;
    plot_line lines[PLOT_LINES];
} plot;

/* Adds a point to the line of that name, which is begun with its first one. What has no place or no
 * logarithm is left out. */
void plot_add(plot *p, const char *name, int dashed, double x, double y);
/* 0, or -1 with errno set. */
int plot_write(const plot *p, const char *path);
#endif
