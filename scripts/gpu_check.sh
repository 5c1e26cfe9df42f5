#!/bin/sh
# Everything that only a GPU can show, in at most six minutes: builds the program and the kernel tests for the GPU that is
# here, runs them, and prints a table as it goes. What it prints belongs into dev/GPU.md, with the date.
#   scripts/gpu_check.sh [SECONDS]      SECONDS: stop starting new things after so long (default 330)
# llm.c's train_gpt2cu beside the project (../llm.c) is run for comparison if it is there.
cd "$(dirname "$0")/.." || exit 1
limit=${1:-330}
start=$(date +%s)
left() { echo $((limit - $(date +%s) + start)); }
say() { printf '\n== %s (%s s left)\n' "$*" "$(left)"; }

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "gpu_check.sh: no GPU is here; the emulator runs the same kernels in make test" >&2
    exit 1
fi
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
say "build"
make -j4 CUDA=1 train_gpt build/gpu/test_kernels || exit 1

say "kernel tests on the GPU against the naive versions"
timeout 120 build/gpu/test_kernels 2>&1 | grep -E '^\[  (FAILED|PASSED)|ERROR' | head -40

tiny="-e 2x128x2 --vocab 67 -t 64 -b 2 -i random -v 0 -g 0 -x 3"
say "the same numbers as the CPU, and for every -r"
for flags in "--device cpu -p fp32" "--device cuda -p fp32" "--device cuda -p fp32 -r 3" "--device cuda -p bf16" \
    "--device cuda -p bf16 -r 2" "--device cuda -p bf16 --attention plain"; do
    # shellcheck disable=SC2086
    printf '%-40s %s\n' "$flags" "$(./train_gpt $tiny $flags | sed -n 's/^step 3.*loss \([0-9.]*\) | norm \([0-9.]*\).*/loss \1 norm \2/p')"
done
if command -v compute-sanitizer >/dev/null && [ "$(left)" -gt 200 ]; then
    say "compute-sanitizer on TINY"
    for tool in memcheck racecheck; do
        # shellcheck disable=SC2086
        timeout 60 compute-sanitizer --tool $tool ./train_gpt $tiny --device cuda -x 1 2>&1 | tail -n 1
    done
fi

say "speed: median of the steps after the fifth"
echo "| model, flags | ms per step | tokens/s | MFU | planned and measured peak MiB |"
echo "|---|---|---|---|---|"
row() {
    [ "$(left)" -gt 20 ] || return
    # shellcheck disable=SC2086
    ./train_gpt $1 -i random -v 0 -g 0 -p bf16 --device cuda >build/gpu_check.log 2>&1 ||
        { echo "| \`$1\` | failed: $(tail -n 1 build/gpu_check.log) | | | |"; return; }
    peak=$(sed -n 's/^peak  *\([0-9.]* MiB\).*/\1/p' build/gpu_check.log)
    sed -n 's/^step [0-9]*\/.*| \([0-9]*\) ms | \([0-9]*\) tokens\/s | mfu \([0-9.]*\) %.*/\1 \2 \3/p' build/gpu_check.log |
        tail -n +6 | sort -n | awk -v flags="$1" -v peak="$peak" \
        '{ row[NR] = $0 } END { split(row[int((NR + 1) / 2)], x, " ");
           printf "| `%s` | %s | %s | %s %% | %s |\n", flags, x[1], x[2], x[3], peak }'
}
row "-e d12 --vocab 50257 -t 1024 -b 32 -x 15"
for level in 1 2 3; do row "-e d12 --vocab 50257 -t 1024 -b 32 -x 12 -r $level"; done
row "-e d48 --vocab 50257 -t 1024 -b 8 -x 10"
for level in 1 3; do row "-e d48 --vocab 50257 -t 1024 -b 8 -x 10 -r $level"; done
row "-e d12 --vocab 50257 -t 4096 -b 8 -x 12 -r 1"
if [ -x ../llm.c/train_gpt2cu ] && [ "$(left)" -gt 30 ]; then
    say "llm.c"
    (cd ../llm.c && timeout 60 ./train_gpt2cu -e d12 -b 32 -t 1024 -d 32768 -x 12 -v 0 -s 0 2>&1 | tail -n 3)
fi
say "done"
