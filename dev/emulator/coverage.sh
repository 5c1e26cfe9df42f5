#!/bin/sh
# The share of CUDA lines that the emulator executed: adds up what EMULATOR_COVERAGE=FILE gathered over all runs.
#   coverage.sh FILE [PATTERN]      PATTERN: of source files, by default all but the CUDA headers
# Prints each file's share, then the lines that no kernel executed.
file=$1
pattern=${2:-.}
grep -v '/cuda/\|/targets/' "$file" | grep -- "$pattern" | sort -u | awk -F '\t' '
    { line = $1 ":" $2; seen[line] = 1; file[line] = $1; if ($3 == 1) done[line] = 1 }
    END {
        for (line in seen) {
            all[file[line]]++
            if (line in done) good[file[line]]++; else missing[n_missing++] = line
        }
        for (f in all) printf "%s %d of %d lines executed, %.1f%%\n", f, good[f], all[f], 100 * good[f] / all[f]
        for (i = 0; i < n_missing; i++) print "not executed: " missing[i]
    }' | sort
