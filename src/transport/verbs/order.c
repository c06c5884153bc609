/*
 * order.c - which devices make the writes of one queue pair visible in the order of posting.
 *
 * The InfiniBand specification promises order between writes only through completion or a later receive. Many devices
 * give more: they execute the requests of a queue pair one after the other and write to memory with PCIe's strict
 * order, as long as relaxed ordering is not asked for (this transport never does, see verbs_access). That is an
 * assumption about hardware and therefore a list, which the parameter `ordered` overrides. It does not hold where a
 * fabric with adaptive routing delivers packets out of order and the device places them as they come (mlx5 with DDP,
 * which has to be asked for): there, and with devices that are not in the list, the counted form of signals serves,
 * which assumes nothing.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <stdio.h>

static const struct {
    uint32_t vendor, part_min, part_max;
    const char *name, *reason;
} order_list[] = {
    {0x02c9, 4099, 4103, "mlx4", "strict PCIe order"},
    {0x02c9, 4113, UINT32_MAX, "mlx5", "strict PCIe order without relaxed ordering"},
    {0x15b3, 4113, UINT32_MAX, "mlx5", "strict PCIe order without relaxed ordering"},
    {VERBS_RXE, 0, UINT32_MAX, "rxe", "software, one responder task per queue pair"},
};

int verbs_order_known(const struct ibv_device_attr *attr, char *why, size_t len) {
    for (size_t i = 0; i < sizeof order_list / sizeof *order_list; i++) {
        if (attr->vendor_id == order_list[i].vendor && attr->vendor_part_id >= order_list[i].part_min &&
            attr->vendor_part_id <= order_list[i].part_max) {
            snprintf(why, len, "ordered: %s, %s", order_list[i].name, order_list[i].reason);
            return 1;
        }
    }
    snprintf(why, len, "not ordered: vendor 0x%x part %u is not in the list (parameter ordered)", attr->vendor_id,
             attr->vendor_part_id);
    return 0;
}
