/*
 * order.c - which devices make the writes of one queue pair visible in the order of posting.
 *
 * The InfiniBand specification promises order between writes only through completion or a later
 * receive. Many devices give more: they execute the requests of a queue pair one after the other
 * and write to memory with PCIe's strict order, as long as relaxed ordering is not asked for (this
 * transport never does, see verbs_access). That is an assumption about hardware and therefore a
 * list, which the parameter `ordered` overrides. It does not hold where a fabric with adaptive
 * routing delivers packets out of order and the device places them as they come. On mlx5 a queue
 * pair asks for that, which this transport does not; but an administrator can force it on all queue
 * pairs in the device's firmware, and libibverbs has no call that tells. So the assumption is said
 * once, as a warning, where it is made. There, and with devices that are not in the list, the
 * counted form of signals serves, which assumes nothing.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/log.h"

/* forced: its firmware can be told to give up the order. */
static const struct {
    uint32_t vendor, part_min, part_max;
    int forced;
    const char *name, *reason;
} order_list[] = {
    {0x02c9, 4099, 4103, 0, "mlx4", "strict PCIe order"},
    {0x02c9, 4113, UINT32_MAX, 1, "mlx5", "strict PCIe order without relaxed ordering"},
    {0x15b3, 4113, UINT32_MAX, 1, "mlx5", "strict PCIe order without relaxed ordering"},
    {VERBS_RXE, 0, UINT32_MAX, 0, "rxe", "software, one responder task per queue pair"},
};
enum { ORDER_LISTED = sizeof order_list / sizeof *order_list };

static int order_find(const struct ibv_device_attr *attr) {
    int i = 0;

    while (i < ORDER_LISTED && (attr->vendor_id != order_list[i].vendor ||
                                attr->vendor_part_id < order_list[i].part_min ||
                                attr->vendor_part_id > order_list[i].part_max))
        i++;
    return i;
}

int verbs_order_known(const struct ibv_device_attr *attr, char *why, size_t len) {
    int i = order_find(attr);

    if (i < ORDER_LISTED)
        snprintf(why, len, "ordered: %s, %s", order_list[i].name, order_list[i].reason);
    else
        snprintf(why, len,
                 "not ordered: vendor 0x%x part %u is not in the list (parameter ordered)",
                 attr->vendor_id, attr->vendor_part_id);
    return i < ORDER_LISTED;
}

void verbs_order_warn(const struct ibv_device_attr *attr, const char *device) {
    static atomic_flag warned = ATOMIC_FLAG_INIT; /* once per process */
    int i = order_find(attr);

    if (i < ORDER_LISTED && order_list[i].forced && !atomic_flag_test_and_set(&warned))
        mpix_log(MPIX_LOG_WARN,
                 "verbs: %s (%s) is assumed to write in the order of posting, which is not so if "
                 "its firmware forces adaptive routing on: then set "
                 "mpix_ep_ordered=no (counted signals); mpix_ep_ordered=yes confirms the order and "
                 "silences this",
                 device, order_list[i].name);
}
