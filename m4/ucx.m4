# ucx.m4 - libucp, and libuct for its settings: the transport `ucx`, a module of its own. 1.12 or
# later: memory keys and flushes as nbx calls, KEEPALIVE_INTERVAL.
AC_DEFUN([MPIX_CHECK_UCX], [
MPIX_DEPENDENCY([UCX], [ucx], [ucx], ["-lucp -luct -lucs"], [[#include <ucp/api/ucp.h>
#include <uct/api/uct.h>
#if UCP_API_VERSION < UCP_VERSION(1, 12)
#error too old
#endif]],
                [[ucp_am_handler_param_t param = {0};
                  return ucp_worker_set_am_recv_handler(0, &param) == UCS_OK && uct_config_get(0, 0, 0, 0) == UCS_OK && ucs_status_string(UCS_OK) != 0;]],
                [TCP and other networks])
])
