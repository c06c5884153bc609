#!/bin/sh
# pictures.sh - the pictures of doc/ belong to their texts; and doc/pictures.sh
# notices a changed text.
set -u
"$MPIX_SRCDIR/doc/pictures.sh" "$MPIX_SRCDIR" || exit 1

copy=$(mktemp -d) || exit 99
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/doc" && cp "$MPIX_SRCDIR"/doc/*.dot "$MPIX_SRCDIR"/doc/*.svg "$copy/doc/" || exit 99
"$MPIX_SRCDIR/doc/pictures.sh" "$copy" || exit 1
for text in "$copy"/doc/*.dot; do
    chmod u+w "$text" && echo "// one line more" >>"$text" || exit 99
    if "$MPIX_SRCDIR/doc/pictures.sh" "$copy"; then
        echo "a changed ${text##*/} was not noticed"
        exit 1
    fi
    cp "$MPIX_SRCDIR/doc/${text##*/}" "$text" || exit 99
done
