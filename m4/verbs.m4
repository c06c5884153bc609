# verbs.m4 - libibverbs: the transport `verbs`, RDMA devices. The program asks for what came last:
# GID tables with types (rdma-core 32) and registration of dma-buf (rdma-core 34).
AC_DEFUN([MPIX_CHECK_VERBS], [
MPIX_DEPENDENCY([VERBS], [verbs], [libibverbs], [-libverbs], [[#include <infiniband/verbs.h>]],
                [[struct ibv_gid_entry entry;
                  return ibv_query_gid_table(0, &entry, 1, 0) > 0 && ibv_reg_dmabuf_mr(0, 0, 0, 0, 0, 0) && ibv_is_fork_initialized();]],
                [RDMA devices])
])
