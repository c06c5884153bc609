#!/bin/sh
# paths.sh - the tables of paths in README and the manual, as the library's table says.
#
#   paths.sh SOURCE-TREE MPIX_EP_INFO          writes them anew
#   paths.sh SOURCE-TREE MPIX_EP_INFO check    exit status 1 if they differ, with the differences
set -eu
top=$1 info=$2 how=${3:-write} status=0
new=$(mktemp)
table=$(mktemp)
trap 'rm -f "$new" "$table"' EXIT
page() { # FILE KIND-OF-TABLE
    "$info" --paths="$2" >"$table"
    awk -v table="$table" '
        /^<!-- paths: begin -->$/ {
            print
            while ((getline line <table) > 0) print line
            inside = found = 1
        }
        /^<!-- paths: end -->$/ { inside = 0 }
        !inside { print }
        END { exit found && !inside ? 0 : 1 }' "$top/$1" >"$new" || {
        echo "paths.sh: $1 has no place for the table of paths" >&2
        exit 1
    }
    if [ "$how" = check ]; then
        diff -u "$top/$1" "$new" || status=1
    elif ! cmp -s "$top/$1" "$new"; then
        cp "$new" "$top/$1"
    fi
}
page README.md summary
page doc/man/mpix-ep.md matrix
[ $status = 0 ] ||
    echo "paths.sh: the table of paths differs from what is printed above: make doc-paths" >&2
exit $status
