#!/bin/sh
# compare_fails.sh - the C headers, the C++ header, the Fortran module and the manual agree; and
# compare.sh notices each way in which they may not.
set -u
compare=$MPIX_SRCDIR/tests/api/compare.sh
"$compare" "$MPIX_SRCDIR" || exit 1

copy=$(mktemp -d) || exit 99
trap 'chmod -R u+w "$copy"; rm -rf "$copy"' EXIT
wants() { # WHAT FILE SED-SCRIPT TEXT: with the file changed so, the text is said
    chmod -R u+w "$copy"
    rm -rf "${copy:?}"/*
    mkdir -p "$copy/doc" && cp -r "$MPIX_SRCDIR/include" "$MPIX_SRCDIR/fortran" "$copy/" &&
        cp -r "$MPIX_SRCDIR/doc/man" "$copy/doc/" || exit 99
    chmod -R u+w "$copy"
    sed "$3" "$copy/$2" >"$copy/changed" && cmp -s "$copy/changed" "$copy/$2" && {
        echo "$1: the file was not changed"
        exit 1
    }
    mv "$copy/changed" "$copy/$2"
    output=$("$compare" "$copy") && { echo "$1: not noticed"; exit 1; }
    printf '%s\n' "$output" | grep -q -- "$4" || {
        echo "$1: noticed, but not as '$4':"
        printf '%s\n' "$output"
        exit 1
    }
    echo "$1: noticed"
}
wants "a call missing in C++" include/mpix_p2p.hpp \
    's/MPIX_P2p_flush(/flush(/' 'MPIX_P2p_flush is not in include/\*.hpp'
wants "a call missing in Fortran" fortran/mpix_ep.f90 \
    's/function MPIX_Ep_get_mask(/function get_mask(/' 'MPIX_Ep_get_mask is not in fortran'
wants "a call missing in the manual" doc/man/MPIX_Ep_route.md \
    's/MPIX_Ep_iroute//' 'MPIX_Ep_iroute is not in doc/man'
wants "a new call" include/mpix_ep.h \
    's/^int MPIX_Ep_free(/int MPIX_Ep_new(int);\n&/' 'MPIX_Ep_new is not in fortran'
wants "a new component" include/mpix_ep.h \
    's/^    int overflow; /    int fresh; int overflow; /' 'MPIX_Ep_config fresh int'
wants "a component of another kind" fortran/mpix_ep.f90 \
    's/real(c_double) :: timeout_s/integer(c_int) :: timeout_s/' 'MPIX_Ep_config timeout_s int'
