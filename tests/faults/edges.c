/*
 * edges.c - numbers and structs at their limits: structs of an older, shorter version, counts that
 * 32 bits do not hold, memory that a device does not take, a batch in one piece.
 *
 * The program is linked with the library's objects, and the linker wraps the registration of memory
 * with the network (env.mk).
 */
#include "harness.h"

#include "coll/ep.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TOKENS = 64, TOPK = 2, HIDDEN = 1024 };

static int refuse; /* the device takes nothing more */
static char log_name[64];

int __real_mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem);
int __wrap_mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem);

int __wrap_mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem) {
    return refuse ? mpix_fail(MPIX_ERRK_NO_MEM, NULL, "injected: the device takes no more memory")
                  : __real_mpix_proxy_mem_reg(proxy, base, bytes, mem);
}

static MPIX_Error last(void) {
    MPIX_Error e;
    MPIX_INIT(&e);
    MPIX_Error_last(&e);
    return e;
}

static void expect(int code, int kind, const char *arg, const char *text) {
    MPIX_Error e = last();
    CHECK(code != MPI_SUCCESS && e.kind == kind && strcmp(e.arg, arg) == 0 && strstr(e.text, text),
          "kind %d, argument \"%s\", expected %d, \"%s\" and \"%s\": %s", e.kind, e.arg, kind, arg,
          text, e.text);
}

static MPIX_Ep context(int mode, int layout, MPI_Count tokens, int topk, MPI_Count limit,
                       const char *const info[][2], int ninfo) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Ep_config c;
    MPI_Info keys;
    MPIX_INIT(&c);
    c.mode = mode, c.layout = layout, c.max_topk = topk, c.num_experts = 4 * t_size,
    c.max_tokens = tokens, c.max_row_bytes = HIDDEN * 4, c.max_recv_rows = limit;
    c.timeout_s = 60;
    MPI_Info_create(&keys);
    for (int i = 0; i < ninfo; i++)
        MPI_Info_set(keys, info[i][0], info[i][1]);
    CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &c, keys, &ep));
    MPI_Info_free(&keys);
    return ep;
}

/* All tokens to the next rank's first two experts; what comes back is x. */
static void layer(MPIX_Ep ep, MPIX_Ep_handle h, float *rows, long long *messages) {
    int next = (t_rank + 1) % t_size, ids[TOKENS * TOPK], wrong = 0;
    float *x = malloc(TOKENS * HIDDEN * sizeof *x), *y = calloc(TOKENS * HIDDEN, sizeof *y);
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sums;
    MPIX_Ep_peer before, after;
    REQUIRE(x && y, "no memory");
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++)
            ids[t * TOPK + k] = 4 * next + k;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(i % 251 + t_rank);
    MPIX_INIT(&r), MPIX_INIT(&in), MPIX_INIT(&out), MPIX_INIT(&back), MPIX_INIT(&sums),
        MPIX_INIT(&before), MPIX_INIT(&after);
    r.num_tokens = TOKENS, r.topk = TOPK, r.ids = ids;
    in.hidden = back.hidden = HIDDEN, in.x.data = x, in.x.dtype = back.x.dtype = MPIX_EP_F32;
    out.capacity_rows = TOKENS * TOPK, out.x.data = back.x.data = rows, sums.y.data = y;
    if (CHECK_OK(MPIX_Ep_route(h, &r, NULL)) && CHECK_OK(MPIX_Ep_get_peer(ep, next, &before)) &&
        CHECK_OK(MPIX_Ep_dispatch(h, &in, &out)) && CHECK_OK(MPIX_Ep_get_peer(ep, next, &after)) &&
        CHECK_OK(MPIX_Ep_combine(h, &back, &sums)))
        for (int i = 0; i < TOKENS * HIDDEN; i++)
            wrong += y[i] != x[i];
    CHECK(wrong == 0, "%d of %d sums are wrong", wrong, TOKENS * HIDDEN);
    if (messages)
        *messages = (long long)(after.messages - before.messages);
    free(x);
    free(y);
}

/* chunk_bytes=0 is one piece, not one for each row. */
static void one_piece(void) {
    const char *const info[][2] = {{"mpix_ep_chunk_bytes", "0"}};
    t_where("chunk_bytes=0");
    MPIX_Ep ep = context(MPIX_EP_HT, MPIX_EP_COMPACT, TOKENS, TOPK, 0, info, 1);
    MPIX_Ep_handle h;
    long long messages = 0;
    float *rows = malloc((size_t)TOKENS * TOPK * HIDDEN * sizeof *rows);
    if (CHECK_OK(MPIX_Ep_handle_create(ep, &h))) {
        layer(ep, h, rows, &messages);
        /* offer with its word, batch, status, signal */
        CHECK(messages <= 5, "%lld messages for a batch in one piece", messages);
    }
    CHECK_OK(MPIX_Ep_free(&ep));
    free(rows);
}

static int errors_logged(void) {
    char line[1024];
    int n = 0;
    FILE *f = fopen(log_name, "r");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "injected") != NULL && strstr(line, "error") != NULL;
    if (f)
        fclose(f);
    return n;
}

/* Memory that the network does not take on some ranks is no error: its rows are packed. Nobody
 * is told of one. */
