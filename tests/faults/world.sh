#!/bin/sh
# world.sh - runs one test of forks and of the host program's world: the name says case and ranks.
#
#   world.sh PATH/world_CASE.RANKS.test
#
# covers: comm's error handler | create | tests/faults/world_handlers.2.test
# covers: descriptors of many contexts | create | tests/faults/world_descriptors.5.test
# covers: MPI gives no shared communicator | create, ht-mapped | tests/faults/world_singletons.3.test
# covers: containers of one machine | create ht-proxied | tests/faults/world_spaces.3.test
# covers: fork, every call in the child | ht-mapped p2p-mapped | tests/faults/world_fork_calls.3.test
# covers: fork, every call in the child | ht-proxied p2p-proxied | tests/faults/world_fork_calls_proxied.2.test
# covers: fork, every call in the child | ll-mapped | tests/faults/world_fork_calls_ll.2.test
# covers: fork, the child frees | ll-proxied | tests/faults/world_fork_free_ll_threads.2.test
# covers: fork, the child goes on beside | ll-mapped | tests/faults/world_fork_work_ll.2.test
# covers: fork, the child frees | ht-mapped p2p-mapped | tests/faults/world_fork_free.2.test
# covers: fork, the child frees | ht-proxied p2p-proxied | tests/faults/world_fork_free_threads.2.test
# covers: fork, the child exits | ht-mapped p2p-mapped | tests/faults/world_fork_exit.2.test
# covers: fork, the child exits | ht-proxied p2p-proxied | tests/faults/world_fork_exit_threads.2.test
# covers: fork, the child execs | ht-mapped p2p-mapped | tests/faults/world_fork_exec.2.test
# covers: fork, the child goes on beside | ht-mapped p2p-mapped | tests/faults/world_fork_work_progress.2.test
# covers: fork, the child goes on beside | ht-proxied p2p-proxied | tests/faults/world_fork_work_proxied.2.test
# covers: C++ objects destroyed after MPI_Finalize | create | tests/faults/world_cpp.2.test
# covers: C++ objects destroyed in a child of fork | ht-mapped p2p-mapped | tests/faults/world_cpp.2.test
# covers: the locale's decimal comma | create | tests/faults/world_locale.2.test
# covers: a plugin is closed before MPI_Finalize | create | tests/faults/world_plugin.2.test
# covers: signal handlers of the program | create | tests/faults/world_signals.2.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"
export MPIX_TEST_TIMEOUT=120

case $name in
world_fork_*) # how the child ends, and how peers are reached
    export MPIX_EP_LOG_LEVEL=none
    case $name in
    *_proxied) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied ;;
    *_threads) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_PROXY_THREADS=2 \
        MPIX_EP_LANES=2 MPIX_EP_PROGRESS=thread ;;
    *_progress) export MPIX_EP_PROGRESS=thread ;;
    *_ucx)
        if [ ! -e "$build/libmpixep_ucx.so" ]; then
            echo "left out: libmpixep_ucx.so was not built"
            exit 77
        fi
        export MPIX_EP_TRANSPORT=ucx MPIX_EP_REACH=proxied MPIXEP_UCX_TLS=tcp,self
        ;;
    esac
    end=${name#world_fork_}
    case $name in *_ll*) mode=ll ;; *) mode=ht ;; esac
    exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/forks" --end "${end%%_*}" --mode $mode
    ;;
world_cpp) # no output but what is awaited, and status 0
    . "$MPIX_SRCDIR/tests/mpi_leaks.sh"
    if [ ! -x "$build/tests/faults/world_cpp" ]; then
        echo "left out: no C++ compiler"
        exit 77
    fi
    for which in main static order fork thread; do
        output=$("$MPIX_MPIRUN" "$np" "$build/tests/faults/world_cpp" $which 2>&1) ||
            { echo "$output"; echo "world_cpp $which: failed"; exit 1; }
        [ "$(echo "$output" | grep -c "$which done")" -eq "$np" ] ||
            { echo "$output"; echo "world_cpp $which: not all ranks are done"; exit 1; }
        case $which in
        order | thread) ;; # an object that outlives its context is told
        *) if echo "$output" | grep "error:"; then echo \
            "world_cpp $which: errors were logged"; exit 1; fi ;;
        esac
    done
    exit 0
    ;;
world_locale) # a decimal comma, and a language in which the capital of i is another letter
    folder=$(mktemp -d) || exit 99
    trap 'rm -rf "$folder"' EXIT
    printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n' \
        >"$folder/comma.src"
    localedef -c -i "$folder/comma.src" -f ANSI_X3.4-1968 "$folder/comma" >/dev/null 2>&1
    localedef -c -i tr_TR -f ISO-8859-9 "$folder/mpixtr" >/dev/null 2>&1
    if [ ! -e "$folder/comma/LC_NUMERIC" ]; then
        echo "left out: localedef makes no locale here"
        exit 77
    fi
    export LOCPATH="$folder" MPIX_EP_TIMEOUT=60.5 MPIX_EP_REACH=PROXIED MPIX_EP_TRANSPORT=shmem \
        MPIX_EP_LOG_LEVEL=none
    for locale in comma mpixtr; do
        [ -e "$folder/$locale/LC_CTYPE" ] || continue
        "$MPIX_MPIRUN" "$np" "$build/tests/faults/world" --case locale --locale $locale || exit 1
        [ -e "$build/libmpixep_ucx.so" ] || continue
        MPIX_EP_TRANSPORT=ucx MPIXEP_UCX_TLS=tcp,self "$MPIX_MPIRUN" "$np" \
            "$build/tests/faults/world" --case locale --locale $locale || exit 1
    done
    exit 0
    ;;
world_plugin)
    for plugin in world_plugin world_plugin_whole; do
        if [ ! -e "$build/tests/faults/.libs/$plugin.so" ]; then
            echo "left out: this build makes no shared libraries"
            exit 77
        fi
        "$MPIX_MPIRUN" "$np" "$build/tests/faults/world_host" \
            "$(cd "$build" && pwd)/tests/faults/.libs/$plugin.so" 3 || exit 1
    done
    exit 0
    ;;
world_signals) # libucs has handlers of its own
    if [ ! -e "$build/libmpixep_ucx.so" ]; then
        echo "left out: libmpixep_ucx.so was not built"
        exit 77
    fi
    export MPIX_EP_TRANSPORT=ucx MPIX_EP_REACH=proxied MPIXEP_UCX_TLS=tcp,self
    ;;
world_handlers) export MPIX_EP_LOG_LEVEL=none ;; # every one of them is wanted
world_descriptors | world_singletons) ;;
world_spaces) # an object is made and tells, no row moves
    export MPIX_EP_TRANSPORT=null
    # Name spaces of processes as well, where MPI bears it: then windows go through
    # sockets, or nowhere.
    if [ "$(id -u)" = 0 ] && unshare -p -f true 2>/dev/null &&
        "$build/tests/faults/world" --case bears; then
        for inner in mapped apart; do
            # Leaks are looked for by numbers of threads, which are others in /proc there.
            ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" OMPI_MCA_btl=tcp,self \
                OMPI_MCA_pml=ob1 "$MPIX_MPIRUN" "$np" unshare -p -f "$build/tests/faults/world" \
                --case pids --reach $inner || exit 1
        done
    fi
    ;;
*)
    echo "world.sh: no test is called $name" >&2
    exit 99
    ;;
esac
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/world" --case "${name#world_}"
