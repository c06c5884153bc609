/* info.h - the parts of mpix_ep_info. */
#ifndef MPIX_TOOLS_INFO_H
#define MPIX_TOOLS_INFO_H

#include "base/param.h"
#include "mpix_ep.h"

/* Prints the build, the processor and what limits memory. */
void info_build(void);
void info_machine(const mpix_params *params);
void info_params(const mpix_params *params, int all); /* all: with those for developers */
/* Prints the table of paths. Returns an exit status. */
int info_paths(const char *how);
/* Prints what MPIX_Ep_window_size says. Returns an exit status. */
int info_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host);
/* Collective over MPI_COMM_WORLD; rank 0 prints. Return an exit status, equal on all ranks. */
int info_matrix(const mpix_params *params);
int info_selftest(void);

/* "12.5 MiB" */
const char *info_bytes(unsigned long long bytes, char *buf, size_t len);
/* Says on standard error what the last error of the library was, unless the log has said so. */
void info_error(const char *what);

/* Prints a matrix of one word per pair of ranks, cell[from * size + to], under a heading. */
void info_print_pairs(const char *heading, int size,
                      const char *(*word)(const void *cells, int from, int to, int size),
                      const void *cells);

#endif
