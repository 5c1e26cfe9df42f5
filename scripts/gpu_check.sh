#!/bin/sh
# Everything that only a GPU can show, in at most six minutes: the tests that can run there, speed and memory of whole
# training steps, attention and the memory-bound kernels alone, compute-sanitizer. Prints tables row by row as it goes;
# what it prints belongs into dev/GPU.md, with the date. Exit status 1 if a part failed or was not reached.
#   scripts/gpu_check.sh [--prebuilt] [SECONDS]   SECONDS: stop starting new parts after so long (default 330)
#   scripts/gpu_check.sh --pack FILE.tar.gz       builds what the check needs, for sm_80, sm_90 and as PTX, and packs it
# What is packed runs by itself, without a compiler: unpack it on the machine with the GPU and run its
# scripts/gpu_check.sh. --prebuilt, or no nvcc or Makefile: takes build/gpu as it is. llm.c's train_gpt2cu is run for
# comparison if its source lies beside the project (../llm.c).
from=$PWD
cd "$(dirname "$0")/.." || exit 1
programs="train_gpt bench_gpu test_kernels test_emulated"
gpu=build/gpu
logs=build/gpu_check
find_nvcc() { command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null; }

pack() {
    case "$1" in
    "") echo "usage: gpu_check.sh --pack FILE.tar.gz" >&2; exit 2 ;;
    /*) file=$1 ;;
    *) file=$from/$1 ;;
    esac
    # For any x86-64 of the last ten years; no library that may be missing there.
    # shellcheck disable=SC2016
    make -j2 GPU_BUILD=build/pack ARCH=x86-64-v3 'GPU_TARGETS=$(GPU_TARGETS_DEFAULT)' gpu-programs || exit 1
    folder=$(mktemp -d) || exit 1
    trap 'rm -rf "$folder"' EXIT
    top=$folder/train_gpt_check
    mkdir -p "$top/$gpu" "$top/scripts" "$top/lib" || exit 1
    cp scripts/gpu_check.sh "$top/scripts" || exit 1
    for program in $programs; do
        cp "build/pack/$program" "$top/$gpu" || exit 1
        for library in $(ldd "build/pack/$program" 2>/dev/null |
            sed -n 's/.*=> \([^ ]*lib\(cmocka\|gomp\)\.so[^ ]*\).*/\1/p'); do
            cp -L "$library" "$top/lib" || exit 1
        done
    done
    tar -C "$folder" -czf "$file" train_gpt_check || exit 1
    echo "$file: $(wc -c <"$file") bytes. On a machine with a GPU and CUDA's libraries (libcublasLt):"
    echo "    tar xzf $(basename "$file") && train_gpt_check/scripts/gpu_check.sh"
    exit 0
}

prebuilt=
limit=330
case "${1:-}" in
--pack) pack "${2:-}" ;;
--prebuilt) prebuilt=1; shift ;;
esac
[ -z "${1:-}" ] || limit=$1
case "$limit" in *[!0-9]*) echo "usage: gpu_check.sh [--prebuilt] [SECONDS] | --pack FILE.tar.gz" >&2; exit 2 ;; esac
[ -n "$(find_nvcc)" ] && [ -f Makefile ] || prebuilt=1

start=$(date +%s)
failed=0
missed=0
left() { echo $((limit - $(date +%s) + start)); }
say() { printf '\n== %s (%s s left)\n' "$*" "$(left)"; }
fail() { failed=$((failed + 1)); }

# Is there time for a part that may take so many seconds at least? Says so if not.
may_start() {
    [ "$(left)" -ge "$2" ] && return 0
    missed=$((missed + 1))
    echo "| $1 | not started: no time left |"
    return 1
}

# limited SECONDS COMMAND...: at most so long, and no more than ten seconds beyond the script's own limit.
limited() {
    most=$(($(left) + 10))
    [ "$1" -lt "$most" ] && most=$1
    shift
    timeout -k 5 "$most" "$@"
}

# The last line that a failed program said, for a cell of a table.
last_words() { tail -n 1 "$1" | tr '|' '/' | cut -c1-200; }

