#!/bin/sh
# valgrind.sh - runs unit tests under valgrind, several at a time, and shows the output of
# those that fail.
#
#   valgrind.sh JOBS LIBTOOL TEST ...
#
# MPIX_VALGRIND_WITHOUT: a test to leave out. They fork, and Check's children are followed; leaks
# are the address sanitizer's business. The environment is that of the tests.
set -u
jobs=$1
libtool=$2
shift 2
CK_DEFAULT_TIMEOUT=300 CK_TIMEOUT_MULTIPLIER=20
export CK_DEFAULT_TIMEOUT CK_TIMEOUT_MULTIPLIER libtool
# shellcheck disable=SC2016 # the inner shell expands it
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c '
    if [ "$1" = "${MPIX_VALGRIND_WITHOUT:-}" ]; then
        echo "valgrind $1: left out"
        exit 0
    fi
    log=$1.valgrind.log
    started=$(date +%s)
    # shellcheck disable=SC2086 # libtool is a command with its shell
    if $libtool --mode=execute valgrind -q --error-exitcode=9 --trace-children=yes \
        --leak-check=no "./$1" >"$log" 2>&1; then
        echo "valgrind $1: pass ($(($(date +%s) - started)) s)"
    else
        code=$?
        cat "$log"
        echo "valgrind $1: FAIL (status $code)"
        exit 1
    fi' sh
