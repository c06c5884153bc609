/*
 * plot.c - curves as SVG, drawn here so that nothing else is needed to look at a result. Everything
 * is in user units of one pixel; the scales are logarithmic, with a line per decade of times and
 * per some powers of two of sizes.
 */
#include "config.h"

#include "bench/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 820,
    HEIGHT = 480,
    LEFT = 80,
    RIGHT = 230,
    TOP = 64,
    BOTTOM = 60,
    BAR = 46 /* from bar to bar */
};

/* Told apart by people who see few colours. */
static const char *const plot_colours[PLOT_LINES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#000000", "#999999"};

typedef struct plot_scale {
    double lo, hi;   /* of log2 x or log10 y */
    double from, to; /* pixels */
} plot_scale;

void plot_add(plot *p, const char *name, int dashed, double x, double y) {
    plot_line *line = NULL;
    if (!(x > 0) || !(y > 0) || !isfinite(x) || !isfinite(y))
        return;
    for (int i = 0; i < p->nlines && !line; i++)
        if (strcmp(p->lines[i].name, name) == 0)
            line = &p->lines[i];
    if (!line) {
        if (p->nlines == PLOT_LINES)
            return;
        line = &p->lines[p->nlines++];
        snprintf(line->name, sizeof line->name, "%s", name);
        line->dashed = dashed;
    }
    if (line->n < PLOT_POINTS) {
        line->x[line->n] = x;
        line->y[line->n++] = y;
    }
}

static void plot_text(FILE *f, double x, double y, const char *style, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        default: fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
        }
    }
    fputs("</text>\n", f);
}

static double plot_at(const plot_scale *s, double v) {
    return s->from + (v - s->lo) / (s->hi - s->lo) * (s->to - s->from);
}

static void plot_size(char *buf, size_t len, double v) {
    static const char units[] = " KMGT";
    int u = 0;
    for (; v >= 1024 && u < 4; u++)
        v /= 1024;
    snprintf(buf, len, "%.4g%.*s", v, u > 0, &units[u]);
}

static void plot_time(char *buf, size_t len, double us) {
    if (us >= 1e6)
        snprintf(buf, len, "%.4g s", us / 1e6);
    else if (us >= 1e3)
        snprintf(buf, len, "%.4g ms", us / 1e3);
    else if (us >= 1)
        snprintf(buf, len, "%.4g \xc2\xb5s", us);
    else
        snprintf(buf, len, "%.4g ns", us * 1e3);
}

/* The scales of all points; a decade or a doubling at least. */
static void plot_scales(const plot *p, plot_scale *sx, plot_scale *sy) {
    *sx = (plot_scale){INFINITY, -INFINITY, LEFT, WIDTH - RIGHT};
    *sy = (plot_scale){INFINITY, -INFINITY, HEIGHT - BOTTOM, TOP};
    for (int l = 0; l < p->nlines; l++) {
        for (int i = 0; i < p->lines[l].n; i++) {
            sx->lo = fmin(sx->lo, log2(p->lines[l].x[i]));
            sx->hi = fmax(sx->hi, log2(p->lines[l].x[i]));
            sy->lo = fmin(sy->lo, floor(log10(p->lines[l].y[i])));
            sy->hi = fmax(sy->hi, ceil(log10(p->lines[l].y[i])));
        }
    }
    if (sy->hi <= sy->lo)
        sy->hi = sy->lo + 1;
    if (sx->hi <= sx->lo)
        sx->hi = sx->lo + 1;
}

