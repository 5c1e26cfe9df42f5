#!/bin/sh
# The README's reading order: a Markdown table of the sources with their line counts and their own first lines.
#   reading_order.sh            prints it
#   reading_order.sh README.md  checks that the table there is this one; says how to renew it otherwise
files="train_gpt.cu dev/number.h dev/random.h dev/device.h dev/host.h dev/queue.h dev/queue_cpu.h dev/cuda.h dev/process.h dev/threads.h
       dev/devices.h dev/ledger.h dev/memory.h dev/witness.h dev/disk.h dev/slot.h dev/transfer.h
       dev/kernels/vector.cuh dev/kernels/encoder.h dev/kernels/encoder.cuh
       dev/kernels/residual.h dev/kernels/residual.cuh dev/kernels/columns.h dev/kernels/columns.cuh
       dev/kernels/layernorm.h dev/kernels/layernorm.cuh
       dev/kernels/matmul.h dev/kernels/matmul_shape.h dev/kernels/tile.h dev/kernels/matmul_tiles.h
       dev/kernels/matmul_onednn.h dev/kernels/matmul.cuh dev/kernels/bias.h dev/kernels/bias.cuh
       dev/kernels/attention.h dev/kernels/attention.cuh dev/kernels/mma.cuh dev/kernels/attention_mma.cuh
       dev/kernels/gelu.h dev/kernels/gelu.cuh dev/kernels/classifier.h dev/kernels/classifier.cuh
       dev/kernels/norm.h dev/kernels/norm.cuh dev/kernels/adamw.h dev/kernels/adamw.cuh
       dev/layout.h dev/levels.h dev/config.h dev/placement.h dev/schedule.h dev/ranks.h dev/collective.h dev/store.h dev/update.h
       dev/batch.h dev/sample.h dev/budget.h dev/plan.h dev/flags.h dev/job.h dev/file.h dev/checkpoint.h dev/tune.h dev/log.h
       dev/report.h dev/error.h data/loader.h data/tokenizer.h data/make_tokens.c"
table() {
    echo "| file | lines | what it is |"
    echo "|---|---:|---|"
    for file in $files; do
        what=$(sed -n '1s|^// [^ ]* - ||p' "$file")
        echo "| [$file]($file) | $(grep -c '' "$file") | $what |"
    done
}
if [ $# -eq 0 ]; then
    table
    exit
fi
lines=$(table)
if ! printf '%s\n' "$lines" | while IFS= read -r line; do grep -qxF "$line" "$1" || exit 1; done; then
    echo "$1: the table of sources is not what scripts/reading_order.sh prints; put that in its place" >&2
    exit 1
fi
for file in dev/*.h dev/kernels/*.h dev/kernels/*.cuh data/*.h data/*.c train_gpt.cu; do
    printf '%s\n' "$lines" | grep -qF "[$file]" || { echo "scripts/reading_order.sh does not name $file" >&2; exit 1; }
done
