#!/bin/sh
# The README's reading order: a Markdown table of the sources, each with the idea that its own first line states. The
# CUDA half of X.h, X.cuh, stands in the same row.
#   reading_order.sh            prints it
#   reading_order.sh README.md  checks that the table there is this one; says how to renew it otherwise
# A word that begins with = is a title, its spaces written as _.
files="train_gpt.cu
       =numbers_and_devices dev/host_device.h dev/size.h dev/number.h dev/partials.h dev/random.h dev/device.h
       dev/host.h dev/queue.h dev/queue_cpu.h dev/cuda.h dev/process.h dev/threads.h dev/devices.h
       =memory dev/ledger.h dev/memory.h dev/witness.h dev/disk.h dev/slot.h dev/transfer.h dev/context.h
       =operations dev/kernels/vector.cuh dev/kernels/warp.cuh dev/kernels/encoder.h
       dev/kernels/residual.h dev/kernels/columns.h dev/kernels/layernorm.h dev/kernels/matmul.h
       dev/kernels/matmul_shape.h dev/kernels/vec.h dev/kernels/tile.h
       dev/kernels/matmul_tiles.h dev/kernels/matmul_onednn.h dev/kernels/bias.h dev/kernels/attention.h
       dev/kernels/mma.cuh dev/kernels/attention_mma.cuh dev/kernels/gelu.h dev/kernels/classifier.h
       dev/kernels/norm.h dev/kernels/adamw.h
       =the_model_and_its_homes dev/layout.h dev/levels.h dev/config.h dev/placement.h dev/schedule.h dev/ranks.h
       dev/collective.h dev/store.h dev/tensor.h dev/update.h
       =a_run dev/batch.h dev/sample.h dev/budget.h dev/plan.h dev/flags.h dev/job.h dev/file.h dev/checkpoint.h
       dev/tune.h dev/log.h dev/report.h dev/error.h
       =data data/loader.h data/text.h data/tokenizer.h data/make_tokens.c"
table() {
    echo "| file | what it is |"
    echo "|---|---|"
    for file in $files; do
        case "$file" in
        =*)
            echo "| *$(echo "${file#=}" | tr _ ' ')* | |"
            continue
            ;;
        *.h) half=${file%.h}.cuh ;;
        *) half= ;;
        esac
        what=$(sed -n '1s|^// [^ ]* - ||p' "$file")
        [ -n "$what" ] || echo "reading_order.sh: the first line of $file does not say what it is" >&2
        [ -n "$half" ] && [ -e "$half" ] && half=", [.cuh]($half)" || half=
        echo "| [$file]($file)$half | $what |"
    done
}
if [ $# -eq 0 ]; then
    table
    exit
fi
printed=$(mktemp) || exit 1
trap 'rm -f "$printed"' EXIT
table >"$printed"
# In one piece and in order.
if ! sed -n '/^| file | what it is |$/,$p' "$1" | head -n "$(grep -c '' "$printed")" | cmp -s - "$printed"; then
    echo "$1: the table of sources is not what scripts/reading_order.sh prints; put that in its place" >&2
    exit 1
fi
for file in dev/*.h dev/kernels/*.h dev/kernels/*.cuh data/*.h data/*.c train_gpt.cu; do
    grep -qF "]($file)" "$printed" || { echo "scripts/reading_order.sh does not name $file" >&2; exit 1; }
done
