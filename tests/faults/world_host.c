/*
 * world_host.c - a program that knows nothing of the library: it opens plugins that use it, closes
 * them, and finalizes MPI.
 *
 *   world_host PLUGIN TIMES
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int times = argc > 2 ? atoi(argv[2]) : 1, bad = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < times; i++) {
        void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        int (*use)(int) = plugin ? (int (*)(int))dlsym(plugin, "plugin_use") : NULL;
        if (!use) {
            fprintf(stderr, "world_host: %s\n", dlerror());
            return 1;
        }
        bad += use(i == times - 1) != MPI_SUCCESS;
        bad += dlclose(plugin) != 0;
        pid_t child = fork(); /* its handlers must be there, too */
        if (child == 0)
            _exit(0);
        int status = -1;
        bad += waitpid(child, &status, 0) != child || status != 0;
    }
    MPI_Finalize(); /* takes down what was left */
    if (!bad)
        printf("world_host: finalized\n");
    return bad != 0;
}
