#!/bin/sh
# Runs the part of the tests that depends on the machine as on other machines: `make test-machines`, after `make test`.
# The last line is the sum, "N passed, N failed, N skipped".
#   machines.sh MAKE [NAME...]      NAME: only these; machines.sh MAKE list: prints the names
#
# What a processor lacks, the stand-in for oneDNN has (tests/onednn); what it has, a setting takes away. A program that
# is built otherwise is built in a folder of links to the sources, build/machines/NAME, so that ./train_gpt stays what
# it is.
cd "$(dirname "$0")/.." || exit 1
make=$1
shift
wanted=" $* "
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
started=$(date +%s)

# cell NAME COMMAND...: the command's last line counts.
cell() {
    name=$1
    shift
    if [ "$wanted" = " list " ]; then
        echo "$name"
        return
    fi
    case "$wanted" in "  " | *" $name "*) ;; *) return ;; esac
    : >"$folder/known"
    echo "#### $name"
    start=$(date +%s)
    "$@" >"$folder/$name" 2>&1
    code=$?
    cat "$folder/$name"
    last=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$folder/$name" | tail -n 1)
    [ -n "$last" ] || last="0 passed, 1 failed, 0 skipped"
    [ $code -eq 0 ] || [ -n "${last##* 0 failed,*}" ] || last="0 passed, 1 failed, 0 skipped"
    echo "$last" >>"$folder/sums"
    echo "#### $name: $(($(date +%s) - start)) s"
}

# with SETTINGS PROGRAMS: programs of build/, with the variables; no variables: "".
with() {
    settings=$1
    shift
    case "$settings" in
    *LD_LIBRARY_PATH*)
        if [ ! -e build/onednn/libdnnl.so.2 ]; then
            echo "skipped, as oneDNN is not there, so nothing can stand in for it"
            echo "0 passed, 0 failed, 1 skipped"
            return
        fi
        ;;
    esac
    # shellcheck disable=SC2086
    env $settings sh tests/run.sh "" $(for test in "$@"; do echo "build/$test"; done)
}

# built VARIABLES PROGRAMS: built by make with these variables, in a folder of its own; the data are there.
built() {
    place=build/machines/$name
    mkdir -p "$place/build"
    for file in Makefile README.md train_gpt.cu data dev scripts tests; do ln -sfn "$PWD/$file" "$place/$file"; done
    variables=$1
    shift
    eval "set -- $variables \"TESTS=$*\""
    (cd "$place" && "$make" --no-print-directory -o data/train.bin CUDA=0 NVCC= "$@" test)
}

# All of the CPU's device; test_onednn is on the stand-in anyway.
properties="properties/test_memory_suffices properties/test_resume properties/test_skipped_steps"
kernels=$(for file in tests/kernels/test_*.c; do echo "kernels/$(basename "$file" .c)"; done)
all="$kernels test_checkpoint test_disk test_memory test_model test_program test_store test_threads test_update
    properties/test_faults properties/test_memory_flags properties/test_plan_is_run properties/test_same_bits
    $properties"
short="test_memory test_model test_threads properties/test_memory_flags properties/test_plan_is_run"
standin="LD_LIBRARY_PATH=build/onednn"

settings() {
    cell standin-bf16 with "$standin ONEDNN_STANDIN_ISA=bf16" $all
    cell standin-avx512 with "$standin ONEDNN_STANDIN_ISA=avx512 ONEDNN_STANDIN_SEED=7" $short
    cell standin-amx with "$standin ONEDNN_STANDIN_ISA=amx ONEDNN_STANDIN_SEED=103" $short
    cell avx2 with "DNNL_MAX_CPU_ISA=AVX2" $kernels test_program $short
    cell one-thread with "OMP_NUM_THREADS=1" test_program $properties $short
    cell five-threads with "OMP_NUM_THREADS=5" test_program $properties $short
}

builds() {
    cell x86-64-v3 built "ARCH=x86-64-v3" $kernels test_program $short
    cell without-onednn built "WITHOUT=onednn" $short
    cell without-openmp built "WITHOUT=openmp" test_program $short
    cell without-mpi built "WITHOUT=mpi" test_launch test_program $short
}

# While the settings are tried, the builds compile.
builds >"$folder/builds" &
settings
wait
cat "$folder/builds"
[ "$wanted" = " list " ] && exit 0
if [ ! -e "$folder/known" ]; then
    echo "machines.sh: there is none of these:$wanted(machines.sh make list)" >&2
    exit 2
fi
echo "machines: $(($(date +%s) - started)) s"
awk '{ p += $1; f += $3; s += $5 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' \
    "$folder/sums"
