/* ep_faults.h - what the files of ep_faults share. */
#ifndef TESTS_EP_FAULTS_H
#define TESTS_EP_FAULTS_H
#include "call.h"

extern int victim;
extern const char *extra; /* info keys of the next contexts: "name=value name=value" */

double now(void);
int try_make(t_ctx *ctx, double timeout);
void make(t_ctx *ctx, t_handle *handle, double timeout);
t_call *prepare(t_handle *handle, int kind);
void all_well(t_handle *handle);

void injected(void); /* over the transport chaos */
#endif