static void device_refuses(void) {
    t_where("the network registers no more memory");
    MPIX_Ep ep = context(MPIX_EP_HT, MPIX_EP_COMPACT, TOKENS, TOPK, 0, NULL, 0);
    MPIX_Ep_handle h;
    float *rows = NULL;
    /* the last error from now on */
    expect(MPIX_Ep_handle_create(NULL, &h), MPIX_ERRK_ARG, "ep", "NULL");
    MPIX_Error before = last();
    refuse = t_rank == 0;
    CHECK_OK(MPIX_Ep_alloc(ep, (MPI_Count)TOKENS * TOPK * HIDDEN * 4, MPI_INFO_NULL, &rows));
    refuse = 0;
    MPIX_Error after = last();
    CHECK(memcmp(&before, &after, sizeof before) == 0, "MPIX_Error_last tells of it: %s",
          after.text);
    CHECK(errors_logged() == 0, "%d lines of the log call it an error", errors_logged());
    if (rows && CHECK_OK(MPIX_Ep_handle_create(ep, &h)))
        layer(ep, h, rows, NULL);
    CHECK_OK(MPIX_Ep_free(&ep));
}

/* A struct that ends at a page which can't be touched, and says that it is as short. */
static void *short_struct(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map != MAP_FAILED && mprotect(map + page, page, PROT_NONE) == 0, "no memory");
    size_t *s = (size_t *)(void *)(map + page - size);
    *s = size;
    return s;
}

static void short_structs(int mode) {
    MPIX_Ep ep = context(mode, MPIX_EP_EXPERT, TOKENS, TOPK, 0, NULL, 0);
    MPIX_Ep_handle h;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_combine_in back;
    void *tiny = short_struct(16);
    t_where("structs of 16 bytes, mode %d", mode);
    MPIX_INIT(&in), MPIX_INIT(&back);
    if (CHECK_OK(MPIX_Ep_handle_create(ep, &h))) {
        MPIX_Ep_dispatch_out out;
        MPIX_Ep_combine_out sums;
        MPIX_INIT(&out), MPIX_INIT(&sums);
        expect(MPIX_Ep_route(h, tiny, NULL), MPIX_ERRK_ARG, "routing.struct_size", "16");
        expect(MPIX_Ep_dispatch(h, tiny, &out), MPIX_ERRK_ARG, "in.struct_size", "16");
        expect(MPIX_Ep_dispatch(h, &in, tiny), MPIX_ERRK_ARG, "out.struct_size", "16");
        expect(MPIX_Ep_combine(h, tiny, &sums), MPIX_ERRK_ARG, "in.struct_size", "16");
        expect(MPIX_Ep_combine(h, &back, tiny), MPIX_ERRK_ARG, "out.struct_size", "16");
        CHECK_OK(MPIX_Ep_handle_free(&h));
    }
    CHECK_OK(MPIX_Ep_free(&ep));
}

/* 2^32 choices are one more than counts between ranks hold. Nothing of the ids is read, which
 * are not there. */
static void many_rows(void) {
    const char *const info[][2] = {{"mpix_ep_reach", "auto"}, {"mpix_ep_hosts", "0"}};
    MPI_Count tokens = (MPI_Count)1 << 30;
    int id = 0;
    MPIX_Ep_config c;
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    t_where("2^32 choices");
    MPIX_Ep ep = context(MPIX_EP_HT, MPIX_EP_EXPERT, tokens, 4, 16, info, 2);
    MPIX_INIT(&r);
    r.num_tokens = tokens, r.topk = 4, r.ids = &id;
    if (CHECK_OK(MPIX_Ep_handle_create(ep, &h)))
        expect(MPIX_Ep_route(h, &r, NULL), MPIX_ERRK_ARG, "routing.num_tokens", "4294967295");
    CHECK_OK(MPIX_Ep_free(&ep));
    t_where("LL: 2^31 rows");
    MPIX_INIT(&c);
    c.mode = MPIX_EP_LL, c.layout = MPIX_EP_EXPERT, c.max_topk = 4, c.num_experts = 4 * t_size,
    c.max_tokens = tokens, c.max_row_bytes = 16;
    expect(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep), MPIX_ERRK_ARG,
           "config.max_tokens", "1073741824");
}

/* What a defective peer's words could make of sizes. */
static void extents(void) {
    t_where("extents");
    CHECK(mpix_ep_extent(1, UINT64_MAX, 5) == 5, "of one row");
    CHECK(mpix_ep_extent(3, 100, 5) == 205, "of three rows");
    CHECK(mpix_ep_extent(0, 100, 5) == SIZE_MAX, "of no row");
    CHECK(mpix_ep_extent(UINT64_MAX, 2, 5) == SIZE_MAX &&
              mpix_ep_extent((UINT64_C(1) << 32) + 1, UINT64_C(1) << 32, 5) == SIZE_MAX,
          "a product overflows");
    CHECK(mpix_ep_extent(2, UINT64_MAX - 3, 5) == SIZE_MAX, "a sum overflows");
}

int main(int argc, char **argv) {
    snprintf(log_name, sizeof log_name, "edges.%d.log", (int)getpid());
    setenv("MPIX_EP_LOG_FILE", log_name, 1);
    setenv("MPIX_EP_LOG_LEVEL", "error", 1);
    t_init(&argc, &argv, "edges");
    one_piece();
    device_refuses();
    short_structs(MPIX_EP_HT);
    short_structs(MPIX_EP_LL);
    many_rows();
    extents();
    unlink(log_name);
    return t_end();
}
