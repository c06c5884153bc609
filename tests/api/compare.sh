#!/bin/sh
# compare.sh - every call of the C headers must be in a C++ header, in the Fortran module and in the
# manual, and every type's components in the Fortran module, in C's order and of C's kind. Says what
# is missing; the result is the number of such findings, at most 100.
#
#   compare.sh SOURCE-TREE     MPIX_SRCDIR if there is no argument
set -u
top=${1:-${MPIX_SRCDIR:-.}}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT

# C without comments, one declaration a line.
for header in mpix_xfer mpix_ep mpix_p2p; do cat "$top/include/$header.h"; done |
    awk '{ line = line $0 "\n" } END {
        while ((i = index(line, "/*")) > 0) {
            rest = substr(line, i); j = index(rest, "*/")
            line = substr(line, 1, i - 1) " " substr(rest, j + 2)
        }
        gsub(/[ \t\n]+/, " ", line); gsub(/; /, ";\n", line); print line }' >"$work/c"
sed -n 's/^.*int \(MPIX_[A-Za-z0-9_]*\)(.*/\1/p' "$work/c" | sort -u >"$work/calls"
[ "$(wc -l <"$work/calls")" -gt 50 ] || {
    echo "compare.sh: found no calls in $top/include"
    exit 99
}

found=0
missing() { # WHERE FILE-WITH-NAMES
    for name in $(sort -u "$2" | comm -23 "$work/calls" -); do
        echo "$name is not in $1"
        found=$((found + 1))
    done
}
cat "$top"/include/*.hpp | grep -o 'MPIX_[A-Za-z0-9_]*(' | tr -d '(' >"$work/cxx"
missing "include/*.hpp" "$work/cxx"
sed -n 's/^ *function \(MPIX_[A-Za-z0-9_]*\)(.*/\1/p' "$top/fortran/mpix_ep.f90" >"$work/fortran"
missing fortran/mpix_ep.f90 "$work/fortran"
sed -n 's/^@calls//p' "$top"/doc/man/*.md | tr ' ' '\n' >"$work/man"
missing "doc/man" "$work/man"

# Types: "type component kind" of each, a pointer as c_ptr.
tr '\n' ' ' <"$work/c" | sed 's/typedef struct/\n&/g' | awk '/^typedef struct[^;]*\{/ {
    body = $0; sub(/^[^{]*\{/, "", body)
    name = body; sub(/^[^}]*\} */, "", name); sub(/;.*/, "", name)
    sub(/\}.*/, "", body)
    n = split(body, parts, ";")
    for (i = 1; i <= n; i++) {
        part = parts[i]; gsub(/^ +| +$/, "", part); if (part == "") continue
        gsub(/const |unsigned /, "", part)
        type = part; sub(/ .*/, "", type); sub(/^[^ ]+ /, "", part); m = split(part, names, ",")
        for (j = 1; j <= m; j++) {
            item = names[j]; gsub(/ /, "", item); kind = type
            if (item ~ /^\*/) { kind = "c_ptr"; sub(/^\*/, "", item) }
            size = ""
            if (item ~ /\[/) {
                size = item; sub(/.*\[/, "", size); sub(/\]/, "", size); size = "(" size ")"
                sub(/\[.*/, "", item)
            }
            if (kind ~ /^MPIX_P2p_r?mem$/) kind = "c_ptr"
            print name, item size, kind
        }
    }
}' >"$work/c-types"
sed -n '/^ *type, bind(c) ::/,/end type/p' "$top/fortran/mpix_ep.f90" | awk '
    /type, bind\(c\) ::/ { name = $NF; next }
    /end type/ { next }
    { kind = $1; if (kind ~ /^character/) kind = "char"
      sub(/^[a-z]+\(/, "", kind); sub(/\).*/, "", kind)
      if (kind == "c_int") kind = "int"
      else if (kind == "c_size_t") kind = "size_t"
      else if (kind == "c_double") kind = "double"
      else if (kind == "MPI_COUNT_KIND") kind = "MPI_Count"
      item = $0; sub(/^.*:: /, "", item); sub(/ =.*/, "", item)
      print name, item, kind }' >"$work/f-types"
if ! diff "$work/c-types" "$work/f-types" >"$work/differences"; then
    echo "types of C (<) and of fortran/mpix_ep.f90 (>) differ:"
    cat "$work/differences"
    found=$((found + $(grep -c '^[<>]' "$work/differences")))
fi
[ $found -eq 0 ] &&
    echo "$(wc -l <"$work/calls") calls and $(wc -l <"$work/c-types") components agree"
[ $found -le 100 ] || found=100
exit $found
