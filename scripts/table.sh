#!/bin/sh
# The trade-off table (make table): one row per memory technique and sensible combination, measured on the device that
# is there: peak bytes by tier and kind, time per step, and its ratio to the first row. All rows train the same model on
# the same number of tokens per step.
#   scripts/table.sh [OUTPUT]      OUTPUT (build/table): OUTPUT.md, OUTPUT.csv, and with gnuplot OUTPUT.svg, OUTPUT.png
# In the environment: MODEL (flags of the model), SEQUENCES (per step, a multiple of 4), STEPS (per run; the first two
# don't count), PROGRAM (./train_gpt), DEVICE (auto), SWAP (a directory on a real disk), RANKS (2; 1: no rows of ranks).
# Time is fair against noise only in part: the first row is measured again after every five others. A ratio is a range,
# to the slowest and to the fastest of all first rows; the CSV also has the one to their median.
# A row that fails stands in the table with its message, and the exit status is 1.
MODEL=${MODEL:-"-e 12x192x3 --vocab 2048 -t 256 -i random"}
SEQUENCES=${SEQUENCES:-4}
STEPS=${STEPS:-7}
PROGRAM=${PROGRAM:-./train_gpt}
DEVICE=${DEVICE:-auto}
SWAP=${SWAP:-build}
RANKS=${RANKS:-2}
# Threads that wait give their core away at once: neighbours, ranks and the queues' threads need it.
OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export OMP_WAIT_POLICY
output=${1:-build/table}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$(dirname "$output")"

# Name (no commas: gnuplot would end there) | ranks | micro-batches per step | flags. The first row is what the others
# are compared with.
rows() {
    everything_host="optimizer=host,gradients=host,weights=host,activations=host"
    rest_host="optimizer=disk,weights=host,activations=host"
    everything_disk="optimizer=disk,gradients=disk,weights=disk,activations=disk"
    cat <<ROWS
plain|1|1|-p fp32
bf16|1|1|-p bf16
fp16|1|1|-p fp16
GELU again|1|1|-p fp32 -r 1
GELU and LayerNorms again|1|1|-p fp32 -r 2
blocks again|1|1|-p fp32 -r 3
head in 8 chunks|1|1|-p fp32 --head-chunks 8
attention with T x T matrix|1|1|-p fp32 --attention plain
4 micro-batches|1|4|-p fp32
blocks again + 8 chunks|1|1|-p fp32 -r 3 --head-chunks 8
the same in bf16|1|1|-p bf16 -r 3 --head-chunks 8
and 4 micro-batches|1|4|-p bf16 -r 3 --head-chunks 8
states on the host|1|1|-p fp32 --offload optimizer=host
states streamed through the device|1|1|-p fp32 --offload optimizer=host --update device
states on the disk|1|1|-p fp32 --offload optimizer=disk
gradients on the host|1|1|-p fp32 --offload gradients=host
weights on the host|1|1|-p fp32 --offload weights=host
activations on the host|1|1|-p fp32 -r 3 --offload activations=host
bf16 + states on the host|1|1|-p bf16 --offload optimizer=host
and gradients|1|1|-p bf16 --offload optimizer=host,gradients=host
bf16 + blocks again + states on the host|1|1|-p bf16 -r 3 --head-chunks 8 --offload optimizer=host
states on the disk + rest on the host|1|1|-p bf16 -r 3 --head-chunks 8 --offload $rest_host
everything on the host|1|1|-p bf16 -r 3 --head-chunks 8 --offload $everything_host
everything on the disk|1|1|-p bf16 -r 3 --head-chunks 8 --offload $everything_disk
and 4 micro-batches|1|4|-p bf16 -r 3 --head-chunks 8 --offload $everything_disk
ROWS
    [ "$RANKS" -gt 1 ] || return
    for stage in 0 1 2 3; do echo "ZeRO-$stage on $RANKS ranks|$RANKS|1|-p fp32 -z $stage"; done
    echo "ZeRO-3 + bf16 + states on the host|$RANKS|1|-p bf16 -r 3 --head-chunks 8 -z 3 --offload optimizer=host"
}

