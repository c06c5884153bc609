/* module.c - finding and loading modules. A moved installation finds its own: the place is asked
 * of the loader. */
#include "config.h"

#include "base/module.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/*
 * The folder of the file that holds this code, with its last slash, or "" for the working folder.
 * For a program the loader knows only the name that it was called by, which need not lead to it
 * (found through PATH, or the working folder has changed): the kernel knows better.
 */
static void module_folder(char *folder, size_t len) {
    Dl_info info;
    char exe[4096];
    const char *file = "", *slash;

    if (dladdr((void *)(uintptr_t)mpix_module_open, &info) && info.dli_fname) {
        const ElfW(Ehdr) *elf = info.dli_fbase;
        file = info.dli_fname;
        /* the program's own headers: we are linked into it */
        if ((uintptr_t)elf + elf->e_phoff == getauxval(AT_PHDR)) {
            ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
            if (n > 0) {
                exe[n] = 0;
                file = exe;
            }
        }
    }
    slash = strrchr(file, '/');
    snprintf(folder, len, "%.*s", slash ? (int)(slash - file) + 1 : 0, file);
}

void *mpix_module_open(const char *given, const char *file, char *why, size_t len) {
    /* Installed beside us, or if we are in an installed program, in the folder of libraries; then
     * programs of a build tree. */
    static const char *const places[] = {"",       MPIX_LIB_FROM_BIN, "../",         "../../",
                                         ".libs/", "../.libs/",       "../../.libs/"};
    char folder[4096];

    if (given[0]) {
        void *dl = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        const char *error = dl ? NULL : dlerror();
        if (!dl)
            snprintf(why, len, "%s", error ? error : given);
        return dl;
    }
    snprintf(why, len, "%s is not there: this build was made without it", file);
    module_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *error;
        char path[4096];
        void *dl;
        int n = snprintf(path, sizeof path, "%s%s%s%s", folder[0] ? folder : "./", places[i],
                         places[i][0] && places[i][strlen(places[i]) - 1] != '/' ? "/" : "", file);
        if (n <= 0 || (size_t)n >= sizeof path || access(path, R_OK) != 0)
            continue;
        dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (dl)
            return dl;
        error = dlerror();
        snprintf(why, len, "%s", error ? error : path);
    }
    return NULL;
}
