/*
 * place.h - which ranks can share memory: found when a communicator's description is made.
 */
#ifndef MPIX_BOOT_PLACE_H
#define MPIX_BOOT_PLACE_H
#include "boot/boot.h"

typedef struct mpix_boot_place mpix_boot_place;

/* What the search needs; local, NULL: no memory. So all ranks can agree before they begin. */
mpix_boot_place *mpix_boot_place_new(int size);
void mpix_boot_place_free(mpix_boot_place *place);
/* Fills in boot what is known of each rank's process and host. Collective. */
int mpix_boot_place_find(mpix_boot *boot, mpix_boot_place *place);
#endif
