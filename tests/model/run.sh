#!/bin/sh
# run.sh - checks the models of the protocols with spin: each must hold, and each of its
# mutants must be caught.
#
# The result is 77 (left out) without spin, except in CI (environment CI), where that is a failure.
# MPIX_SPIN: the program.
set -u

if [ "${MPIX_SANITIZED:-0}" != 0 ]; then
    echo "left out: the models do not depend on the build"
    exit 77
fi
spin=${MPIX_SPIN:-spin}
models=${MPIX_SRCDIR:-.}/tests/model
if ! command -v "$spin" >/dev/null 2>&1; then
    echo "spin is not installed: the models were not checked"
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi
case $models in /*) ;; *) models=$PWD/$models ;; esac
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
checked=0

# check holds|caught MODEL [-D ...]: one verdict, in its own folder.
check() {
    expect=$1
    model=$2
    shift 2
    checked=$((checked + 1))
    dir=$work/$checked
    # Most of the time is the compiler's.
    case $expect in holds) optimize=-O1 ;; *) optimize=-O0 ;; esac
    mkdir "$dir" || exit 99
    if ! (cd "$dir" && "$spin" -a "$@" "$models/$model.pml" >spin.log 2>&1 &&
        ${CC:-cc} $optimize -w -DSAFETY -DMEMLIM=1024 -o pan pan.c >>spin.log 2>&1); then
        cat "$dir/spin.log"
        echo "$model $*: spin or the compiler failed"
        failed=$((failed + 1))
        return
    fi
    # -m: no path may be longer, or the search would be cut short without an error.
    (cd "$dir" && timeout 120 ./pan -m100000) >"$dir/pan.log" 2>&1
    if grep -q "max search depth too small\|Search not completed\|out of memory" "$dir/pan.log" ||
        ! grep -q "errors: " "$dir/pan.log"; then
        [ "$expect" = caught ] && grep -q "errors: 1" "$dir/pan.log" || expect=broken
    fi
    case $expect in
    holds) grep -q "errors: 0" "$dir/pan.log" ;;
    caught) grep -q "errors: 1" "$dir/pan.log" ;;
    *) false ;;
    esac || {
        cat "$dir/pan.log"
        echo "$model $*: FAILED, expected: $expect"
        failed=$((failed + 1))
        return
    }
    echo "$model $*: $expect" \
        "($(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$dir/pan.log") states)" \
        "$(sed -n 's/^pan:1: *//p' "$dir/pan.log")"
}

check holds fifo
for mutant in CLAIM ONE_BIT NO_LAP EARLY_TAIL STALE SPLIT; do check caught fifo -DM_$mutant; done

check holds ready -DDEPTH=1
check holds ready -DDEPTH=2
for mutant in SIGNALLED START GRANT EPOCH_FIRST WORD_FIRST STATUS_LATE; do check caught ready \
    -DM_$mutant; done

check holds signal -DDEPTH=1
check holds signal -DDEPTH=2
for mutant in WORD_FIRST UNORDERED ONE_LANE REUSE; do check caught signal -DM_$mutant; done
check holds signal -DFORM_COUNTED -DDEPTH=1
check holds signal -DFORM_COUNTED -DDEPTH=2
for mutant in HEADER TURN COUNTER READ_LATE COUNT REUSE; do check caught signal -DFORM_COUNTED \
    -DM_$mutant; done

check holds release -DDEPTH=1
check holds release -DDEPTH=2 -DCALLS=3
check holds release -DDEPTH=1 -DHANDLES=2
for mutant in FLUSH OFFER_LATE GRANT WORD_FIRST; do check caught release -DM_$mutant; done
for mutant in EARLY_RELEASE BANK_ORDER; do check caught release -DHANDLES=2 -DM_$mutant; done

check holds hops -DCHUNKS=1
check holds hops -DCHUNKS=2 -DIN_ORDER
for mutant in TURN SHARED CREDIT HALF LAST; do check caught hops -DM_$mutant; done

check holds ll -DDEPTH=1
check holds ll -DDEPTH=2
for mutant in MARK HEAD_FIRST FLAG_FIRST TAKEN TAKEN_EARLY OFFER_FIRST OFFER_ANY BUSY; do check \
    caught ll -DDEPTH=1 -DM_$mutant; done

for slots in 1 2 3; do check holds ring -DSLOTS=$slots; done
for mutant in SLOTS LAPS NO_WAIT EPOCH EARLY; do check caught ring -DM_$mutant; done

echo "$checked searches, $failed failed"
[ $failed -eq 0 ]
