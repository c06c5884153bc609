#!/bin/sh
# pictures.sh - doc/NAME.svg is made from doc/NAME.dot, and says from which text.
#
#   pictures.sh --make [TREE]    makes every picture anew; needs dot (graphviz)
#   pictures.sh [TREE]           whether each picture belongs to its text; needs nothing
#
# Pictures are committed, so neither a build nor `make dist` needs dot. Its versions draw
# differently. So the check compares a sum of the text with the one that is in the picture.
set -eu
make=
if [ "${1:-}" = --make ]; then make=1; shift; fi
cd "${1:-${MPIX_SRCDIR:-.}}/doc"
if [ -n "$make" ] && ! command -v dot >/dev/null; then
    echo "pictures: there is no dot (Debian's package graphviz)" >&2
    exit 1
fi
code=0
for text in *.dot; do
    picture=${text%.dot}.svg
    mark="<!-- from doc/$text, cksum $(cksum <"$text") -->"
    if [ -n "$make" ]; then
        dot -Tsvg "$text" >"$picture.new"
        { head -n 1 "$picture.new"; echo "$mark"; tail -n +2 "$picture.new"; } >"$picture"
        rm -f "$picture.new"
        echo "doc/$picture"
    elif ! grep -qxF -- "$mark" "$picture"; then
        echo "pictures: doc/$picture is not of doc/$text: make pictures, and commit it"
        code=1
    fi
done
exit $code
