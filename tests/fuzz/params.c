/* params.c - parameter strings, as the environment and info keys give them: lines of name=value. */
#include "config.h"

#include "base/param.h"
#include "base/log.h"
#include "tests/fuzz/fuzz.h"

static mpix_params defaults;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return mpix_params_read(&defaults) || mpix_params_set(&defaults, "log_level", "none");
}

/* What a parameter prints as is what it parses from. */
static void round_trip(const mpix_params *params) {
    int n;
    const mpix_param_desc *table = mpix_param_table(&n);
    for (int i = 0; i < n; i++) {
        char text[MPIX_PARAM_STRING + 64], again[sizeof text];
        mpix_params copy = defaults;
        mpix_params_print(params, &table[i], text, sizeof text);
        FUZZ_CHECK(mpix_params_set(&copy, table[i].name, text) == 0, "%s prints as %s",
                   table[i].name, text);
        mpix_params_print(&copy, &table[i], again, sizeof again);
        FUZZ_CHECK(strcmp(text, again) == 0, "%s: %s, then %s", table[i].name, text, again);
    }
}

/* Those that open files take effect at once. */
static int opens_files(const char *name) {
    return strcmp(name, "log_file") == 0 || strcmp(name, "trace") == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mpix_params params = defaults;
    char *text = malloc(size + 1), *line = text, *rest;
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (; line; line = rest) {
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = '\0';
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = '\0';
        if (opens_files(line) || strcmp(line, "log_level") == 0)
            continue;
        mpix_params before = params;
        if (mpix_params_set(&params, line, value)) /* a refused value changes nothing */
            FUZZ_CHECK(memcmp(&before, &params, sizeof params) == 0,
                       "%s=%s was refused and changed", line, value);
    }
    round_trip(&params);
    free(text);
    return 0;
}
