# mpi_leaks.sh - read by tests of programs that call MPI and do not look for leaks themselves:
# under the address sanitizer leaks are not looked for. What MPI's modules leave behind can't be
# told by name once MPI_Finalize has unloaded them; the library's own leaks are for ep_stress and
# the unit tests to find.
if [ "${MPIX_SANITIZED:-0}" = 1 ]; then
    ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
    export ASAN_OPTIONS
fi
