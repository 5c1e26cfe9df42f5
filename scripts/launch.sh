#!/bin/sh
# Starts a program as N ranks by Open MPI's mpirun, here or on the hosts that are named. Its exit status is the
# program's.
#   scripts/launch.sh N PROGRAM ARGUMENTS...
#   HOSTS="a:4,b:4" scripts/launch.sh 8 ./train_gpt -b 2 -z 3       4 ranks on each; ssh must get there, and the
#                                                                 program be at the same path
# Ranks are bound to no cores, as their queues are threads, too; each takes its share of the threads by itself, unless
# OMP_NUM_THREADS says otherwise. `mpirun -np N PROGRAM` does as well, without these.
usage() {
    [ $# -eq 0 ] || echo "launch.sh: $*" >&2
    echo "usage: [HOSTS=host:ranks,...] scripts/launch.sh N PROGRAM ARGUMENTS..." >&2
    exit 2
}
n=${1:-}
case "$n" in "" | 0* | *[!0-9]*) usage "the number of ranks is missing or wrong: '$n'" ;; esac
[ "${#n}" -le 5 ] || usage "$n ranks are too many"
[ $# -ge 2 ] || usage "what shall be started?"
shift
command -v "$1" >/dev/null || usage "there is no program $1"
if ! command -v mpirun >/dev/null; then
    echo "launch.sh: mpirun is missing. make setup installs it (openmpi-bin); one rank needs none: $*" >&2
    exit 1
fi

if [ -n "${HOSTS:-}" ]; then
    slots=0
    for host in $(echo "$HOSTS" | tr ',' ' '); do
        case "$host" in *:*) ranks=${host##*:} ;; *) ranks=1 ;; esac
        case "$ranks" in "" | *[!0-9]*) usage "HOSTS=$HOSTS: '$host' is not host:ranks" ;; esac
        slots=$((slots + ranks))
    done
    [ "$slots" -ge "$n" ] || usage "HOSTS=$HOSTS has room for $slots ranks, not $n"
fi
# A rank that waits for others leaves the core to its own arithmetic.
OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
export OMPI_MCA_mpi_yield_when_idle

# mpirun's own words come before the program's, last first.
for name in $(env | sed -n -E 's/^((OMP|KMP|GOMP|DNNL|ONEDNN|CUDA|NCCL)_[A-Z0-9_]+|LD_LIBRARY_PATH)=.*/\1/p'); do
    set -- -x "$name" "$@"
done
if [ -n "${HOSTS:-}" ]; then
    set -- --host "$HOSTS" "$@"
else
    set -- --oversubscribe "$@"  # mpirun counts cores without their threads, so there may be more ranks than these
fi
[ "$(id -u)" -ne 0 ] || set -- --allow-run-as-root "$@"

# On a signal mpirun kills the ranks within two seconds, but SIGUSR1 it passes on, and train_gpt saves and stops. In a
# session of its own it does not see the terminal's Ctrl-C. setpriv: it ends with this script, however that ends.
exec 3<&0
set -- mpirun -np "$n" --bind-to none "$@"
command -v setpriv >/dev/null && set -- setpriv --pdeathsig KILL "$@"
command -v setsid >/dev/null && set -- setsid "$@"
"$@" <&3 3<&- &
pid=$!
trap 'kill -USR1 "$pid"' HUP INT TERM
wait "$pid"
status=$?
while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    status=$?
done
exit "$status"