static void plot_axes(FILE *f, const plot *p, const plot_scale *sx, const plot_scale *sy) {
    char text[64];
    int step = 1;
    while ((sx->hi - sx->lo) / step > 9)
        step++;
    for (double v = ceil(sx->lo); v <= sx->hi + 1e-9; v += step) {
        double x = plot_at(sx, v);
        fprintf(f, "<path d=\"M%.1f %d V%d\" stroke=\"#ddd\"/>\n", x, TOP, HEIGHT - BOTTOM);
        plot_size(text, sizeof text, exp2(v));
        plot_text(f, x, HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", text);
    }
    for (double v = sy->lo; v <= sy->hi + 1e-9; v++) {
        double y = plot_at(sy, v);
        fprintf(f, "<path d=\"M%d %.1f H%d\" stroke=\"#ccc\"/>\n", LEFT, y, WIDTH - RIGHT);
        plot_time(text, sizeof text, pow(10, v));
        plot_text(f, LEFT - 8, y + 4, "text-anchor=\"end\"", text);
        for (int k = 2; k < 10 && v < sy->hi; k++)
            fprintf(f, "<path d=\"M%d %.1f h4\" stroke=\"#999\"/>\n", LEFT,
                    plot_at(sy, v + log10(k)));
    }
    fprintf(f, "<path d=\"M%d %d V%d H%d\" stroke=\"#333\" fill=\"none\"/>\n", LEFT, TOP,
            HEIGHT - BOTTOM, WIDTH - RIGHT);
    plot_text(f, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16, "text-anchor=\"middle\"", p->xlabel);
    fprintf(f, "<g transform=\"translate(20 %d) rotate(-90)\">", (TOP + HEIGHT - BOTTOM) / 2);
    plot_text(f, 0, 0, "text-anchor=\"middle\"", p->ylabel);
    fputs("</g>\n", f);
}

static void plot_curves(FILE *f, const plot *p) {
    plot_scale sx, sy;
    plot_scales(p, &sx, &sy);
    plot_axes(f, p, &sx, &sy);
    for (int l = 0; l < p->nlines; l++) {
        const plot_line *line = &p->lines[l];
        const char *dash = line->dashed ? " stroke-dasharray=\"6 4\"" : "";
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"",
                plot_colours[l], dash);
        for (int i = 0; i < line->n; i++)
            fprintf(f, "%s%.1f,%.1f", i ? " " : "", plot_at(&sx, log2(line->x[i])),
                    plot_at(&sy, log10(line->y[i])));
        fputs("\"/>\n", f);
        for (int i = 0; i < line->n; i++)
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                    plot_at(&sx, log2(line->x[i])), plot_at(&sy, log10(line->y[i])),
                    plot_colours[l]);
        int y = TOP + 10 + 22 * l;
        fprintf(f, "<path d=\"M%d %d h28\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
                WIDTH - RIGHT + 16, y - 4, plot_colours[l], dash);
        plot_text(f, WIDTH - RIGHT + 52, y, "", line->name);
    }
}

/* One size: a bar for each line, from zero. */
static void plot_bars(FILE *f, const plot *p) {
    double most = 0, room = WIDTH - LEFT - RIGHT;
    char text[64];
    for (int l = 0; l < p->nlines; l++)
        most = fmax(most, p->lines[l].y[0]);
    for (int l = 0; l < p->nlines; l++) {
        double y = TOP + 14 + BAR * l, width = p->lines[l].y[0] / most * room;
        fprintf(f, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"28\" fill=\"%s\"%s/>\n",
                LEFT + 110, y, width, plot_colours[l / 2 * 2 % PLOT_LINES],
                p->lines[l].dashed ? " fill-opacity=\"0.45\"" : "");
        plot_text(f, LEFT + 102, y + 19, "text-anchor=\"end\"", p->lines[l].name);
        plot_time(text, sizeof text, p->lines[l].y[0]);
        plot_text(f, LEFT + 118 + width, y + 19, "", text);
    }
    plot_text(f, LEFT + 110, TOP + 14 + BAR * p->nlines + 16, "", p->ylabel);
}

int plot_write(const plot *p, const char *path) {
    FILE *f = fopen(path, "w");
    int one = p->nlines > 0;
    if (!f)
        return -1;
    for (int l = 0; l < p->nlines; l++)
        one &= p->lines[l].n == 1 && p->lines[l].x[0] == p->lines[0].x[0];
    int height = one ? TOP + 14 + BAR * p->nlines + 40 : HEIGHT; /* bars need no more */
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n<rect "
            "width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, height, WIDTH, height);
    plot_text(f, LEFT, 26, "font-size=\"17\" font-weight=\"bold\"", p->title);
    plot_text(f, LEFT, 46, "fill=\"#555\"", p->subtitle);
    if (one)
        plot_bars(f, p);
    else if (p->nlines)
        plot_curves(f, p);
    fputs("</svg>\n", f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed ? -1 : 0;
}
