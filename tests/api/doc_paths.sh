#!/bin/sh
# doc_paths.sh - README and the manual have the table of paths as mpix_ep_info prints it, and a
# table that differs is found.
set -eu
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/doc/man"
cp "$MPIX_SRCDIR/README.md" "$copy/README.md"
cp "$MPIX_SRCDIR/doc/man/mpix-ep.md" "$copy/doc/man/mpix-ep.md"
chmod -R u+w "$copy"
sh "$MPIX_SRCDIR/doc/paths.sh" "$copy" "$MPIX_BUILDDIR/mpix_ep_info" check
sed 's/^| host-ll | SLOTS, EXPERT/| host-ll | EXPERT/' "$MPIX_SRCDIR/README.md" >"$copy/README.md"
if sh "$MPIX_SRCDIR/doc/paths.sh" "$copy" "$MPIX_BUILDDIR/mpix_ep_info" check >/dev/null 2>&1; then
    echo "doc_paths.sh: a layout left out of README was not found" >&2
    exit 1
fi