# run DIRECTORY RANKS MICRO_BATCHES FLAGS: the program; its words in DIRECTORY/log, the last one of a failure in error.
run() {
    directory=$1
    b=$((SEQUENCES / $2 / $3))
    mkdir -p "$directory"
    # shellcheck disable=SC2046,SC2086
    set -- "$2" "$PROGRAM" $MODEL -b $b $([ "$3" -eq 1 ] || echo "-d $((SEQUENCES * length))") $4 \
        --device "$DEVICE" --swap-dir "$SWAP" -x "$STEPS" -v 0 -g 0 -o "$directory"
    [ "$1" -gt 1 ] && set -- sh scripts/launch.sh "$@" || shift
    "$@" >"$directory/log" 2>&1 && [ -s "$directory/steps.csv" ] && [ -s "$directory/memory.csv" ] && return
    rm -f "$directory/steps.csv"
    grep -v -e '^$' -e '^-*$' -e '^usage' "$directory/log" | grep -m 1 -i -e 'train_gpt:' -e error -e refused |
        cut -c 1-200 | tr '|,' '/;' >"$directory/error"
    [ -s "$directory/error" ] || tail -n 1 "$directory/log" | cut -c 1-200 | tr '|,' '/;' >"$directory/error"
    [ -s "$directory/error" ] || echo "it printed nothing" >"$directory/error"
}

# Median of column ms of steps.csv, without the first two steps.
milliseconds() {
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "ms") column = i } NR > 3 { print $column }' "$1" | sort -n |
        awk '{ x[NR] = $1 } END { if (NR) print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}

# Measured bytes of the largest rank: for each tier, of the phase in which it peaks, its sum and those of each column of
# the table; 21 numbers.
bytes() {
    awk -F, '
    BEGIN {
        split("device host disk", tiers, " ")
        split("weights,master weights,gradients,moments,activations", kinds, ",")
        for (k in kinds) column[kinds[k]] = k
    }
    NR > 1 {
        peak[$1, $2, $3] += $6
        part[$1, $2, $3, ($4 in column) ? column[$4] : 6] += $6
        seen[$1 SUBSEP $2]
    }
    END {
        for (t = 1; t <= 3; t++) {
            best = -1
            for (key in seen) {
                split(key, at, SUBSEP)
                if (peak[at[1], at[2], tiers[t]] <= best) continue
                best = peak[at[1], at[2], tiers[t]]
                rank = at[1]
                phase = at[2]
            }
            line = line sprintf("%.0f,", best)
            for (k = 1; k <= 6; k++) {
                line = line sprintf("%.0f%s", part[rank, phase, tiers[t], k], t == 3 && k == 6 ? "" : ",")
            }
        }
        print line
    }' "$1"
}

length=$(echo "$MODEL" | sed -n 's/.*-t \([0-9]*\).*/\1/p')
if [ -z "$length" ] || [ $((SEQUENCES % 4)) -ne 0 ]; then
    echo "table.sh: MODEL needs -t, SEQUENCES must be a multiple of 4" >&2
    exit 2
fi

# The first row again and again: its medians, one per line.
baselines=0
first=$(rows | head -n 1)
baseline() {
    baselines=$((baselines + 1))
    run "$folder/first$baselines" 1 1 "${first##*|}"
    if [ -s "$folder/first$baselines/steps.csv" ]; then
        milliseconds "$folder/first$baselines/steps.csv"
    else
        echo 0
    fi >>"$folder/baselines"
}
started=$(date +%s)
baseline
if [ ! -s "$folder/first1/steps.csv" ]; then
    echo "table.sh: the first row fails: $(cat "$folder/first1/error")" >&2
    exit 1
fi
device=$(sed -n 's/^device *//p' "$folder/first1/log" | head -n 1)
note=""
if [ "$RANKS" -gt 1 ]; then
    case "$device" in
    CPU*) [ -n "$(command -v mpirun)" ] || note="no mpirun (make setup)" ;;
    *) [ "$(nvidia-smi -L 2>/dev/null | grep -c GPU)" -ge "$RANKS" ] || note="fewer GPUs than $RANKS" ;;
    esac
    [ -z "$note" ] || { RANKS=1; note="Without rows of several ranks: $note."; }
fi

