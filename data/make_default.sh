#!/bin/sh
# make_default.sh - makes OUTPUT_DIR/train.bin and OUTPUT_DIR/val.bin out of a text that is at hand, without a download.
#
#     data/make_default.sh MAKE_TOKENS_BINARY OUTPUT_DIR
#
# The text is the King James Bible where the program `bible` (Debian: bible-kjv) prints all of it, one document a book;
# otherwise the source of this project, one document a file. Both go through make_tokens: byte tokens, the last 10 % for
# validation. Everything is made in a directory beside, which goes away with the script, and is then moved into place.
set -eu
export LC_ALL=C

if [ $# -ne 2 ]; then
    echo "usage: $0 MAKE_TOKENS_BINARY OUTPUT_DIR" >&2
    exit 2
fi
make_tokens=$1 output=$2
root=$(dirname "$0")/..

mkdir -p "$output"
work=$output/.make_default.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work"

# "Ge1:1 In the beginning ..." lines in; verses out, a record separator (octal 36) before each book.
verses_to_books='
    $1 !~ /^[1-3]?[A-Za-z]+[0-9]+:[0-9]+$/ { bad = 1; exit }
    { name = $1; sub(/[0-9]+:[0-9]+$/, "", name) }
    name != book { book = name; printf "\036" }
    { sub(/^[^ ]+ /, ""); print }
    END { exit bad || NR != 31102 }'

if ! command -v bible >/dev/null; then
    reason="the program 'bible' is not installed"
elif bible -f Gen1:1-Rev22:21 </dev/null 2>/dev/null | awk "$verses_to_books" >"$work/text"; then
    reason=
    source="the King James Bible (31102 verses from the program 'bible')"
else
    reason="the program 'bible' does not print 31102 verses"
fi

if [ -n "$reason" ]; then
    (cd "$root" && find . -name '.?*' -prune -o -name build -prune -o -type f \( -name '*.md' -o -name '*.cu' \
        -o -name '*.h' -o -name '*.c' -o -name '*.sh' -o -name Makefile \) -print) | sort >"$work/files"
    while IFS= read -r file; do
        printf '\036'
        cat "$root/$file"
    done <"$work/files" >"$work/text"
    source="$(($(wc -l <"$work/files"))) source files of this project ($reason)"
fi

counts=$("$make_tokens" "$work/train.bin" "$work/val.bin" 10 <"$work/text")
mv -f "$work/val.bin" "$output/val.bin"
mv -f "$work/train.bin" "$output/train.bin"
echo "$output/{train,val}.bin: $counts of $source"
