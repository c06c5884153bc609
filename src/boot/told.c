/* told.c - the word by which a failed object tells its peers, and what they make of it. */
#include "config.h"

#include "boot/boot.h"

/* kind in bits 0..7, the rank that is blamed + 1 in 8..35, the rank that tells + 1 in 36..63. */
enum { BLAMED_AT = 8, TELLER_AT = 36 };
#define RANK_MASK ((UINT64_C(1) << 28) - 1)

uint64_t mpix_boot_tell(const mpix_boot *boot, int kind, const MPIX_Error *error) {
    int blamed = error->rank >= 0 && error->rank < boot->size ? error->rank : -1;

    return (uint64_t)kind | (uint64_t)(blamed + 1) << BLAMED_AT |
           (uint64_t)(boot->rank + 1) << TELLER_AT;
}

/* The word came from another process: it is taken as it is only where it makes sense. */
int mpix_boot_told(const mpix_boot *boot, uint64_t word, const char *object) {
    int kind = (int)(word & 255), blamed = (int)(word >> BLAMED_AT & RANK_MASK) - 1,
        teller = (int)(word >> TELLER_AT) - 1;

    if (kind < 1 || kind > MPIX_ERRK_INTERNAL || teller < 0 || teller >= boot->size ||
        blamed >= boot->size)
        return mpix_fail(MPIX_ERRK_REMOTE, NULL, "%s has failed on another rank", object);
    if (blamed < 0 ||
        (kind != MPIX_ERRK_PEER && kind != MPIX_ERRK_TIMEOUT && kind != MPIX_ERRK_TRANSPORT))
        return mpix_fail_peer(MPIX_ERRK_REMOTE, teller, boot->hostnames[teller],
                              "%s has failed with %s on rank %d on %s", object,
                              mpix_kind_name(kind), teller, boot->hostnames[teller]);
    /* an error names another rank: the one that this rank should have answered */
    if (blamed == boot->rank)
        return mpix_fail_peer(kind, teller, boot->hostnames[teller],
                              "%s has failed with %s on rank %d on %s, which waited for this rank",
                              object, mpix_kind_name(kind), teller, boot->hostnames[teller]);
    return mpix_fail_peer(kind, blamed, boot->hostnames[blamed],
                          "%s has failed with %s on rank %d on %s, which waited for rank %d on %s",
                          object, mpix_kind_name(kind), teller, boot->hostnames[teller], blamed,
                          boot->hostnames[blamed]);
}
