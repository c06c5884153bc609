/*
 * harness.c - checks, generator, watchdog and verdict of the MPI test programs.
 */
#include "harness.h"

#include <dirent.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int t_rank, t_size = 1;
int t_thread_level = MPI_THREAD_FUNNELED;
int t_hosts, *t_host_of;

enum { MAX_PRINTED = 12 };

static const char *t_name = "test";
static char t_now[320] = "start";
static int t_failed;
static double t_begin;

static pthread_mutex_t t_lock = PTHREAD_MUTEX_INITIALIZER;
static time_t t_deadline;

/* With the address sanitizer: what MPI_Init keeps is not looked at, because modules of MPI that it
 * unloads again have no name by which tests/lsan.supp could tell them; and leaks are looked for
 * before MPI_Finalize unloads the others. */
extern void __lsan_disable(void) __attribute__((weak));
extern void __lsan_enable(void) __attribute__((weak));
extern void __lsan_do_leak_check(void) __attribute__((weak));

static void *t_watch(void *arg) {
    (void)arg;
    for (;;) {
        struct timespec nap = {0, 200 * 1000 * 1000}, now;
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        pthread_mutex_lock(&t_lock);
        int late = t_deadline && now.tv_sec > t_deadline;
        pthread_mutex_unlock(&t_lock);
        if (late) {
            fprintf(stderr, "%s [rank %d/%d]: WATCHDOG: no progress in: %s\n", t_name, t_rank,
                    t_size, t_now);
            fflush(stderr);
            abort(); /* a core and a signal say more than an exit status */
        }
    }
    return NULL;
}

void t_watchdog(int seconds) {
    static int started;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&t_lock);
    t_deadline = seconds ? now.tv_sec + seconds : 0;
    pthread_mutex_unlock(&t_lock);
    if (!started && seconds) {
        pthread_t thread;
        started = 1;
        if (pthread_create(&thread, NULL, t_watch, NULL) == 0)
            pthread_detach(thread);
    }
}

/* What MPI says can share memory is a host. The parameters, which tests set in the environment
 * only, split it: every rank by itself, or blocks of its ranks as long as they can be. */
static void t_find_hosts(void) {
    const char *reach = getenv("MPIX_EP_REACH"), *text = getenv("MPIX_EP_HOSTS");
    int parts = reach && strcmp(reach, "proxied") == 0 ? t_size
                : text && atoi(text) > 1               ? atoi(text)
                                                       : 1;
    /* leader, place, ranks of the host */
    int mine[3] = {t_rank, 0, 1}, *all = malloc(3 * (size_t)t_size * sizeof *all);
    MPI_Comm here;
    t_host_of = malloc((size_t)t_size * sizeof *t_host_of);
    REQUIRE(all && t_host_of, "no memory");
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t_rank, MPI_INFO_NULL, &here);
    MPI_Bcast(&mine[0], 1, MPI_INT, 0, here);
    MPI_Comm_rank(here, &mine[1]);
    MPI_Comm_size(here, &mine[2]);
    MPI_Comm_free(&here);
    MPI_Allgather(mine, 3, MPI_INT, all, 3, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < t_size; r++) {
        const int *a = all + 3 * (size_t)r;
        int n = a[2] < parts ? a[2] : parts;
        t_host_of[r] = -1;
        for (int q = 0; q < r; q++) {
            const int *b = all + 3 * (size_t)q;
            if (b[0] == a[0] && b[1] * n / a[2] == a[1] * n / a[2])
                t_host_of[r] = t_host_of[q];
        }
        if (t_host_of[r] < 0)
            t_host_of[r] = t_hosts++;
    }
    free(all);
}

int t_two_hops(void) {
    const char *hops = getenv("MPIX_EP_TWO_HOPS");
    return hops && strcmp(hops, "on") == 0 && t_hosts > 1;
}

