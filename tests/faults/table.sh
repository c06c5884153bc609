#!/bin/sh
# table.sh - doc/faults.md is what the tests say of themselves, with no empty cell and no test
# that is not there.
exec "$MPIX_SRCDIR/tests/faults.sh" --check
