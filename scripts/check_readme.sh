#!/bin/sh
# Whether the README and the lessons (dev/*.md, ...) say what is there (make check-readme):
#   the README's table of sources is true (reading_order.sh), and it has at most 200 lines;
#   every link, and every path of a source that a text names, leads to a file; every file of dev/*.md is linked;
#   every make target and every long flag that a text shows as code exists;
#   every command that trains, as it stands in a block of code, is one that the program takes: run with --plan;
#   the pictures are those that scripts/pictures.sh draws now, and the README's peaks those of the recorded runs.
# Says what is wrong, a line each, and exits with 1. ./train_gpt and the default data must be there.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
documents="README.md $(echo dev/*.md dev/emulator/README.md tests/onednn/README.md)"
wrong() { echo "check-readme: $*" >>"$folder/wrong"; }

sh scripts/reading_order.sh README.md || wrong "README.md: the table of sources"
[ "$(grep -c '' README.md)" -le 200 ] || wrong "README.md: more than 200 lines"
for lesson in dev/*.md; do
    grep -qF "]($lesson)" README.md || wrong "README.md does not lead to $lesson"
done

# Links, relative to their document; paths of sources, relative to the top.
for document in $documents; do
    grep -o '](\([^)]*\))' "$document" | sed 's/^](//; s/)$//; s/#.*//' | while IFS= read -r link; do
        case "$link" in "" | http*) continue ;; esac
        [ -e "$(dirname "$document")/$link" ] || wrong "$document: there is no $link"
    done
    grep -oE '\b(dev|data|scripts|tests)/[A-Za-z0-9_/.-]+\.(h|c|cu|cuh|sh|py|md|svg|csv|sbatch)\b' "$document" |
        sort -u | while IFS= read -r path; do
        [ -e "$path" ] || [ -e "$(dirname "$document")/$path" ] || wrong "$document: there is no $path"
    done
done

# Code: what stands in a block or between backticks.
for document in $documents; do
    awk '/^ *```/ { block = !block; next }
        block { print; next }
        { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) print part[i] }' "$document" >"$folder/code"
    grep -oE '\bmake [a-z][a-z -]*' "$folder/code" | sed 's/^make //' | tr ' ' '\n' | grep -E '^[a-z]' | sort -u |
        while IFS= read -r target; do
            grep -qE "^$target:" Makefile || wrong "$document: there is no make $target"
        done
    grep -oE '(^|[ (])--[a-z][a-z-]+' "$folder/code" | sed 's/^[ (]//' | sort -u | while IFS= read -r flag; do
        ./train_gpt --help | grep -qE -e "$flag( |\$)" || grep -qrwF -e "$flag" scripts Makefile ||
            wrong "$document: there is no flag $flag"
    done
done

# Commands in blocks: whole lines, continued by a backslash. What stands before the program is left out; -o would make
# a directory.
for document in $documents; do
    awk '/^ *```/ { block = !block; next } block { line = line $0 } block && sub(/\\$/, "", line) { next }
        block { print line; line = "" }' "$document" | grep -E '(^|&& |launch\.sh [0-9]+ |sbatch )\./train_gpt -' |
        sed 's/ *#.*//' | while IFS= read -r line; do
        ranks=$(echo "$line" | sed -n 's/.*launch\.sh \([0-9]*\) .*/--ranks \1/p')
        flags=$(echo "$line" | sed 's/.*\.\/train_gpt//; s/ -o [^ ]*//')
        # shellcheck disable=SC2086
        eval "set -- $flags"
        # shellcheck disable=SC2086
        ./train_gpt "$@" --plan $ranks >"$folder/plan" 2>&1 ||
            wrong "$document: $line: $(grep -v '^usage' "$folder/plan" | tail -n 1)"
        if grep '^does not fit' "$folder/plan" >"$folder/does_not"; then
            wrong "$document: $line: $(cat "$folder/does_not")"
        fi
    done
done

# Pictures.
mkdir "$folder/pictures"
if sh scripts/pictures.sh draw "$folder/pictures"; then
    for picture in dev/pictures/*.svg "$folder/pictures"/*.svg; do
        name=$(basename "$picture")
        cmp -s "dev/pictures/$name" "$folder/pictures/$name" ||
            wrong "dev/pictures/$name is not what scripts/pictures.sh draws; make pictures"
    done
else
    wrong "scripts/pictures.sh fails"
fi
for run in plain saving; do
    peak=$(awk -F, '$3 == "device" { sum[$2] += $6 } END { for (p in sum) if (sum[p] > most) most = sum[p]
        printf "%.2f MiB", most / 1048576 }' dev/pictures/$run.csv)
    grep -qF "$peak" README.md || wrong "README.md does not have the peak of dev/pictures/$run.csv, $peak"
done

[ ! -s "$folder/wrong" ] || { sort -u "$folder/wrong" >&2; exit 1; }
echo "check-readme: $(echo "$documents" | wc -w) texts"