# One line per row: name, ranks, flags, error, ms, 21 numbers of bytes.
n=0
rows >"$folder/rows"
while IFS='|' read -r name ranks micro flags; do
    n=$((n + 1))
    if [ $n -eq 1 ]; then
        directory=$folder/first1
    else
        directory=$folder/row$n
        [ $(((n - 2) % 5)) -ne 0 ] || [ $n -eq 2 ] || baseline
        run "$directory" "$ranks" "$micro" "$flags" </dev/null
    fi
    [ ! -t 2 ] || printf '\r%d of %d rows ' $n "$(grep -c '' "$folder/rows")" >&2
    [ "$micro" -eq 1 ] || flags="$flags -d $((SEQUENCES * length))"
    flags="-b $((SEQUENCES / ranks / micro)) $flags"
    if [ -s "$directory/steps.csv" ]; then
        echo "$name|$ranks|$flags||$(milliseconds "$directory/steps.csv")|$(bytes "$directory/memory.csv")"
    else
        echo "$name|$ranks|$flags|$(cat "$directory/error")||"
    fi >>"$folder/results"
done <"$folder/rows"
baseline
[ ! -t 2 ] || printf '\r' >&2

sort -n "$folder/baselines" >"$folder/sorted"
awk -F'|' -v csv="$output.csv" -v baselines="$folder/sorted" '
function mib(x) { return sprintf("%.1f", x / 1048576) }
function cell(k,    text, t, x) {  # a kind: on the device, + on the host, + on the disk
    for (t = 0; t < 3; t++) {
        x = bytes[t * 7 + 1 + k]
        if (x < 52429) continue
        text = text (text == "" ? "" : " + ") mib(x) substr("  h d", 2 * t, t ? 2 : 0)
    }
    return text == "" ? "0" : text
}
BEGIN {
    while ((getline line < baselines) > 0) if (line > 0) base[++n] = line
    split("device,host,disk", tiers, ",")
    split("weights,master,gradients,moments,activations,rest", kinds, ",")
    median = (base[int((n + 1) / 2)] + base[int(n / 2) + 1]) / 2
    printf "name,ranks,flags,error,ms_per_step,ratio,ratio_low,ratio_high" >csv
    for (t = 1; t <= 3; t++) {
        printf ",%s_bytes", tiers[t] >csv
        for (k = 1; k <= 6; k++) printf ",%s_%s_bytes", tiers[t], kinds[k] >csv
    }
    printf "\n" >csv
    print "| | flags | device MiB | host | disk | weights | master | gradients | moments | activations | rest |" \
        " ms/step | ratio |"
    print "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
}
{
    printf "\"%s\",%s,\"%s\",\"%s\"", $1, $2, $3, $4 >csv
    printf "| %s | `%s` |", $1, $3
    if ($4 != "") {
        print ",,,,,,,,,,,,,,,,,,,,,,,,," >csv
        print " failed: " $4 " | | | | | | | | | | |"
        next
    }
    split($6, bytes, ",")
    printf ",%.3f,%.3f,%.3f,%.3f,%s\n", $5, $5 / median, $5 / base[n], $5 / base[1], $6 >csv
    printf " %s | %s | %s |", mib(bytes[1]), mib(bytes[8]), mib(bytes[15])
    for (k = 1; k <= 6; k++) printf " %s |", cell(k)
    low = sprintf("%.2f", $5 / base[n])
    high = sprintf("%.2f", $5 / base[1])
    printf " %.1f | %s |\n", $5, low == high ? low : low " - " high
}' "$folder/results" >"$folder/table"

{
    cat "$folder/table"
    echo
    echo "$(date +%F), $device: \`STEPS=$STEPS make table\`, all rows \`$(basename "$PROGRAM") $MODEL\`," \
        "$((SEQUENCES * length)) tokens per step; median of $((STEPS - 2)) steps. Bytes are those of a rank, h on the" \
        "host, d on the disk."
    awk '$1 > 0 { x[++n] = $1 } END {
        printf "The first row, measured %d times in between: %.1f to %.1f ms, median %.1f. A ratio is to the slowest " \
            "and to the fastest of them:\nwith 1.00 between its ends it is within the noise.\n",
            n, x[1], x[n], (x[int((n + 1) / 2)] + x[int(n / 2) + 1]) / 2 }' "$folder/sorted"
    [ -z "$note" ] || echo "$note"
    echo "It took $(($(date +%s) - started)) s."
} >"$output.md"
cat "$output.md"

if command -v gnuplot >/dev/null; then
    gnuplot -e "csv='$output.csv'" scripts/table.gnuplot >"$folder/gnuplot" 2>&1 || cat "$folder/gnuplot" >&2
    [ ! -s "$output.svg" ] || echo "picture: $output.svg, $output.png"
else
    echo "no picture: gnuplot is missing (make setup)"
fi
! grep -q -v '^[^|]*|[^|]*|[^|]*||' "$folder/results"
