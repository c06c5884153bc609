/*
 * finalize.c - what happens to objects that are still alive in MPI_Finalize.
 *
 * MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while MPI still works. One attribute
 * of ours has a delete callback that takes down, locally, whatever was never freed: newest first,
 * since handles are younger than their contexts.
 */
#include "config.h"

#include "boot/boot.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct final_entry {
    struct final_entry *next;
    void *object;
    void (*fn)(void *object);
} final_entry;

static pthread_mutex_t final_lock = PTHREAD_MUTEX_INITIALIZER;
static final_entry *final_list;
static int final_hooked; /* the attribute is in place */

static int final_delete(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm;
    (void)keyval;
    (void)value;
    (void)extra;
    if (mpix_boot_owner())
        return MPI_SUCCESS; /* a child: the objects are the parent's */
    for (;;) {
        final_entry *entry;
        pthread_mutex_lock(&final_lock);
        entry = final_list;
        if (entry)
            final_list = entry->next;
        pthread_mutex_unlock(&final_lock);
        if (!entry)
            return MPI_SUCCESS;
        entry->fn(entry->object); /* without the lock: it may call mpix_boot_forget */
        free(entry);
    }
}

/*
 * MPI will call final_delete, so the object that holds it must stay, also where it is a plugin that
 * the program closes. The shared library says so itself (-z nodelete); a static one lies in
 * somebody else's object.
 */
static void final_stay(void) {
    Dl_info info;

    if (dladdr((void *)(uintptr_t)final_delete, &info) && info.dli_fname && info.dli_fname[0])
        /* NULL: the program itself */
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static int final_hook(void) {
    int keyval, kind;

    final_stay();
    kind = mpix_boot_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, final_delete, &keyval, NULL),
                         "MPI_Comm_create_keyval");
    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, keyval, NULL), "MPI_Comm_set_attr");
    MPI_Comm_free_keyval(&keyval); /* the attribute keeps it alive */
    return kind;
}

int mpix_boot_at_finalize(void *object, void (*fn)(void *object)) {
    final_entry *entry = malloc(sizeof *entry);
    int kind = 0;

    if (!entry)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an entry of %zu bytes",
                         sizeof *entry);
    entry->object = object;
    entry->fn = fn;
    pthread_mutex_lock(&final_lock);
    if (!final_hooked)
        kind = final_hook();
    if (!kind) {
        final_hooked = 1;
        entry->next = final_list;
        final_list = entry;
    }
    pthread_mutex_unlock(&final_lock);
    if (kind)
        free(entry);
    return kind;
}

void mpix_boot_forget(void *object) {
    final_entry *found = NULL;

    pthread_mutex_lock(&final_lock);
    for (final_entry **link = &final_list; *link; link = &(*link)->next) {
        if ((*link)->object == object) {
            found = *link;
            *link = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&final_lock);
    free(found);
}
