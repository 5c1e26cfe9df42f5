#!/bin/sh
# Runs the test programs one after the other and adds up: the last line is "N passed, N failed".
#   run.sh RUNNER PROGRAM...        RUNNER: empty or valgrind
# Waiting threads sleep, so that two busy programs on two cores don't spin against each other.
export OMP_WAIT_POLICY=passive
runner=$1
shift
[ -n "$runner" ] && export TEST_RUNNER="$runner"
[ "$runner" = valgrind ] && runner="valgrind -q --error-exitcode=99 --leak-check=no"
passed=0
failed=0
for program in "$@"; do
    echo "== $program"
    start=$(date +%s)
    log=$(mktemp)
    $runner "$program" >"$log" 2>&1
    code=$?
    good=$(grep -c '^\[       OK \]' "$log")
    bad=$(sed -n 's/^\[  FAILED  \] \([a-zA-Z_0-9]*\)$/\1/p' "$log" | sort -u | wc -l)  # cmocka names them twice
    # A program that dies, or that runs nothing, is a failure of its own.
    if [ $code -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$good" -eq 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$bad" -gt 0 ]; then tail -n 60 "$log"; fi
    echo "   $good passed, $bad failed, $(($(date +%s) - start)) s"
    passed=$((passed + good))
    failed=$((failed + bad))
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
