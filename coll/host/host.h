/*
 * host.h - contexts in host memory: what the table of paths has of mode HT (path host-ht), and what
 * both modes share.
 */
#ifndef MPIX_COLL_HOST_HOST_H
#define MPIX_COLL_HOST_HOST_H
#include "coll/ep.h"

/* context.c. banks: of a context without proxied peers; tables: route exchanges all counts. */
size_t mpix_ep_bank_size(const MPIX_Ep_config *config, int64_t rows, int remote_peers,
                         int forward_hosts);
int mpix_ep_ht_banks(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                     int ranks_per_host, int tables, MPI_Count *bytes, mpix_ep_ctl_layout *layout);
int mpix_ep_ht_window_size(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                           int ranks_per_host, MPI_Count *bytes);
int mpix_ep_ht_layout(mpix_ep *ep, int proxied_peers);
void mpix_ep_ht_free(mpix_ep *ep);
void mpix_ep_ht_handle_free(struct mpix_ep_handle *handle, int with_context);
int mpix_ep_host_scratch(mpix_ep *ep); /* NO_MEM */
void mpix_ep_host_free(mpix_ep *ep);
int mpix_ep_host_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr);
int mpix_ep_host_dealloc(mpix_ep *ep, void *base);
int mpix_ep_host_find(mpix_ep *ep, const void *base, size_t bytes);

/* call.c. The host's calls with a mode's step, and those of mode HT. */
int mpix_ep_host_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                       const MPIX_Ep_counts *counts, const mpix_ep_form *form, mpix_ep_step *step);
int mpix_ep_host_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                          const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form,
                          mpix_ep_step *step);
int mpix_ep_host_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                         const MPIX_Ep_combine_out *out, const mpix_ep_form *form,
                         mpix_ep_step *step);
int mpix_ep_ht_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                     const MPIX_Ep_counts *counts, const mpix_ep_form *form);
int mpix_ep_ht_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                        const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form);
int mpix_ep_ht_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                       const MPIX_Ep_combine_out *out, const mpix_ep_form *form);
#endif
