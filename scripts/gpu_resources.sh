#!/bin/sh
# What each CUDA kernel takes on each kind of GPU, as a Markdown table: registers a thread and resident warps, of as
# many as a multiprocessor has. Fails if a kernel spills registers or can't be launched, unless `allowed` says why.
#   gpu_resources.sh NVCC FLAGS...      FLAGS without targets; from make gpu-resources
# Resident warps are a bound from registers, shared memory and threads, not a measurement.
nvcc=$1
shift
targets="80 86 89 90 100 120"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Threads of a block and bytes of dynamic shared memory, where that isn't 256 and 0: kernel, threads, bytes, as the
# kernels' own headers have them.
cat >"$work/launches.cu" <<'END'
#include "dev/kernels/attention.h"
#include "dev/kernels/classifier.h"
template <int D> static void attention(const char *type) {
    typedef AttentionMmaForward<D> Forward;
    typedef AttentionMmaBackward<D> Backward;
    printf("attention_mma_forward_kernel<%s,%d> %d %zu\n", type, D, (int)Forward::WARPS * WARP,
           attention_mma_forward_shared<D>());
    printf("attention_mma_backward_q_kernel<%s,%d> %d %zu\n", type, D, (int)Backward::WARPS * WARP,
           attention_mma_backward_q_shared<D>());
    printf("attention_mma_backward_kv_kernel<%s,%d> %d %zu\n", type, D, (int)Backward::WARPS * WARP,
           attention_mma_backward_kv_shared<D>());
}
int main(void) {
    const char *const types[] = {"FP32", "BF16", "FP16"};
    for (int t = FP32; t < DTYPES; t++) {
        for (int n = 1; n <= 8; n++) printf("classifier_kernel<%s,%d> %d 0\n", types[t], n, (int)CLASSIFIER_THREADS);
        attention<64>(types[t]);
        attention<96>(types[t]);
        attention<128>(types[t]);
    }
}
END
"$nvcc" "$@" -I. -gencode arch=compute_80,code=sm_80 -diag-suppress 177 -Xcompiler -Wno-unused-function \
    "$work/launches.cu" -o "$work/launches" -lcublasLt || exit 1
launches=$("$work/launches") || exit 1
# Kernels that may spill: kernel, sm_NN, bytes at most, reason (measured).
allowed="
"

codes=
for target in $targets; do codes="$codes -gencode arch=compute_$target,code=sm_$target"; done
log=$work/log
# shellcheck disable=SC2086
"$nvcc" "$@" $codes -Xptxas -v -c train_gpt.cu -o "$work/train_gpt.o" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
c++filt <"$log" |
    sed 's/(Dtype)0/FP32/g; s/(Dtype)1/BF16/g; s/(Dtype)2/FP16/g; s/(bool)0/false/g; s/(bool)1/true/g' |
    LAUNCHES="$launches" ALLOWED="$allowed" TARGETS="$targets" awk '
    function floor(x) { return int(x) }
    function least(a, b) { return a < b ? a : b }
    BEGIN {
        n_targets = split(ENVIRON["TARGETS"], target, " ")
        # Of a multiprocessor: threads, blocks, bytes of shared memory (1 KiB less for each block); 65536 registers.
        split("2048 1536 1536 2048 2048 1536", most_threads, " ")
        split("32 16 24 32 32 24", most_blocks, " ")
        split("164 100 100 228 228 100", most_shared, " ")
        n = split(ENVIRON["LAUNCHES"], line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], w, " ") == 3) { threads[w[1]] = w[2]; dynamic[w[1]] = w[3] }
        n = split(ENVIRON["ALLOWED"], line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], w, " ") > 3) may_spill[w[1] " " w[2]] = w[3]
    }
    /Compiling entry function/ {
        sm = $NF; gsub(/\047/, "", sm)
        match($0, /\047.*\047 for/)
        name = substr($0, RSTART + 1, RLENGTH - 6)
        sub(/^void /, "", name); sub(/\(.*/, "", name); gsub(/ /, "", name)
        spilled = 0
    }
    /bytes spill stores/ { for (i = 1; i < NF; i++) if ($(i + 2) == "spill" && $(i + 3) ~ /^stores/) spilled = $i }
    /ptxas info.*Used/ {
        registers = 0; shared = 0
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^registers/) registers = $i
            if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i
        }
        if (!(name in seen)) { seen[name] = 1; names[++n_names] = name }
        if (!(name in threads)) threads[name] = 256
        for (t = 1; t <= n_targets; t++) if (sm == "sm_" target[t]) break
        warps = threads[name] / 32
        blocks = least(most_blocks[t], floor(most_threads[t] / threads[name]))
        blocks = least(blocks, floor(floor(16384 / (256 * int((registers * 32 + 255) / 256))) * 4 / warps))
        all_shared[name] = shared + dynamic[name]
        blocks = least(blocks, floor(most_shared[t] * 1024 / (all_shared[name] + 1024)))
        if (all_shared[name] > (most_shared[t] - 1) * 1024) blocks = 0
        cell[name, t] = registers ", " blocks * warps "/" most_threads[t] / 32
        if (spilled > 0) cell[name, t] = cell[name, t] ", " spilled " B spilled"
        if (spilled > may_spill[name " " sm] + 0) bad = bad name " spills " spilled " bytes on " sm "\n"
        if (blocks == 0) bad = bad name " cannot be launched on " sm "\n"
    }
    END {
        printf "| kernel | threads | shared bytes |"
        for (t = 1; t <= n_targets; t++) printf " sm_%s |", target[t]
        printf "\n|---|---:|---:|"
        for (t = 1; t <= n_targets; t++) printf "---|"
        print ""
        for (i = 1; i <= n_names; i++) {
            name = names[i]
            printf "| %s | %d | %d |", name, threads[name], all_shared[name]
            for (t = 1; t <= n_targets; t++) printf " %s |", cell[name, t]
            print ""
        }
        print "\nCells: registers a thread, resident warps of a multiprocessor of at most so many."
        if (n_names == 0) bad = "no kernel was found\n"
        if (bad) { printf "%s", bad >"/dev/stderr"; exit 1 }
    }'
