# shellcheck shell=sh
# life_run.sh - cases of life.c, run a few at a time; read by life.sh and life_all.sh.
#
#   life TRANSPORT FAULT OBJECT [ARG ...]    starts a case
#   life_end                                 waits for all; the exit status of the test
life_build=${MPIX_BUILDDIR:-.}
life_most=${LIFE_JOBS:-3}
life_out=$(mktemp -d) || exit 99
trap 'rm -rf "$life_out"' EXIT
life_cases=0 life_left=0
# What MPI leaks in a rank that leaves is not the thing tested.
[ "${MPIX_SANITIZED:-0}" = 0 ] ||
    export ASAN_OPTIONS="detect_leaks=0:handle_segv=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

life_one() { # NAME TRANSPORT FAULT OBJECT ...
    (
        name=$1 transport=$2 fault=$3 object=$4
        shift 4
        export MPIX_EP_LOG_LEVEL=none MPIX_EP_PROXY=thread
        case $transport in
        mapped) MPIX_EP_PROXY=auto ;;
        mapped-ask) export MPIX_EP_P2P_CMA=no ;;
        *) export MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT="$transport" ;;
        esac
        case $transport in
        *ucx)
            export MPIXEP_UCX_TLS="${LIFE_TLS:-tcp,self}"
            MPIX_EP_PROXY=auto
            # Small segments of TCP: then puts are made by libucp, and written by the target. Not
            # with p2p: libucp 1.13 aborts a target that answers such a put when the connection has
            # been closed meanwhile ("unexpected error: Endpoint timeout" in ucp_put_handler).
            case $object in ep*) export UCX_TCP_TX_SEG_SIZE=8k UCX_TCP_RX_SEG_SIZE=8k ;; esac
            ;;
        esac
        case $transport in chaos:*) export MPIX_EP_CHAOS_REORDER=no ;; esac
        start=$(date +%s)
        if [ "$fault" = killed ]; then
            "$MPIX_SRCDIR/tests/survivors.sh" 2 "$life_build/tests/faults/life" --object "$object" \
                --fault "$fault" "$@"
        else
            "$MPIX_MPIRUN" 2 "$life_build/tests/faults/life" --object "$object" --fault "$fault" \
                "$@"
        fi >"$life_out/$name.log" 2>&1
        code=$?
        if [ $code = 0 ]; then
            echo "life: $transport $fault $object $*: pass ($(($(date +%s) - start)) s)"
        else
            echo "life: $transport $fault $object $*: FAIL ($code)"
            sed 's/^/    /' "$life_out/$name.log" | head -60
            touch "$life_out/failed"
        fi
    )
}

life() {
    case $1 in
    *ucx) if [ ! -e "$life_build/libmpixep_ucx.so" ]; then
        life_left=$((life_left + 1))
        return
    fi ;;
    esac
    life_cases=$((life_cases + 1))
    life_one "$life_cases" "$@" &
    [ $((life_cases % life_most)) != 0 ] || wait
}

life_end() {
    wait
    [ $life_left = 0 ] || echo \
        "life: $life_left cases over libucp are left out: libmpixep_ucx.so was not built"
    [ ! -e "$life_out/failed" ]
}
