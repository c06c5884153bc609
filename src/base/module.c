/* module.c - finding and loading modules. A moved installation finds its own: the place is asked of the loader. */
#include "config.h"

#include "base/module.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *mpix_module_open(const char *given, const char *file, char *why, size_t len) {
    /* Installed; then programs of a build tree that have the library inside: programs/, tests/unit/. */
    static const char *const places[] = {"", "../", "../../", ".libs/", "../.libs/", "../../.libs/"};
    Dl_info info;

    if (given[0]) {
        void *dl = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        const char *error = dl ? NULL : dlerror();
        if (!dl)
            snprintf(why, len, "%s", error ? error : given);
        return dl;
    }
    snprintf(why, len, "%s is not there: this build was made without it", file);
    if (!dladdr((void *)(uintptr_t)mpix_module_open, &info) || !info.dli_fname)
        return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *slash = strrchr(info.dli_fname, '/'), *error;
        char path[4096];
        void *dl;
        int n = snprintf(path, sizeof path, "%.*s/%s%s", slash ? (int)(slash - info.dli_fname) : 1, slash ? info.dli_fname : ".", places[i], file);
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
