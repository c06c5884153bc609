#!/usr/bin/env bash
# faults.sh - which test covers which fault on which path. The tests say it themselves, in comments:
#
#   covers: FAULT | PATH, PATH | TEST      and in tests/faults/uncovered:   uncovered: FAULT | PATH, PATH | why
#
#   faults.sh            runs every test that the table names, in the build tree
#                        MPIX_BUILDDIR (default: build), and prints the table with pass, FAIL
#                        or left out behind each
#   faults.sh --page     prints doc/faults.md
#   faults.sh --check    fails if doc/faults.md is not that page, or the page has an empty cell or a
#                        test that is not there
set -u -o pipefail
export LC_ALL=C
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "${MPIX_BUILDDIR:-$top/build}" 2>/dev/null && pwd)
paths="create ht-mapped ht-proxied ht-hops ll-mapped ll-proxied p2p-mapped p2p-copied p2p-proxied"
paths="$paths gpu-ht gpu-expert gpu-ll gpu-proxied p2p-gpu"

# "fault|path|test" and "fault|path|!why", a line each; * stands for every path that
# nothing else covers.
lines() {
    grep -rhoE "covers: [^|]+\|[^|]+\|.*" "$top/tests" --include='*.sh' --exclude=faults.sh \
        --include='*.mk' --include='check' --include='*.c' --include='*.cpp' \
        --include='uncovered' | sed 's/^covers: */+|/'
    sed -n 's/^uncovered: */-|/p' "$top/tests/faults/uncovered"
}
cells() {
    lines | awk -F ' *[|] *' -v paths="$paths" '
        function add(fault, path, text) {
            if (!((fault, path, text) in seen)) {
                seen[fault, path, text] = 1; cell[fault, path] = cell[fault, path] "\n" text
            }
        }
        /FAULT/ { next }
        { n = split($3, p, /[ ,]+/); text = $4; for (i = 5; i <= NF; i++) text = text " | " $i
          sub(/ +$/, "", text); faults[$2] = 1
          for (i = 1; i <= n; i++)
              if (p[i] == "*") rest[$2] = text
              else if ($1 == "+") add($2, p[i], text)
              else why[$2, p[i]] = text }
        END {
            m = split(paths, all, " ")
            for (f in faults) for (k = 1; k <= m; k++) {
                if ((f, all[k]) in cell) {
                    c = split(substr(cell[f, all[k]], 2), t, "\n")
                    for (j = 1; j <= c; j++) print f "|" all[k] "|" t[j]
                } else if ((f, all[k]) in why) print f "|" all[k] "|!" why[f, all[k]]
                else if (f in rest) print f "|" all[k] "|!" rest[f]
                else print f "|" all[k] "|?"
            }
        }' | sort
}

# A row for each fault and each test or reason, with the paths that share it. results: "TEST STATE"
# lines, or nothing.
table() { # RESULTS-FILE
    cells | awk -F '[|]' -v paths="$paths" -v results="$1" '
        BEGIN {
            while ((getline line <results) > 0) {
                split(line, w, " "); state[w[1]] = substr(line, length(w[1]) + 2)
            }
            m = split(paths, order, " ")
        }
        { key = $1 SUBSEP $3; if (!(key in on)) { rows[++n] = key } on[key] = on[key] " " $2 }
        END {
            print "| fault | path | test |\n| --- | --- | --- |"
            for (i = 1; i <= n; i++) {
                split(rows[i], k, SUBSEP); list = ""
                for (j = 1; j <= m; j++)
                    if (index(on[rows[i]] " ", " " order[j] " "))
                        list = list (list == "" ? "" : ", ") order[j]
                text = k[2] ~ /^!/ ? "not covered: " substr(k[2], 2) : \
                    k[2] == "?" ? "NOT COVERED, AND NO REASON GIVEN" : "`" k[2] "`"
                if (k[2] in state) text = text " " state[k[2]]
                print "| " (k[1] == last ? "" : k[1]) " | " list " | " text " |"; last = k[1]
            }
        }'
}
page() {
    cat <<'PAGE'
# Faults and the tests that cover them

`tests/faults.sh --page` makes this page from comments beside the tests; `make check` fails if it is
another. `tests/faults.sh` runs the tests and prints the same table with a result behind each.

A path is how a call is carried out: HT or LL, in host memory or on GPUs; to peers that are mapped,
reached by copies of the kernel (`copied`), through the proxy, or in two hops. `create` is the
creation of objects. `check-emu` and `check-rdma` are targets of make.

PAGE
    table /dev/null
}
known() { # what make check, check-full and other targets run
    (cd "$top/tests" && grep -rhoE 'tests/(mpi|faults|unit|fuzz|net|gpu|emu|model)/[A-Za-z0-9_.]+' \
        --include='*.mk' . | sort -u)
    printf '%s\n' check-emu check-gpu check-net check-rdma check-fuzz
}
tests_named() { cells | awk -F '[|]' '$3 !~ /^[!?]/ {print $3}' | sed 's/ .*//' | sort -u; }

check() {
    local bad=0 missing
    if cells | grep '|?$' | sed \
        's/|?$//; s/|/ on /; s/^/faults.sh: neither test nor reason: /'; then bad=1; fi
    missing=$(tests_named | grep -vxFf <(known))
    if [ -n "$missing" ]; then printf 'faults.sh: no such test: %s\n' $missing; bad=1; fi
    if ! diff <(page) "$top/doc/faults.md"; then
        echo "faults.sh: doc/faults.md is old: tests/faults.sh --page >doc/faults.md"
        bad=1
    fi
    return $bad
}

run() {
    [ -e "$build/Makefile" ] || { echo \
        "faults.sh: there is no build tree; MPIX_BUILDDIR names it"; return 1; }
    local results log=$build/faults.log test
    results=$(mktemp) || return
    : >"$log"
    make -C "$build" check-programs >>"$log" 2>&1 || { tail "$log"; return 1; }
    for test in $(tests_named); do
        case $test in
            check-*) make -C "$build" "$test" >>"$log" 2>&1 && echo "$test pass" ||
                echo "$test FAIL" ;;
            *) (cd "$build" && make check TESTS="$test" 2>&1 | tee -a "$log" |
                sed -n -e "s|^PASS: .*|$test pass|p" -e "s|^SKIP: .*|$test left out|p" \
                    -e "s|^\(FAIL\|ERROR\): .*|$test FAIL|p" | sort -u) ;;
        esac >>"$results"
    done
    table "$results"
    echo "$(grep -c ' pass$' "$results") passed, $(grep -c ' FAIL$' "$results") failed," \
        "$(grep -c ' left out$' "$results") left out"
    ! grep -q ' FAIL$' "$results"
}

case ${1:-} in
    --page) page ;;
    --check) check ;;
    '') run ;;
    *) echo "usage: faults.sh [--page | --check]" >&2; exit 2 ;;
esac
