# The picture of the trade-off table, from the CSV of scripts/table.sh (csv='...'): bars of peak MiB per rank by tier,
# one per row, and the time per step as a ratio to the first row: to its median, and to its fastest and slowest.
base = csv[:strlen(csv) - 4]
set datafile separator ","
set style data histogram
set style histogram rowstacked
set style fill solid 0.9 noborder
set boxwidth 0.7
set key outside top center horizontal
set ylabel "peak MiB per rank"
set y2label "time per step / first row"
set ytics nomirror
set y2tics
set yrange [0:*]
set y2range [0:*]
set grid ytics linecolor "#dddddd"
set xtics rotate by 35 right font ",8" nomirror
set lmargin 16
set bmargin 11
mib = 1.0 / 1048576
do for [form in "svg png"] {
    if (form eq "svg") {
        set terminal svg size 1300,720 dynamic background "white"
    } else {
        set terminal png size 1300,720 font ",10"
    }
    set output base . "." . form
    plot csv using (column("device_bytes") * mib):xticlabels(stringcolumn("name")) \
             title "device" linecolor "#3366aa", \
         "" using (column("host_bytes") * mib) title "host" linecolor "#ee9944", \
         "" using (column("disk_bytes") * mib) title "disk" linecolor "#aaaaaa", \
         "" using 0:(column("ratio")):(column("ratio_low")):(column("ratio_high")) axes x1y2 with yerrorbars \
             pointtype 7 pointsize 1.2 linecolor "#cc3333" title "time (right axis)"
    unset output
}
