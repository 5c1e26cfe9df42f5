#!/bin/sh
# Runs the test programs one after the other and adds up: the last line is "N passed, N failed, N skipped".
#   run.sh RUNNER PROGRAM...        RUNNER: empty or valgrind
# Why a test was skipped it says itself, in a line that begins with "skipped".
# Waiting threads sleep, so that two busy programs on two cores don't spin against each other.
export OMP_WAIT_POLICY=passive
runner=$1
shift
[ -n "$runner" ] && export TEST_RUNNER="$runner"
[ "$runner" = valgrind ] && runner="valgrind -q --error-exitcode=99 --leak-check=no"
passed=0
failed=0
skipped=0
# Names that cmocka gives this mark, which it prints again in a list at the end.
count() { sed -n "s/^\[  $1 \] \([a-zA-Z_0-9]*\)\$/\1/p" "$log" | sort -u | wc -l; }
for program in "$@"; do
    echo "== $program"
    start=$(date +%s)
    log=$(mktemp)
    $runner "$program" >"$log" 2>&1
    code=$?
    good=$(grep -c '^\[       OK \]' "$log")
    bad=$(count "FAILED ")
    left=$(count "SKIPPED")
    # A program that dies, or that runs nothing, is a failure of its own.
    if [ $code -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ $((good + bad + left)) -eq 0 ]; then bad=1; fi
    if [ "$bad" -gt 0 ]; then tail -n 60 "$log"; fi
    [ "$left" -eq 0 ] || grep '^skipped' "$log" | sort | uniq -c | sed 's/^ *\([0-9]*\) /   \1 x /'
    echo "   $good passed, $bad failed, $left skipped, $(($(date +%s) - start)) s"
    passed=$((passed + good))
    failed=$((failed + bad))
    skipped=$((skipped + left))
    rm -f "$log"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
