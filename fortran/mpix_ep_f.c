/*
 * mpix_ep_f.c - calls of the Fortran module that take MPI objects: Fortran's handles become C's.
 */
#include "config.h"

#include "mpix_ep.h"
#include "mpix_p2p.h"

#define SHIM __attribute__((visibility("default"))) int

SHIM mpix_f_Ep_create(MPI_Fint comm, const MPIX_Ep_config *config, MPI_Fint info, MPIX_Ep *ep);
SHIM mpix_f_Ep_create(MPI_Fint comm, const MPIX_Ep_config *config, MPI_Fint info, MPIX_Ep *ep) {
    return MPIX_Ep_create(MPI_Comm_f2c(comm), config, MPI_Info_f2c(info), ep);
}

SHIM mpix_f_Ep_set_errhandler(MPIX_Ep ep, MPI_Fint errhandler);
SHIM mpix_f_Ep_set_errhandler(MPIX_Ep ep, MPI_Fint errhandler) {
    return MPIX_Ep_set_errhandler(ep, MPI_Errhandler_f2c(errhandler));
}

SHIM mpix_f_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Fint info, void *baseptr);
SHIM mpix_f_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Fint info, void *baseptr) {
    return MPIX_Ep_alloc(ep, bytes, MPI_Info_f2c(info), baseptr);
}

SHIM mpix_f_P2p_create(MPI_Fint comm, MPI_Fint info, MPIX_P2p *p2p);
SHIM mpix_f_P2p_create(MPI_Fint comm, MPI_Fint info, MPIX_P2p *p2p) {
    return MPIX_P2p_create(MPI_Comm_f2c(comm), MPI_Info_f2c(info), p2p);
}

SHIM mpix_f_P2p_set_errhandler(MPIX_P2p p2p, MPI_Fint errhandler);
SHIM mpix_f_P2p_set_errhandler(MPIX_P2p p2p, MPI_Fint errhandler) {
    return MPIX_P2p_set_errhandler(p2p, MPI_Errhandler_f2c(errhandler));
}

SHIM mpix_f_P2p_alloc(MPIX_P2p p2p, MPI_Count bytes, MPI_Fint info, void *baseptr,
                      MPIX_P2p_mem *mem);
SHIM mpix_f_P2p_alloc(MPIX_P2p p2p, MPI_Count bytes, MPI_Fint info, void *baseptr,
                      MPIX_P2p_mem *mem) {
    return MPIX_P2p_alloc(p2p, bytes, MPI_Info_f2c(info), baseptr, mem);
}

SHIM mpix_f_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Fint info, MPIX_P2p_mem *mem);
SHIM mpix_f_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Fint info, MPIX_P2p_mem *mem) {
    return MPIX_P2p_reg(p2p, base, bytes, MPI_Info_f2c(info), mem);
}

/* What C thinks of the types, in the order in which they are defined: sizes, for the test
 * of the module. */
SHIM mpix_f_size(int i);
SHIM mpix_f_size(int i) {
    static const size_t sizes[] = {sizeof(MPIX_Error),           sizeof(MPIX_Ep_rows),
                                   sizeof(MPIX_Ep_config),       sizeof(MPIX_Ep_routing),
                                   sizeof(MPIX_Ep_counts),       sizeof(MPIX_Ep_dispatch_in),
                                   sizeof(MPIX_Ep_dispatch_out), sizeof(MPIX_Ep_combine_in),
                                   sizeof(MPIX_Ep_combine_out),  sizeof(MPIX_Ep_peer),
                                   sizeof(MPIX_P2p_iov)};
    return i >= 0 && i < (int)(sizeof sizes / sizeof *sizes) ? (int)sizes[i] : -1;
}