# Packed libraries, and cuBLASLt where the loader doesn't look: CUDA's folders, those of Python's packages.
find_libraries() {
    LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    name=$(ldd $gpu/train_gpt 2>/dev/null | sed -n 's/^[[:space:]]*\(libcublasLt[^ ]*\) => not found.*/\1/p')
    [ -n "$name" ] || return
    for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib \
        $(python3 -c 'import glob, site
print(*[f for s in site.getsitepackages() for f in glob.glob(s + "/nvidia/*/lib")])' 2>/dev/null); do
        [ -e "$folder/$name" ] && LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder && return
    done
    echo "gpu_check.sh: $name is nowhere to be found; install CUDA's cuBLAS or set LD_LIBRARY_PATH" >&2
    exit 1
}

test_row() { # NAME PROGRAM SECONDS
    may_start "$1" 10 || return
    before=$(date +%s)
    limited "$3" "$2" >"$logs/tests.log" 2>&1
    code=$?
    good=$(grep -c '^\[       OK \]' "$logs/tests.log")
    bad=$(grep '^\[  FAILED  \] [a-z_0-9]*$' "$logs/tests.log" | sort -u | sed 's/.* //' | tr '\n' ' ')
    note=
    [ $code -eq 124 ] && note=" stopped after $3 s"
    if [ $code -ne 0 ] || [ -n "$bad" ] || [ "$good" -eq 0 ]; then
        fail
        note="$note FAILED ${bad:-exit status $code}"
    fi
    echo "| $1 | $good passed$note | $(($(date +%s) - before)) s |"
    if [ -n "$note" ]; then grep -vE '^\[( RUN |      OK|=)' "$logs/tests.log" | head -n 20; fi
}

# Medians of the steps after the fifth, from "| MS ms | ... TOKENS tok": fields ms, tokens/s, MFU.
middle() { tail -n +6 | sort -n | awk '{ row[NR] = $0 } END { if (NR) print row[int((NR + 1) / 2)] }'; }

# Largest sum over a phase's kinds, device bytes: field 5 planned, 6 measured.
peak() {
    awk -F, -v field="$1" '$3 == "device" { sum[$2] += $field }
        END { for (p in sum) if (sum[p] > most) most = sum[p]; printf "%.0f", most }' "$logs/run/memory.csv" 2>/dev/null
}

speed_row() { # GOAL FLAGS
    may_start "\`$2\`" 20 || return
    rm -rf "$logs/run"
    # shellcheck disable=SC2086
    if ! limited 90 $gpu/train_gpt $2 -i random -v 0 -g 0 -n 0 -p bf16 --device cuda -o "$logs/run" \
        >"$logs/run.log" 2>&1; then
        if grep -q 'does not fit' "$logs/run.log"; then
            echo "| \`$2\` | does not fit this GPU | | $1 | | | |"
        else
            fail
            echo "| \`$2\` | FAILED: $(last_words "$logs/run.log") | | $1 | | | |"
        fi
        return
    fi
    # shellcheck disable=SC2046
    set -- "$1" "$2" $(sed -n \
        's/^step [0-9]*\/.*| \([0-9]*\) ms | \([0-9]*\) tokens\/s | mfu \([0-9.]*\) %.*/\1 \2 \3/p' "$logs/run.log" |
        middle)
    planned=$(peak 5)
    measured=$(peak 6)
    note=
    [ -n "${5:-}" ] || { fail; note=" FAILED: no steps"; }
    if [ -z "$measured" ] || [ "$planned" != "$measured" ]; then
        fail
        note="$note FAILED: not as planned"
    fi
    echo "| \`$2\` | ${3:-} | ${4:-} | $1 | ${5:-} % | $planned | $measured$note |"
}

sanitize_row() { # TOOL PROGRAM FLAGS...
    tool=$1
    shift
    may_start "$tool, $(basename "$1")" 15 || return
    limited 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" >"$logs/sanitizer.log" 2>&1
    code=$?
    note=$(grep 'ERROR SUMMARY' "$logs/sanitizer.log" | tail -n 1 | sed 's/^=* *//')
    if grep -qi 'device not supported' "$logs/sanitizer.log"; then
        note="compute-sanitizer does not support this machine"
    elif [ $code -ne 0 ]; then
        fail
        note="FAILED (exit status $code) $note"
    fi
    echo "| $tool, $(basename "$1") | $note |"
}

# A token file of llm.c's, of random tokens below 49,152.
random_tokens() {
    {
        printf '\210\330\064\001\001\000\000\000\000\000\040\000' # magic number, version 1, 2^21 tokens
        head -c 1012 /dev/zero
        head -c 4194304 /dev/urandom | tr '\300-\377' '\000-\077'
    } >"$1"
}

llmc_row() { # MODEL BATCH
    may_start "llm.c, $1" 30 || return
    (cd ../llm.c && limited 60 ./train_gpt2cu -i "$logs_whole/tokens.bin" -j "$logs_whole/tokens.bin" -e "$1" \
        -b "$2" -t 1024 -d $((1024 * $2)) -x 12 -v 0 -s 0 -m 1) >"$logs/llmc.log" 2>&1
    # shellcheck disable=SC2046
    set -- "$1" "$2" $(sed -n 's/^step .*| *\([0-9.]*\) ms | *\([0-9.]*\)%.*| *\([0-9]*\) tok\/s.*/\1 \3 \2/p' \
        "$logs/llmc.log" | middle)
    if [ -n "${5:-}" ]; then
        echo "| llm.c \`-e $1 -b $2 -t 1024\` | $3 | $4 | | $5 % (of the GPU's nominal rate) | | |"
    else
        echo "| llm.c \`-e $1 -b $2 -t 1024\` | did not run: $(last_words "$logs/llmc.log") | | | | | |"
    fi
}

# ---------------------------------------------------------------------------------------------------------------

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "gpu_check.sh: no GPU is here; the emulator runs the same kernels in make test" >&2
    exit 1
fi
mkdir -p $logs || exit 1
logs_whole=$PWD/$logs
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
if [ -z "$prebuilt" ]; then
    say "build"
    limited 240 make -j4 gpu-programs || exit 1
fi
for program in $programs; do
    [ -x "$gpu/$program" ] || { echo "gpu_check.sh: $gpu/$program is missing: make gpu-programs" >&2; exit 1; }
done
find_libraries

say "kernels on this GPU against the naive versions"
echo "| tests | result | time |"
echo "|---|---|---|"
test_row "kernels" $gpu/test_kernels 100

say "attention and the memory-bound kernels alone"
if may_start "benchmark" 20; then
    limited 60 $gpu/bench_gpu 2>&1 || { fail; echo "FAILED: bench_gpu"; }
fi

say "whole steps, bf16: medians after the fifth; goals for an H200; MFU is a share of a large product's measured rate"
echo "| flags | ms per step | tokens/s | goal | MFU | planned peak bytes | measured peak bytes |"
echo "|---|---|---|---|---|---|---|"
speed_row 550000 "-e d12 --vocab 50257 -t 1024 -b 32 -x 16 -r 0"
speed_row 51000 "-e d48 --vocab 50257 -t 1024 -b 16 -x 12 -r 0"
for level in 1 2 3; do
    speed_row "" "-e d12 --vocab 50257 -t 1024 -b 32 -x 12 -r $level"
    speed_row "" "-e d48 --vocab 50257 -t 1024 -b 16 -x 10 -r $level"
done
if [ -d ../llm.c ]; then
    if [ ! -x ../llm.c/train_gpt2cu ] && [ -n "$(find_nvcc)" ] && may_start "building llm.c" 90; then
        (PATH=$PATH:$(dirname "$(find_nvcc)") && cd ../llm.c &&
            limited 100 make train_gpt2cu) >$logs/llmc_build.log 2>&1
    fi
    if [ -x ../llm.c/train_gpt2cu ]; then
        random_tokens $logs/tokens.bin
        llmc_row d12 32
        llmc_row d48 16
    else
        echo "| llm.c | could not be built here | | | | | |"
    fi
fi

say "the whole trainer on this GPU: against the CPU, and the same bits for every -r"
echo "| tests | result | time |"
echo "|---|---|---|"
test_row "trainer" $gpu/test_emulated 150

if command -v compute-sanitizer >/dev/null; then
    say "compute-sanitizer, TINY"
    echo "| tool, program | result |"
    echo "|---|---|"
    tiny="-e 2x128x2 --vocab 67 -t 64 -b 2 -i random -v 0 -g 0 -x 1 --device cuda"
    for tool in memcheck racecheck; do
        # shellcheck disable=SC2086
        sanitize_row "$tool" $gpu/train_gpt $tiny
        sanitize_row "$tool" $gpu/bench_gpu tiny
    done
else
    say "compute-sanitizer is not installed"
fi
say "done: $failed failed, $missed not started"
[ "$failed" -eq 0 ] && [ "$missed" -eq 0 ]
