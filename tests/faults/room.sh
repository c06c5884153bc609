#!/bin/sh
# room.sh - ranks that ask for more memory than their control group has; claims; resource limits.
#
#   room.sh PATH/room_CASE[_proxied].RANKS.test
#
# covers: more memory than a control group has | create, ht-mapped, ll-mapped, p2p-mapped | tests/faults/room_asks.2.test
# covers: more memory than a control group has | ht-proxied, ll-proxied, p2p-proxied | tests/faults/room_asks_proxied.2.test
# covers: memory claimed by several ranks at once | ht-mapped | tests/faults/room_claims.2.test
# covers: resource limits of one rank | create, p2p-mapped | tests/faults/room_limits.2.test
# covers: resource limits of one rank | ht-proxied, p2p-proxied | tests/faults/room_limits_proxied.2.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"
export MPIX_EP_LOG_LEVEL=none

case $name in *_proxied) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied ;; esac
what=${name#room_}
what=${what%_proxied}
if [ "$what" = limits ] && [ "${MPIX_SANITIZED:-0}" != 0 ]; then
    echo "left out: a sanitizer's address space knows no limit"
    exit 77
fi
conf_mpiexec=
# shellcheck source=/dev/null
[ ! -r "$build/tests/mpirun.conf" ] || . "$build/tests/mpirun.conf"
# shellcheck disable=SC2086
case $what,$(${MPIEXEC:-$conf_mpiexec} --version 2>&1) in
limits,*HYDRA*)
    echo "left out: MPICH's own calls fail, or hang, for lack of memory under these limits"
    exit 77
    ;;
esac
if [ "$what" != asks ]; then
    exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/room" --case "$what"
fi

# In a control group of our own, below the one that we are in; its limit is large enough for MPI
# and a sanitizer.
bytes=$(((400 + 200 * ${MPIX_SANITIZED:-0}) << 20))
skip() { echo "left out: $*; tests/faults/room_claims has a tree of files instead"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only root makes control groups"
own=$(sed -n 's/^[0-9]*:[^:]*memory[^:]*://p' /proc/self/cgroup)
if [ -n "$own" ] && [ -w "/sys/fs/cgroup/memory$own" ]; then
    group=/sys/fs/cgroup/memory$own/mpix-room.$$ limit=memory.limit_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
    group=/sys/fs/cgroup/mpix-room.$$ limit=memory.max
else
    skip "no memory controller that can be used here"
fi
mkdir "$group" 2>/dev/null || skip "$group can't be made"
trap 'rmdir "$group"' EXIT
echo "$bytes" >"$group/$limit" || skip "$group/$limit can't be set"
sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" "$MPIX_MPIRUN" "$np" \
    "$build/tests/faults/room" --case asks
code=$?
for _ in 1 2 3 4 5 6 7 8 9 10; do # until the last process has left it
    [ -n "$(cat "$group/cgroup.procs")" ] || break
    sleep 0.3
done
exit $code
