#!/bin/sh
# test_moe_layer_bad.sh - the C++ example on data and options that are wrong: it has to notice,
# and to say what.
set -u
. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
good=$MPIX_SRCDIR/data/moe_layer
bad=$(mktemp -d) || exit 99
trap 'rm -rf "$bad"' EXIT

# Every case starts from the good data.
fresh() {
    rm -rf "$bad/data" && mkdir "$bad/data" && cp "$good"/*.npy "$bad/data/" &&
        chmod u+w "$bad"/data/*.npy || exit 99
}

# The same array with its rows moved up by one, as if an index were wrong; the header has 128 bytes.
shift_rows() { # FILE BYTES-PER-ROW
    {
        head -c 128 "$good/$1"
        tail -c +$((129 + $2)) "$good/$1"
        head -c $((128 + $2)) "$good/$1" | tail -c "$2"
    } >"$bad/data/$1"
}

expect() { # WHAT TEXT OPTION...: the program fails, and its output has the text
    what=$1 text=$2
    shift 2
    output=$("$MPIX_MPIRUN" 2 "$MPIX_BUILDDIR/examples/moe_layer" --repeat 1 "$@" 2>&1)
    code=$?
    case $code in
    0) echo "$what: not noticed"; printf '%s\n' "$output"; exit 1 ;;
    99 | 124) printf '%s\n' "$output"; exit $code ;;
    esac
    case $output in
    *"$text"*) echo "$what: noticed (exit status $code)" ;;
    *) echo "$what: exit status $code, but the output lacks '$text'"; printf '%s\n' \
        "$output"; exit 1 ;;
    esac
}

fresh; shift_rows y.npy 1024
expect "wrong y" "TOO LARGE" --data "$bad/data"
fresh; shift_rows topk_idx.npy 32
expect "wrong choices" "WRONG" --data "$bad/data"
fresh; shift_rows topk_weights.npy 32
expect "wrong weights" "WRONG" --data "$bad/data"
fresh; head -c 100000 "$good/x_bf16.npy" >"$bad/data/x_bf16.npy"
expect "truncated file" "x_bf16.npy: is shorter than its header says" --data "$bad/data"
fresh; cp "$good/y.npy" "$bad/data/x_bf16.npy"
expect "file of another type" "x_bf16.npy: has elements '<f4', expected '<u2'" --data "$bad/data"
fresh; cp "$good/w_down_bf16.npy" "$bad/data/w_up_bf16.npy"
expect "file of another shape" "w_up_bf16.npy: has shape (64, 32, 256), expected (64, 256, 32)" \
    --data "$bad/data"
fresh; echo hello >"$bad/data/router.npy"
expect "not an array" "router.npy: is not an .npy file" --data "$bad/data"
fresh; rm "$bad/data/topk_idx.npy"
expect "missing file" "topk_idx.npy: cannot be opened" --data "$bad/data"
expect "too many tokens" "--tokens 2049: there are 2048 only" --data "$good" --tokens 2049
expect "no data" "--data is missing"
expect "unknown type" "--dtype does not take 'f16'" --data "$good" --dtype f16
expect "malformed number" "--tokens takes a number from 1 to 1000000000, not '5x'" --data "$good" \
    --tokens 5x
expect "unknown option" "unknown option '--frobnicate'" --data "$good" --frobnicate
expect "unknown memory" "--memory does not take 'disk'" --data "$good" --memory disk
if [ ! -e /dev/nvidiactl ]; then # without a GPU, and maybe without cuBLAS: both have to be said
    expect "GPU memory" "--memory cuda" --data "$good" --memory cuda
fi
