#!/bin/sh
# make_page.sh - one page of the manual.
#
#   make_page.sh PANDOC SOURCE-TREE PAGE.md OUTPUT.SECTION
set -eu
[ -n "$1" ] || { echo \
    "the manual can't be made without pandoc (Debian and Ubuntu: apt-get install pandoc)" \
    >&2; exit 1; }
mkdir -p "$(dirname "$4")"
trap 'rm -f "$4.tmp" "$4.md.tmp"' EXIT
"$2/doc/man/expand.sh" "$2" "$3" "${4##*.}" >"$4.md.tmp"
"$1" --standalone --from markdown --to man -o "$4.tmp" "$4.md.tmp"
mv "$4.tmp" "$4"
