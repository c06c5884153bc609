#!/bin/sh
# autogen.sh - makes ./configure and the files it needs from configure.ac, Makefile.am and m4/.
# Needed in a git clone only; release archives have them.
set -e
cd "$(dirname "$0")"
missing=
for tool in autoconf automake libtoolize; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    echo "autogen.sh: not found:$missing" \
        "(Debian and Ubuntu: apt-get install autoconf automake libtool)" >&2
    exit 1
fi
mkdir -p build-aux
exec autoreconf --install --warnings=all "$@"
