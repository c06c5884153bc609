/* desc.c - descriptors. The argument is in desc.h. */
#include "config.h"

#include "proxy/desc.h"

#include <stdlib.h>

int mpix_descs_init(mpix_descs *descs, uint32_t n) {
    descs->n = n;
    descs->table = calloc(n, sizeof *descs->table);
    if (!descs->table)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %u descriptors of commands", n);
    for (uint32_t i = 0; i < n; i++)
        atomic_init(&descs->table[i].next, i + 1 < n ? i + 2 : 0);
    atomic_init(&descs->top, n ? 1 : 0);
    return 0;
}

void mpix_descs_free(mpix_descs *descs) {
    free(descs->table);
    descs->table = NULL;
}

/* Acquire: the descriptor's last user has done with it, see the release in put. */
int64_t mpix_descs_get(mpix_descs *descs) {
    uint64_t top = atomic_load_explicit(&descs->top, memory_order_acquire), next;

    do {
        if ((uint32_t)top == 0)
            return -1;
        next = atomic_load_explicit(&descs->table[(uint32_t)top - 1].next, memory_order_relaxed);
        next |= ((top >> 32) + 1) << 32;
    } while (!atomic_compare_exchange_weak_explicit(&descs->top, &top, next, memory_order_acquire,
                                                    memory_order_acquire));
    return (int64_t)(uint32_t)top - 1;
}

void mpix_descs_put(mpix_descs *descs, uint32_t index) {
    uint64_t top = atomic_load_explicit(&descs->top, memory_order_relaxed), next;

    do {
        atomic_store_explicit(&descs->table[index].next, (uint32_t)top, memory_order_relaxed);
        next = (((top >> 32) + 1) << 32) | (index + 1);
    } while (!atomic_compare_exchange_weak_explicit(&descs->top, &top, next, memory_order_release,
                                                    memory_order_relaxed));
}
