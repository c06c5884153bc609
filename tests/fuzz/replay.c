/*
 * replay.c - runs a target without libFuzzer: every file of the corpus, then mutations of them
 * drawn from a seed.
 *
 *   TARGET [-runs=N] [-seed=S] FILE-OR-FOLDER ...
 */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

enum { MOST = 1 << 16, FILES = 4096 };

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

static input corpus[FILES];
static int ninputs;

static void add_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || ninputs == FILES) {
        fprintf(stderr, "replay: can't take %s\n", path);
        exit(1);
    }
    input *in = &corpus[ninputs++];
    in->data = malloc(MOST);
    in->size = in->data ? fread(in->data, 1, MOST, file) : 0;
    fclose(file);
}

static void add_path(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    DIR *folder = opendir(path);
    char name[4096];
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        add_file(name);
    }
    if (folder)
        closedir(folder);
}

static uint64_t state;
static uint64_t draw(uint64_t n) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

/* Copied to a block of exactly its size, so that a sanitizer sees reads behind it. */
static void run(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        exit(1);
    if (size)
        memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate(uint8_t *to, size_t *size) {
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '\n', '=', '-', '9', ','};
    for (uint64_t n = 1 + draw(8); n > 0; n--) {
        size_t at = draw(*size + 1);
        switch (draw(4)) {
        case 0: /* another byte */
            if (at < *size)
                to[at] = (uint8_t)(draw(2) ? draw(256) : edges[draw(sizeof edges)]);
            break;
        case 1: /* one more */
            if (*size < MOST) {
                memmove(to + at + 1, to + at, *size - at);
                to[at] = (uint8_t)draw(256);
                ++*size;
            }
            break;
        case 2: /* one less */
            if (at < *size) {
                memmove(to + at, to + at + 1, *size - at - 1);
                --*size;
            }
            break;
        default: { /* another input's end */
            const input *other = &corpus[draw((uint64_t)ninputs)];
            size_t from = draw(other->size + 1), n_bytes = other->size - from;
            n_bytes = n_bytes < MOST - at ? n_bytes : MOST - at;
            memcpy(to + at, other->data + from, n_bytes);
            *size = at + n_bytes;
        }
        }
    }
}

int main(int argc, char **argv) {
    static uint8_t work[MOST + 1];
    uint64_t runs = 0, seed = 1;
    if (LLVMFuzzerInitialize(&argc, &argv))
        return 1;
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "-runs=%lu", &runs) != 1 && sscanf(argv[i], "-seed=%lu", &seed) != 1)
            add_path(argv[i]);
    if (ninputs == 0) {
        fprintf(stderr, "replay: no inputs\n");
        return 1;
    }
    for (int i = 0; i < ninputs; i++)
        run(corpus[i].data, corpus[i].size);
    state = seed;
    for (uint64_t r = 0; r < runs; r++) {
        const input *from = &corpus[draw((uint64_t)ninputs)];
        size_t size = from->size;
        memcpy(work, from->data, size);
        mutate(work, &size);
        run(work, size);
    }
    printf("%d inputs and %lu mutations of them\n", ninputs, (unsigned long)runs);
    for (int i = 0; i < ninputs; i++)
        free(corpus[i].data);
    return 0;
}
