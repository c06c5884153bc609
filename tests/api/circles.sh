#!/bin/sh
# circles.sh - files of coll/ that call each other in a circle are few, host and GPU in none
# together, and no shared file names a path (circles.py); a call from the host's words to the GPU is
# found.
set -eu
command -v python3 >/dev/null || {
    echo "left out: there is no python3"
    exit 77
}
python3 "$MPIX_SRCDIR/tests/api/circles.py" "$MPIX_SRCDIR"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R "$MPIX_SRCDIR/coll" "$copy/coll"
chmod -R u+w "$copy"
echo 'void mpix_ep_words_mutant(mpix_ep *ep) { mpix_ep_gpu_poll(ep); }' >>"$copy/coll/host/words.c"
if python3 "$MPIX_SRCDIR/tests/api/circles.py" "$copy" >/dev/null; then
    echo "circles.sh: a call from host/words.c to the GPU was not found" >&2
    exit 1
fi
