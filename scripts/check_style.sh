#!/bin/sh
# The rules of the sources that a program can check:
#   - no line over 120 columns;
#   - no function takes more than 8 parameters, unless the comment above it says "N parameters: " and why;
#   - at least one line in ten of train_gpt.cu is a comment or has one.
#   check_style.sh FILES...        C, C++ and CUDA sources, and scripts, for which only the first rule holds
# Prints what breaks them, and exits with 1 if anything does.
if [ $# -eq 0 ]; then
    echo "usage: scripts/check_style.sh FILES..." >&2
    exit 2
fi
awk '
function fault(line, text) { print FILENAME ":" line ": " text; bad = 1 }

# Parameters between the parentheses that begin at the first "(" of a definition.
function parameters(text,    i, c, depth, n) {
    i = index(text, "(")
    n = 1
    for (depth = 1; depth > 0 && ++i <= length(text);) {
        c = substr(text, i, 1)
        if (c == "(" || c == "<") depth++
        else if (c == ")" || c == ">") depth--
        else if (c == "," && depth == 1) n++
    }
    return n
}

function definition(    n, name) {
    gsub(/__launch_bounds__\([^)]*\)|__attribute__\(\([^)]*\)\)|template *<[^>]*>/, "", text)
    name = text
    sub(/ *\(.*/, "", name)
    sub(/.*[ *]/, "", name)
    n = parameters(text)
    if (n > 8 && reason !~ n " parameters: ") fault(begins, name " takes " n " parameters")
    open = 0
}

FNR == 1 { reason = ""; open = 0; source = FILENAME ~ /\.(c|h|cu|cuh)$/ }
length($0) > 120 { fault(FNR, length($0) " columns") }
FILENAME ~ /(^|\/)train_gpt\.cu$/ { lines++; if (/\/\//) comments++; spine = FILENAME }
!source { next }
/^\/\// { reason = reason $0; next }
{ line = $0; sub(/\/\/.*/, "", line) }
!open && line ~ /^[A-Za-z_]/ && line !~ /^(typedef|enum|struct|union|extern|#)/ { open = 1; begins = FNR; text = "" }
open {
    text = text " " line
    if (line ~ /\{[^}]*$/ || line ~ /\{.*\}$/) {
        if (text ~ /^[^={]*\(/) definition()
        open = 0
    } else if (line ~ /;$/) {
        open = 0
    }
}
!/^\/\// && !open { reason = "" }
END {
    if (spine != "" && comments * 10 < lines) {
        print spine ": " comments " of " lines " lines have a comment, fewer than one in ten"
        bad = 1
    }
    exit bad
}' "$@"
