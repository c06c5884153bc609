#!/bin/sh
# env_sources.sh - the library reads the environment in one file and never changes it: getenv in
# another thread would race with that, and a thread that creates an object at the same time would
# see what was meant for another.
set -u
found=$(cd "$MPIX_SRCDIR" && grep -rnE '\<(secure_)?getenv *\(|\<(set|unset|put|clear)env *\(' src \
    coll p2p kernels | grep -v '^src/base/param\.c:.*[^_]getenv')
[ -z "$found" ] || {
    printf 'the environment is read or changed outside src/base/param.c:\n%s\n' "$found" >&2
    exit 1
}
