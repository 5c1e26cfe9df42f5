#!/bin/sh
# Runs the part of the tests that depends on the machine as on other machines: `make test-machines`, after `make test`.
# The last line is the sum, "N passed, N failed, N skipped".
#   machines.sh MAKE [NAME...]      NAME: only these; machines.sh MAKE list: prints the names
#
# What a processor lacks, the stand-in for oneDNN has (tests/onednn); what it has, a setting takes away. A program that is
# built otherwise is built in a folder of links to the sources, build/machines/NAME, so that ./train_gpt stays what it is.
cd "$(dirname "$0")/.." || exit 1
make=$1
shift
wanted=" $* "
passed=0
failed=0
skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
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
    echo "#### $name"
    "$@" >"$log" 2>&1
    code=$?
    cat "$log"
    last=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [ -z "$last" ]; then
        last="0 passed, 1 failed, 0 skipped"
    elif [ $code -ne 0 ] && [ -z "${last##* 0 failed,*}" ]; then
        failed=$((failed + 1))
    fi
    set -- $last
    passed=$((passed + $1))
    failed=$((failed + $3))
    skipped=$((skipped + $5))
}

# with SETTINGS PROGRAMS: programs of build/, with the variables; no variables: "".
with() {
    settings=$1
    shift
    # shellcheck disable=SC2086
    env $settings sh tests/run.sh "" $(for test in "$@"; do echo "build/$test"; done)
}

# built VARIABLES PROGRAMS: built by make with these variables, in a folder of its own.
built() {
    folder=build/machines/$name
    mkdir -p "$folder/build"
    for file in Makefile README.md train_gpt.cu data dev scripts tests; do ln -sfn "$PWD/$file" "$folder/$file"; done
    variables=$1
    shift
    eval "set -- $variables \"TESTS=$*\""
    (cd "$folder" && "$make" --no-print-directory -j2 CUDA=0 NVCC= "$@" test)
}

every=$(cd tests && for test in test_*.c; do case "$test" in test_emul*) ;; *) echo "${test%.c}" ;; esac; done)
short="test_memory test_model test_threads"
standin="LD_LIBRARY_PATH=build/onednn"

cell avx2 with "DNNL_MAX_CPU_ISA=AVX2" test_kernels test_program $short
cell one-thread with "OMP_NUM_THREADS=1" test_offload test_program $short
cell five-threads with "OMP_NUM_THREADS=5" test_offload test_program $short
cell standin-bf16 with "$standin ONEDNN_STANDIN_ISA=bf16" $every
cell standin-avx512 with "$standin ONEDNN_STANDIN_ISA=avx512 ONEDNN_STANDIN_SEED=7" test_kernels $short
cell standin-amx with "$standin ONEDNN_STANDIN_ISA=amx ONEDNN_STANDIN_SEED=103" test_kernels test_program $short
cell standin-avx2 with "$standin ONEDNN_STANDIN_ISA=avx2" $short
cell x86-64-v3 built "ARCH=x86-64-v3" test_kernels test_program $short
cell without-onednn built "WITHOUT=onednn" test_kernels $short
cell without-openmp built "WITHOUT=openmp" test_program $short
cell without-mpi built "WITHOUT=mpi" test_launch test_program $short
[ "$wanted" = " list " ] && exit 0
echo "machines: $(($(date +%s) - started)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
