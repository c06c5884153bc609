/*
 * ep_refused.c - a context that can't be made: the rank with the fault says what and how to help,
 * the others name that rank, and nothing stays behind.
 *
 *   ep_refused --rank R --kind KIND --text PART
 *
 * The surroundings (parameters, limits, devices) are made wrong on rank R by the caller. Its error
 * is of that kind and says PART; that of the others is REMOTE, names it, and says PART too.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int kind;
} kinds[] = {{"ARG", MPIX_ERRK_ARG},
             {"NO_MEM", MPIX_ERRK_NO_MEM},
             {"UNSUPPORTED", MPIX_ERRK_UNSUPPORTED},
             {"TRANSPORT", MPIX_ERRK_TRANSPORT}};

static int kind_of(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].kind;
    t_die(__FILE__, __LINE__, "no kind is called %s", name);
}

static int create(MPI_Comm comm, int experts, MPIX_Ep *ep) {
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.max_topk = 2;
    config.num_experts = experts;
    config.max_tokens = 16;
    config.max_row_bytes = 4096;
    config.timeout_s = 20;
    return MPIX_Ep_create(comm, &config, MPI_INFO_NULL, ep);
}

static void refused(int rank, int kind, const char *part, int show) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Error error;
    double begin = MPI_Wtime();
    int code = create(MPI_COMM_WORLD, 2 * t_size, &ep);
    double took = MPI_Wtime() - begin;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(took < 20, "the error came after %.1f s", took);
    CHECK(ep == MPIX_EP_NULL, "an output was set");
    if (!CHECK(code != MPI_SUCCESS, "the context was made"))
        return;
    if (t_rank == rank) {
        CHECK(error.kind == kind, "kind %d, expected %d: %s", error.kind, kind, error.text);
        CHECK(strstr(error.text, part), "the text does not say \"%s\": %s", part, error.text);
        if (show)
            printf("# rank %d: %s\n", t_rank, error.text);
    } else {
        CHECK(error.kind == MPIX_ERRK_REMOTE, "kind %d, expected REMOTE: %s", error.kind,
              error.text);
        CHECK(error.rank == rank, "blames rank %d, expected %d: %s", error.rank, rank, error.text);
        CHECK(strstr(error.text, part), "the text does not say \"%s\": %s", part, error.text);
    }
}

int main(int argc, char **argv) {
    MPIX_Ep ep;
    t_init(&argc, &argv, "ep_refused");
    int rank = (int)t_option(argc, argv, "--rank", 0), files = 0;
    int kind = kind_of(t_option_text(argc, argv, "--kind", "TRANSPORT"));
    const char *part = t_option_text(argc, argv, "--text", "");
    for (int i = 0; i < 3; i++) {
        t_where("attempt %d", i + 1);
        refused(rank, kind, part, i == 0);
        if (i == 0) /* the first one may open what the process keeps: the log, libibverbs' files */
            files = t_open_files();
    }
    CHECK(t_open_files() == files, "%d open files after the attempts, %d after the first",
          t_open_files(), files);
    t_where("a context without the network");
    CHECK_OK(create(MPI_COMM_SELF, 2, &ep));
    CHECK_OK(MPIX_Ep_free(&ep));
    return t_end();
}
