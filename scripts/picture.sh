#!/bin/sh
# A picture of memory (SVG) from the memory.csv of one or more runs or plans (train_gpt -o DIRECTORY): bars of bytes,
# stacked by kind, and the plan as a line over them.
#   picture.sh OUTPUT.svg TITLE FILE[:TIER] ...           a panel for each run: a bar for each phase
#   picture.sh --peaks OUTPUT.svg TITLE FILE[:TIER] ...   a bar for each run: the phase in which it peaks
# TIER: device (if none is named), host or disk. All panels have one scale. Of several ranks it shows the largest.
# Bars are what was measured; pale where a phase of a run was planned and did not occur; the plan itself where FILE is
# of --plan. It brings its own background, so it can be read on light and on dark pages.
# What is wrong with a file is said on stderr, with status 1, and OUTPUT stays as it was.
usage() {
    echo "usage: picture.sh [--peaks] OUTPUT.svg TITLE FILE[:TIER] [TITLE FILE[:TIER]]..." >&2
    exit 2
}
peaks=0
[ "${1:-}" != --peaks ] || { peaks=1; shift; }
[ $# -ge 3 ] && [ $(($# % 2)) -eq 1 ] || usage
output=$1
shift
fail() {
    echo "picture.sh: $*" >&2
    exit 1
}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder" "$output.partial"' EXIT
trap 'exit 130' INT TERM

# All rows in one file, each with the number of its run before it; the runs' titles in another.
n=0
while [ $# -gt 0 ]; do
    n=$((n + 1))
    file=$2
    tier=device
    case "$file" in
    *:device | *:host | *:disk)
        tier=${file##*:}
        file=${file%:*}
        ;;
    esac
    [ -f "$file" ] && [ -r "$file" ] || fail "can't read $file"
    printf '%s\t%s\t%s\n' "$tier" "$file" "$(printf %s "$1" | tr -d '\000-\037')" >>"$folder/runs"
    sed "s/^/$n,/" "$file" >>"$folder/rows"
    shift 2
done

awk -F, -v peaks=$peaks -v runs="$folder/runs" '
function fail(words) {
    printf "picture.sh: %s\n", words >"/dev/stderr"
    failed = 1
    exit 1
}
function escape(text) {
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    gsub(/>/, "\\&gt;", text)
    gsub(/"/, "\\&quot;", text)
    return text
}
function max(a, b) { return a > b ? a : b }
function mib(x) { return x / 1048576 }
# Three digits or so: 0.07, 12.7, 196.
function number(x) { return sprintf(x >= 99.95 ? "%.0f" : x >= 9.995 ? "%.1f" : "%.2f", x) }
# 1, 2 or 5 times a power of ten, at least x.
function nice(x,    power) {
    power = 1
    while (power < x) power *= 10
    while (power >= 10 * x) power /= 10
    return power / 5 >= x ? power / 5 : power / 2 >= x ? power / 2 : power
}
# Text in lines of at most so many characters, cut at spaces; centered at x, the last line at y.
function text_lines(text, characters, x, y, class,    word, n, i, line, lines, k) {
    n = split(text, word, " ")
    for (i = 1; i <= n; i++) {
        if (line != "" && length(line) + 1 + length(word[i]) > characters) { lines[++k] = line; line = "" }
        line = line (line == "" ? "" : " ") word[i]
    }
    lines[++k] = line
    for (i = 1; i <= k; i++) {
        printf "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", class, x,
            y - 14 * (k - i), escape(lines[i])
    }
}
function lines_of(text, characters,    word, n, i, length_now, k) {
    n = split(text, word, " ")
    k = 1
    for (i = 1; i <= n; i++) {
        if (length_now && length_now + 1 + length(word[i]) > characters) { k++; length_now = 0 }
        length_now += (length_now ? 1 : 0) + length(word[i])
    }
    return k
}

# What is wrong with a run as a whole; how its title names its tier.
function check_runs(    r, at) {
    for (r = 1; r <= n_runs; r++) if (!(r in headed)) fail(file[r] ": it is empty")
    for (at in occurs) if (rows[at] != n_kinds) fail(file[substr(at, 1, index(at, SUBSEP) - 1)] ": rows are missing")
    for (r = 1; r <= n_runs; r++) {
        if (!(r in largest)) fail(file[r] ": it has no rows of tier " tier[r])
        if (most[r] <= 0) fail(file[r] ": nothing was taken on the " tier[r])
        if (tier[r] != "device") title[r] = title[r] " (" tier[r] ")"
        else on_device++
        if (!any_measured[r]) only_plans++
    }
}

# The bars: panel, name, where their bytes are; top: the most bytes of any; used: the kinds that they have.
function make_bars(    r, p, k, at) {
    n_panels = peaks ? 1 : n_runs
    for (r = 1; r <= n_runs; r++) {
        for (p = 1; p <= n_phases; p++) {
            at = r SUBSEP largest[r] SUBSEP p
            if (!(at in occurs) || (peaks && p != highest[r])) continue
            panel[++n_bars] = peaks ? 1 : r
            name[n_bars] = peaks ? title[r] : phases[p]
            from[n_bars] = at
            pale[n_bars] = !measured[at] && any_measured[r]
            if (pale[n_bars]) any_pale = 1
            of_panel[panel[n_bars]]++
            top = max(top, max(sum[at], plan_sum[at]))
            for (k = 1; k <= n_kinds; k++) if (bytes[at, k] > 0) used[k] = 1
        }
    }
}

# Where things are. One unit of height is `unit` bytes; the legend flows into rows.
function place(    p, r, b, k, most_bars, title_lines, name_lines, below) {
    width = 880
    left = 56
    gap = 28
    panel_width = (width - left - 16 - gap * (n_panels - 1)) / n_panels
    for (p = 1; p <= n_panels; p++) most_bars = max(most_bars, of_panel[p])
    characters = int(panel_width / 7.2)
    for (r = 1; r <= n_runs && !peaks; r++) title_lines = max(title_lines, lines_of(title[r], characters))
    name_characters = int(panel_width / most_bars / 6.4)
    for (b = 1; b <= n_bars; b++) {
        if (peaks) name_lines = max(name_lines, lines_of(name[b], name_characters))
        else if (length(name[b]) > name_characters) slanted = 1
    }
    plot_top = 60 + (peaks ? 0 : 16 * title_lines)
    base = plot_top + 240
    below = peaks ? 8 + 14 * name_lines : slanted ? 52 : 22
    unit = top * 1.06 / 240
    step = nice(mib(top) / 5)
    legend_y = base + below + 22
    legend_x = left
    for (k = 1; k <= n_kinds; k++) {
        if (!used[k]) continue
        if (legend_x + 24 + 6.7 * length(kinds[k]) > width - 16) { legend_x = left; legend_y += 20 }
        key_x[k] = legend_x
        key_y[k] = legend_y
        legend_x += 38 + 6.7 * length(kinds[k])
    }
    plan_words = "the plan" (any_pale ? " (pale: planned, did not occur in this run)" : "")
    if (legend_x + 34 + 6.7 * length(plan_words) > width - 16) { legend_x = left; legend_y += 20 }
    height = legend_y + 20
}

function draw_head(    k, heading) {
    heading = (on_device == n_runs ? "Device memory" : "Memory") \
        (peaks ? " at its peak" : " by phase") ", stacked by kind, MiB" (only_plans == n_runs ? " (plans)" : "")
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
        width, height, width, height
    printf "<title>%s</title>\n", heading
    print "<style>"
    print "text { font: 12px system-ui, sans-serif; fill: #24292f }"
    print ".heading { font-size: 15px; font-weight: 600 } .title { font-size: 13px; font-weight: 600 }"
    print ".small { font-size: 11px; fill: #57606a; stroke: #ffffff; stroke-width: 3; paint-order: stroke }"
    print ".page { fill: #ffffff; stroke: #d0d7de } .grid { stroke: #d8dee4 }"
    print ".plan { fill: none; stroke: #111111; stroke-width: 1.6 } .pale { opacity: 0.4 }"
    for (k = 1; k <= n_kinds; k++) if (used[k]) printf ".kind%d { fill: %s }\n", k, color[k]
    print "@media (prefers-color-scheme: dark) {"
    print "  text { fill: #e6edf3 } .small { fill: #9da7b3; stroke: #0d1117 } .page { fill: #0d1117; stroke: #30363d }"
    print "  .grid { stroke: #30363d } .plan { stroke: #ffffff }"
    print "}"
    print "</style>"
    printf "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width - 1, height - 1
    printf "<text class=\"heading\" x=\"16\" y=\"28\">%s</text>\n", heading
}

# The lines of the scale; their numbers at the first panel.
function draw_grid(p, x,    tick, y) {
    for (tick = 0; tick <= mib(top) * 1.06; tick += step) {
        y = base - tick * 1048576 / unit
        printf "<path class=\"grid\" d=\"M%.1f %.3fH%.1f\"/>\n", x, y, x + panel_width
        if (p > 1) continue
        printf "<text class=\"small\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.10g</text>\n", left - 6, y + 4, tick
    }
}

# The stack of bar b, its bottom kind first; gives the place of its top.
function draw_stack(b, middle, wide,    k, n, y) {
    y = base
    printf "<g class=\"bar%s\">\n", pale[b] ? " pale" : ""
    for (k = 1; k <= n_kinds; k++) {
        n = bytes[from[b], k]
        if (n <= 0) continue
        y -= n / unit
        printf "<rect class=\"kind%d\" x=\"%.1f\" y=\"%.3f\" width=\"%.1f\" height=\"%.3f\" data-bytes=\"%.0f\">" \
            "<title>%s: %.2f MiB</title></rect>\n", k, middle - wide / 2, y, wide, n / unit, n, kinds[k], mib(n)
    }
    print "</g>"
    return y
}

function draw_name(b, middle) {
    if (peaks) {
        text_lines(name[b], name_characters, middle, base + 2 + 14 * lines_of(name[b], name_characters), "")
    } else if (slanted) {
        printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" transform=\"rotate(-40 %.1f %.1f)\">%s</text>\n",
            middle + 4, base + 14, middle + 4, base + 14, name[b]
    } else {
        printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", middle, base + 16, name[b]
    }
}

# A panel: the scale, the stacks with their bytes in MiB, and the plan: a staircase over the phases of a run, a stroke
# over each of several runs.
function draw_panel(p,    x, slot, wide, line, planned, middle, y, edge, b, i) {
    x = left + (p - 1) * (panel_width + gap)
    draw_grid(p, x)
    if (!peaks) text_lines(title[p], characters, x + panel_width / 2, plot_top - 14, "title")
    slot = panel_width / of_panel[p]
    wide = slot * 0.66 < 90 ? slot * 0.66 : 90
    for (b = 1; b <= n_bars; b++) {
        if (panel[b] != p) continue
        middle = x + slot * (i + 0.5)
        y = draw_stack(b, middle, wide)
        edge = base - plan_sum[from[b]] / unit
        if (peaks) line = line sprintf("M%.1f %.3fH%.1f", middle - wide / 2 - 6, edge, middle + wide / 2 + 6)
        else line = line (i ? "V" : sprintf("M%.1f ", x)) sprintf("%.3fH%.1f", edge, x + slot * (i + 1))
        planned = planned (planned == "" ? "" : " ") sprintf("%.0f", plan_sum[from[b]])
        printf "<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", middle,
            (edge < y ? edge : y) - 5, number(mib(sum[from[b]]))
        draw_name(b, middle)
        i++
    }
    printf "<path class=\"plan\" d=\"%s\" data-bytes=\"%s\"/>\n", line, planned
}

function draw_legend(    k) {
    for (k = 1; k <= n_kinds; k++) {
        if (!used[k]) continue
        printf "<rect class=\"kind%d\" x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\"/>\n", k, key_x[k], key_y[k] - 10
        printf "<text x=\"%.1f\" y=\"%d\">%s</text>\n", key_x[k] + 17, key_y[k], kinds[k]
    }
    printf "<path class=\"plan\" d=\"M%.1f %dH%.1f\"/>\n", legend_x, legend_y - 4, legend_x + 22
    printf "<text x=\"%.1f\" y=\"%d\">%s</text>\n", legend_x + 28, legend_y, plan_words
}

BEGIN {
    n_kinds = split("weights,master weights,gradients,moments,activations,activation gradients,logits,scratch," \
        "workspace,collectives,data,files", kinds, ",")
    split("#3b6fb6 #7aa6d8 #2f9e8f #8bc6a0 #d9822b #efb368 #c2475b #8d6cab #b99ad0 #5f6b7a #9aa5b1 #c9b037", color, " ")
    for (k = 1; k <= n_kinds; k++) kind_of[kinds[k]] = k
    n_phases = split("setup,forward,head,backward,update,validation,sample,save", phases, ",")
    for (p = 1; p <= n_phases; p++) phase_of[phases[p]] = p
    tier_of["device"] = tier_of["host"] = tier_of["disk"] = 1
    while ((getline line < runs) > 0) {
        n_runs++
        tier[n_runs] = substr(line, 1, index(line, "\t") - 1)
        line = substr(line, index(line, "\t") + 1)
        file[n_runs] = substr(line, 1, index(line, "\t") - 1)
        title[n_runs] = substr(line, index(line, "\t") + 1)
    }
}
# The run, then rank, phase, tier, kind, planned bytes, measured bytes.
$1 != run {
    run = $1
    row = 1
    headed[run]
    if ($0 != run ",rank,phase,tier,kind,planned_bytes,measured_bytes") {
        fail(file[run] ": its first line is not that of a memory.csv")
    }
    next
}
{
    row++
    where = file[run] ", line " row ": "
    if (NF != 7) fail(where "not six fields")
    if ($2 !~ /^[0-9]+$/ || $6 !~ /^[0-9]+$/ || $7 !~ /^[0-9]*$/) fail(where "not a number of bytes")
    if (!($3 in phase_of) || !($4 in tier_of) || !($5 in kind_of)) fail(where "no such phase, tier or kind")
    if ((run, $2, $3, $4, $5) in seen) fail(where "this row was there before")
    seen[run, $2, $3, $4, $5]
    if ($4 != tier[run]) next
    p = phase_of[$3]
    k = kind_of[$5]
    at = run SUBSEP $2 SUBSEP p
    if (at in occurs && ($7 != "") != measured[at]) fail(where "a phase is measured in part")
    occurs[at]
    rows[at]++
    measured[at] = $7 != ""
    if ($7 != "") any_measured[run] = 1
    plan[at, k] = $6
    plan_sum[at] += $6
    bytes[at, k] = $7 == "" ? $6 : $7
    sum[at] += bytes[at, k]
    if (sum[at] > most[run] || !(run in largest)) { most[run] = sum[at]; largest[run] = $2; highest[run] = p }
}
END {
    if (failed) exit 1
    check_runs()
    make_bars()
    place()
    draw_head()
    for (p = 1; p <= n_panels; p++) draw_panel(p)
    draw_legend()
    print "</svg>"
}' "$folder/rows" >"$folder/svg" || exit 1
[ -s "$folder/svg" ] || fail "nothing was drawn"
cp "$folder/svg" "$output.partial" && mv "$output.partial" "$output" || fail "can't write $output"
