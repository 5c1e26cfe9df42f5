#!/bin/sh
# Whether two builds of the trainer do the same: the same checkpoint, numbers of every step and bytes of every phase,
# bit for bit, over runs that have every technique. For changes that should change nothing.
#   same_runs.sh OLD NEW [cuda]        two programs, such as /tmp/before/train_gpt ./train_gpt
# cuda: on their cuda device (the emulator in programs of `make emulated`, with a device for each rank), and fewer
# runs.
# Prints a line per run, then "N the same, N differ"; exits with 1 if any differ.
if [ $# -lt 2 ]; then
    echo "usage: scripts/same_runs.sh OLD NEW [cuda]" >&2
    exit 2
fi
old=$1
new=$2
device=${3:-cpu}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
export OMP_WAIT_POLICY=passive EMULATOR_DEVICES=2
same=0
differ=0

# What a run leaves: its checkpoints' hashes, its steps without times and rates, its memory.
left() {
    (cd "$1" && sha256sum checkpoint_*.bin && cut -d, -f1-6,10- steps.csv && cat memory.csv) 2>&1
}

# run RANKS THREADS FLAGS...
run() {
    ranks=$1
    threads=$2
    shift 2
    flags="$* --device $device -i random -x 3 -n 2 -v 2 -m 2 -s 3 -g 12"
    start=""
    [ "$ranks" -eq 1 ] || start="scripts/launch.sh $ranks"
    for program in old new; do
        eval "path=\$$program"
        rm -rf "$folder/$program"
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=$threads timeout 300 $start "$path" $flags -o "$folder/$program" --swap-dir "$folder" \
            >"$folder/$program.log" 2>&1
        echo "exit $?" >"$folder/$program.left"
        left "$folder/$program" >>"$folder/$program.left"
    done
    if cmp -s "$folder/old.left" "$folder/new.left" && grep -q '^exit 0' "$folder/old.left"; then
        same=$((same + 1))
        echo "same    $ranks ranks, $threads threads: $flags"
    else
        differ=$((differ + 1))
        echo "DIFFER  $ranks ranks, $threads threads: $flags"
        diff "$folder/old.left" "$folder/new.left" | head -n 10
        tail -n 1 "$folder/old.log" "$folder/new.log"
    fi
}

tiny="-e 2x48x3 --vocab 67 -t 32 -b 2"
odd="-e 2x51x3 --vocab 67 -t 37 -b 3"
host="optimizer=host,gradients=host,weights=host"
disk="optimizer=disk,gradients=disk,weights=disk"
types="fp32 bf16 fp16"
[ "$device" = cpu ] || types="fp32 bf16"
for type in $types; do
    for model in "$tiny" "$odd"; do
        run 1 2 "$model -p $type"
        run 1 2 "$model -p $type -r 3 --head-chunks 3 --offload $host,activations=host"
        run 1 2 "$model -p $type -r 3 --offload $disk,activations=disk"
        [ "$device" = cpu ] || continue
        run 1 3 "$model -p $type -r 1 --attention plain"
        run 1 1 "$model -p $type -r 2 --recompute-layers 1 --head-chunks 2"
        run 1 2 "$model -p $type --offload optimizer=host --update device"
        run 1 2 "$model -p $type --offload optimizer=disk,gradients=host"
    done
    run 1 2 "$tiny -p $type -d 192 -r 2"
    run 1 2 "$tiny -p $type -d 192 -r 3 --offload $host,activations=disk"
    run 2 1 "$tiny -p $type -d 256 -z 1"
    run 2 1 "$tiny -p $type -d 256 -z 3 -r 3 --offload optimizer=host"
    [ "$device" = cpu ] || continue
    run 2 1 "$odd -p $type -z 0"
    run 2 1 "$odd -p $type -z 2 -r 3 --offload $disk"
    run 3 1 "$odd -p $type -z 2 --offload gradients=host"
    run 3 1 "$tiny -p $type -z 3 -r 1"
    run 3 1 "$odd -p $type -z 3 -r 3 --offload $host,activations=host"
    run 1 2 "-e 1x128x2 --vocab 257 -t 128 -b 5 -d 1280 -p $type"
done
echo "$same the same, $differ differ"
[ "$differ" -eq 0 ]
