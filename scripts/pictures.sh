#!/bin/sh
# The pictures of the README and of the lessons (dev/*.md), drawn by scripts/picture.sh.
#   pictures.sh draw DIRECTORY      draws all: memory.svg of two recorded runs (plain.csv and saving.csv in
#                                   dev/pictures), the others of plans made now, for an H100 that need not be there
#   pictures.sh measure DIRECTORY   makes the two runs anew, for STEPS steps (100), and leaves their files there:
#                                   plain.csv, saving.csv, memory.svg, and what they printed, plain.log and saving.log
# PROGRAM in the environment: the trainer (./train_gpt).
PROGRAM=${PROGRAM:-./train_gpt}
STEPS=${STEPS:-100}
saving="-r 3 --offload optimizer=host"
recorded=dev/pictures
picture="sh scripts/picture.sh"
[ $# -eq 2 ] || { echo "usage: pictures.sh draw|measure DIRECTORY" >&2; exit 2; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$2" || exit 1

# memory DIRECTORY: the picture of the two runs whose files are there.
memory() { $picture "$2/memory.svg" "./train_gpt" "$1/plain.csv" "./train_gpt $saving" "$1/saving.csv"; }

# plan NAME FLAGS...: the memory.csv of a plan, in the folder.
plan() {
    name=$1
    shift
    set -- "$@" -p bf16 --vocab 50257 -i random -v 0 -g 0 --device plan:h100 -o "$folder/$name"
    "$PROGRAM" "$@" >"$folder/log" 2>&1 && return
    tail -n 1 "$folder/log" >&2
    exit 1
}

# What each level of -r leaves of 124M's memory; 355M in 2 GiB; a rank of eight at each stage of ZeRO for 1558M.
plans() {
    small="-e d12 -t 1024 -b 8"
    middle="-e d24 -t 256 -b 1"
    large="-e d48 -t 1024 -b 1 -r 3 --head-chunks 16 --ranks 8"
    away="optimizer=disk,weights=host,activations=host"
    # shellcheck disable=SC2086
    {
        for level in 0 1 2 3; do plan "r$level" $small -r $level; done
        plan chunks $small -r 3 --head-chunks 16
        plan plain $middle
        plan away $middle -r 3 --head-chunks 8 --offload $away --swap-dir "$folder"
        for stage in 0 1 2 3; do plan "z$stage" $large -z $stage; done
    }
    set -- "$1" "$folder/r0/memory.csv" "$folder/r1/memory.csv" "$folder/r2/memory.csv" "$folder/r3/memory.csv"
    $picture --peaks "$1/levels.svg" "-r 0" "$2" "-r 1" "$3" "-r 2" "$4" "-r 3" "$5" \
        "-r 3 --head-chunks 16" "$folder/chunks/memory.csv" || exit 1
    set -- "$1" "$folder/plain/memory.csv" "$folder/away/memory.csv"
    $picture --peaks "$1/offload.svg" "without flags" "$2" "-r 3, offload" "$3" "-r 3, offload" "$3:host" \
        "-r 3, offload" "$3:disk" || exit 1
    $picture --peaks "$1/ranks.svg" "-z 0" "$folder/z0/memory.csv" "-z 1" "$folder/z1/memory.csv" \
        "-z 2" "$folder/z2/memory.csv" "-z 3" "$folder/z3/memory.csv"
}

case "$1" in
draw)
    memory $recorded "$2" && plans "$2"
    ;;
measure)
    for run in plain saving; do
        flags=
        [ $run = plain ] || flags=$saving
        # shellcheck disable=SC2086
        "$PROGRAM" -x "$STEPS" -n "$STEPS" $flags -o "$folder/$run" >"$2/$run.log" 2>&1 ||
            { tail -n 1 "$2/$run.log" >&2; exit 1; }
        cp "$folder/$run/memory.csv" "$2/$run.csv" || exit 1
    done
    memory "$2" "$2" && echo "picture: $2/memory.svg"
    grep -h '^peak ' "$2/plain.log" "$2/saving.log"
    ;;
*)
    echo "usage: pictures.sh draw|measure DIRECTORY" >&2
    exit 2
    ;;
esac