void t_init(int *argc, char ***argv, const char *name) {
    int provided;
    t_name = name;
    /* how sums are rounded is not to depend on the routing, unless a test asks for that */
    setenv("MPIX_EP_TWO_HOPS", "off", 0);
    if (__lsan_disable)
        __lsan_disable();
    MPI_Init_thread(argc, argv, t_thread_level, &provided);
    if (__lsan_enable)
        __lsan_enable();
    MPI_Comm_rank(MPI_COMM_WORLD, &t_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t_size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    /* errors without an object are raised there */
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    t_find_hosts();
    t_begin = MPI_Wtime();
    t_watchdog(120);
}

int t_end(void) {
    int total = 0;
    t_where("the verdict");
    MPI_Allreduce(&t_failed, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - t_begin;
    if (__lsan_do_leak_check)
        __lsan_do_leak_check();
    MPI_Finalize();
    t_watchdog(0);
    if (t_rank == 0)
        printf("%s: %s, %d ranks, %d failures, %.1f s\n", t_name, total ? "FAILED" : "passed",
               t_size, total, seconds);
    fflush(stdout);
    return total ? 1 : 0;
}

/* Verdicts in the file that tests/survivors.sh has all ranks write into; -1 without it. */
static int verdicts(void) {
    const char *path = getenv("MPIX_SURVIVORS_OUT");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int n = 0;
    if (!file)
        return -1;
    while (fgets(line, sizeof line, file))
        n += strncmp(line, t_name, strlen(t_name)) == 0 && strstr(line, " failures\n") != NULL;
    fclose(file);
    return n;
}

/* After the others' verdicts: a survivor that ended while another still looked for the victim could
 * be found dead in its place. */
void t_leave(void) {
    const char *dead = getenv("MPIX_SURVIVORS_DEAD");
    int live = t_size - (dead ? atoi(dead) : 1);
    printf("%s [rank %d/%d]: %s, %d failures\n", t_name, t_rank, t_size,
           t_failed ? "FAILED" : "passed", t_failed);
    fflush(stdout);
    fflush(stderr);
    t_where("leaving");
    for (int n = verdicts(); n >= 0 && n < live; n = verdicts()) /* the watchdog is the limit */
        usleep(10000);
    _exit(t_failed ? 1 : 0);
}

int t_failures(void) { return t_failed; }

int t_failed_anywhere(void) {
    int total = 0;
    MPI_Allreduce(&t_failed, &total, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return total;
}

void t_where(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t_now, sizeof t_now, fmt, ap);
    va_end(ap);
}

static void t_say(const char *file, int line, const char *fmt, va_list ap) {
    char text[900];
    const char *base = strrchr(file, '/');
    vsnprintf(text, sizeof text, fmt, ap);
    fprintf(stderr, "%s [rank %d/%d] %s:%d (%s): %s\n", t_name, t_rank, t_size,
            base ? base + 1 : file, line, t_now, text);
    fflush(stderr);
}

void t_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    if (t_failed++ >= MAX_PRINTED)
        return;
    va_start(ap, fmt);
    t_say(file, line, fmt, ap);
    va_end(ap);
}

void t_die(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    t_say(file, line, fmt, ap);
    va_end(ap);
    MPI_Abort(MPI_COMM_WORLD, 2);
    _exit(2);
}

int t_check_ok(const char *file, int line, const char *what, int code) {
    MPIX_Error error;
    if (code == MPI_SUCCESS)
        return 1;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    t_fail(file, line, "%s returned %d: kind %d, rank %d, arg \"%s\": %s", what, code, error.kind,
           error.rank, error.arg, error.text);
    return 0;
}

const char *t_option_text(int argc, char **argv, const char *name, const char *dflt) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return dflt;
}

long t_option(int argc, char **argv, const char *name, long dflt) {
    const char *text = t_option_text(argc, argv, name, NULL);
    return text ? strtol(text, NULL, 0) : dflt;
}

uint64_t t_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t t_hash2(uint64_t seed, uint64_t a) { return t_mix(t_mix(seed) + a * 0xd1342543de82ef95u); }

uint64_t t_rand(t_rng *rng) {
    uint64_t value = t_mix(rng->s);
    rng->s += 0x9e3779b97f4a7c15u;
    return value;
}

int64_t t_range(t_rng *rng, int64_t lo, int64_t hi) {
    uint64_t r = t_rand(rng);
    return hi <= lo ? lo : lo + (int64_t)(r % (uint64_t)(hi - lo + 1));
}

int t_chance(t_rng *rng, int percent) { return t_range(rng, 0, 99) < percent; }

int t_open_files(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

int t_mappings(const char *part) {
    char line[512];
    int n = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        n += strstr(line, part) != NULL;
    if (file)
        fclose(file);
    return n;
}
