/* alloc.c - see alloc.h. */
#include "alloc.h"
#include "harness.h"
#include "inject.h"

#include <string.h>

int victim, at_step = -1;
static int what, sticky;
static long at_n, hit;
static const char *const *step_names;

void arm(int step) {
    if (step == at_step && t_rank == victim)
        inject_arm(what, at_n, sticky);
}

void disarm(int step) {
    if (step == at_step && t_rank == victim)
        hit += inject_disarm();
}

/* ---- what is expected ------------------------------------------------------------------------ */

typedef struct {
    int kind, rank;
} outcome;

static outcome outcome_of(int code) {
    MPIX_Error error;
    if (code == MPI_SUCCESS)
        return (outcome){0, -1};
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(error.text[0], "an error without a text");
    return (outcome){error.kind, error.rank};
}

static void check_victim(int step, int kind) {
    if (what == INJECT_REFUSED) {
        MPIX_Error error;
        MPIX_INIT(&error);
        MPIX_Error_last(&error);
        CHECK(kind == MPIX_ERRK_TRANSPORT && strstr(error.text, inject_failed()) &&
                  strstr(error.text, "seccomp"),
              "%s was refused, and the error is of kind %d: %s", inject_failed(), kind, error.text);
        return;
    }
    CHECK(kind == MPIX_ERRK_NO_MEM || (what == INJECT_SYSTEM && (kind == MPIX_ERRK_TRANSPORT ||
                                                                 kind == MPIX_ERRK_UNSUPPORTED)),
          "%s: kind %d on the rank where %s failed", step_names[step], kind, inject_failed());
}

int agree_alone(int step, int code, int alone) {
    outcome mine = outcome_of(code), all[64];
    int good = 1;
    REQUIRE(t_size <= 64, "too many ranks");
    MPI_Allgather(&mine, 2, MPI_INT, all, 2, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < t_size; r++)
        good &= all[r].kind == 0;
    if (good || step != at_step) {
        CHECK(good, "%s, in which nothing failed, is kind %d here", step_names[step], mine.kind);
        return good;
    }
    if (t_rank == victim)
        check_victim(step, mine.kind);
    else
        CHECK((mine.kind == MPIX_ERRK_REMOTE && mine.rank == victim) || (alone && mine.kind == 0),
              "%s: kind %d about rank %d, expected REMOTE about rank %d", step_names[step],
              mine.kind, mine.rank, victim);
    return 0;
}

int agree(int step, int code) { return agree_alone(step, code, 0); }

int done(int step, int code) {
    outcome mine = outcome_of(code);
    if (mine.kind && step == at_step && t_rank == victim)
        check_victim(step, mine.kind);
    else
        CHECK(!mine.kind, "%s, in which nothing failed, is kind %d here", step_names[step],
              mine.kind);
    return !mine.kind;
}

/* ---- what is left ---------------------------------------------------------------------------- */

typedef struct {
    long blocks, files, maps;
} left;

static left left_now(void) {
    return (left){inject_blocks(), t_open_files(), t_mappings("mpix-ep")};
}

static void step_all(void (*life)(void), int step) {
    long failed = 0;
    for (at_n = 1;; at_n++) {
        at_step = step;
        hit = 0;
        t_where("%s, %s %ld%s on rank %d fails", step_names[step],
                what == INJECT_MEMORY    ? "allocation"
                : what == INJECT_REFUSED ? "refused call"
                                         : "system call",
                at_n, sticky ? " and all after it" : "", victim);
        left before = left_now();
        life();
        left after = left_now();
        CHECK(after.blocks == before.blocks && after.files == before.files &&
                  after.maps == before.maps,
              "left behind after %s failed: %ld blocks of memory, %ld descriptors, %ld mappings",
              inject_failed(), after.blocks - before.blocks, after.files - before.files,
              after.maps - before.maps);
        MPI_Bcast(&hit, 1, MPI_LONG, victim, MPI_COMM_WORLD);
        if (!hit || t_failed_anywhere() > 20)
            break;
        failed++;
    }
    if (t_rank == 0)
        printf("%s: %ld failures\n", step_names[step], failed);
}

void alloc_run(int argc, char **argv, void (*life)(void), int steps, const char *const names[]) {
    const char *name = t_option_text(argc, argv, "--step", "");
    step_names = names;
    const char *class = t_option_text(argc, argv, "--what", "memory");
    what = !strcmp(class, "memory")    ? INJECT_MEMORY
           : !strcmp(class, "refused") ? INJECT_REFUSED
                                       : INJECT_SYSTEM;
    sticky = (int)t_option(argc, argv, "--sticky", 0);
    victim = (int)t_option(argc, argv, "--victim", t_size - 1);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    t_watchdog(280);
    life(); /* what is made once per process is there */
    for (int step = 0; step < steps; step++)
        if (!name[0] || !strcmp(name, names[step]))
            step_all(life, step);
    t_watchdog(0);
}
