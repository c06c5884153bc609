# mpix_hwloc.m4 - hwloc: cache sizes, NUMA nodes and thread placement. Version 2 or later.
AC_DEFUN([MPIX_CHECK_HWLOC], [
MPIX_DEPENDENCY([HWLOC], [hwloc], [hwloc], [-lhwloc], [[#include <hwloc.h>
#if HWLOC_API_VERSION < 0x20000
#error "hwloc 2 is needed"
#endif]], [[hwloc_topology_t t; return hwloc_topology_init(&t);]], [knowledge of caches and NUMA beyond sysconf])
])
