#!/bin/sh
# Prints the compiler and linker flags for the libraries that are there, on one line: what a recipe asks when it runs.
# Says on stderr, in one line each, what is missing and what that costs.
#   libraries.sh COMPILER [quiet] [cuda=NVCC]
# quiet: says nothing; cuda=NVCC: for the program for GPUs, which NVCC builds, also NCCL.
# WITHOUT="onednn openmp mpi nccl" in the environment leaves those out.
# The flags are for gcc, g++, clang and nvcc (but nvcc wants -Xcompiler before -fopenmp).
compiler=${1:-cc}
shift
quiet=no
nvcc=""
for word in "$@"; do
    case "$word" in
    quiet) quiet=yes ;;
    cuda=*) nvcc=${word#cuda=} ;;
    *) echo "usage: libraries.sh COMPILER [quiet] [cuda=NVCC]" >&2 && exit 2 ;;
    esac
done
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# try NAME FLAGS... < program: does it compile and link?
compile="$compiler -x c"
try() {
    name=$1
    shift
    case " ${WITHOUT:-} " in *" $name "*) return 1 ;; esac
    cat >"$folder/try.c"
    $compile "$folder/try.c" -o "$folder/try" "$@" >/dev/null 2>&1
}
missing() { [ $quiet = yes ] || echo "$*" >&2; }

# Flags as another program gives them, as every compiler here takes them: warnings in others' headers are not ours, and
# what is for the linker is said so.
portable() {
    for flag in "$@"; do
        case "$flag" in
        -I/usr/include | -I/usr/include/) ;;
        -I*) printf ' -isystem %s' "${flag#-I}" ;;
        -L* | -l* | -D*) printf ' %s' "$flag" ;;
        -Wl,*) printf ' -Xlinker %s' "$(echo "${flag#-Wl,}" | sed 's/,/ -Xlinker /g')" ;;
        esac
    done
}

flags=""
if echo 'int main(void) { int n = 0;
#pragma omp parallel
n++; return n == 0; }' | try openmp -fopenmp; then
    flags="$flags -fopenmp"
else
    flags="$flags -Wno-unknown-pragmas"
    missing "OpenMP is missing: one thread only"
fi
# oneDNN has threads of OpenMP's; a program without OpenMP could not say how many.
case "$flags" in *-fopenmp*) ;; *) WITHOUT="${WITHOUT:-} onednn" ;; esac
if echo '#include <oneapi/dnnl/dnnl.h>
int main(void) { dnnl_matmul_desc_t d; return dnnl_matmul_desc_init(&d, 0, 0, 0, 0) == dnnl_success; }' |
    try onednn -ldnnl; then
    flags="$flags -DUSE_ONEDNN=1 -ldnnl"
else
    missing "oneDNN is missing (make setup), or OpenMP, which it needs: the trainer's own loops multiply matrices; no" \
        "loss with AVX2, but with AVX-512 its kernels are not used, nor native bf16"
fi

# MPI: what pkg-config says of Open MPI or MPICH, or what their own compiler would add.
mpi_says() {
    case "$1" in
    showme) mpicc --showme:compile && mpicc --showme:link ;;
    show) mpicc -show ;;
    *) pkg-config --cflags --libs "$1" ;;
    esac 2>/dev/null
}
mpi=""
for source in ompi-c showme show mpich; do
    # shellcheck disable=SC2046
    answer=$(portable $(mpi_says $source))
    # shellcheck disable=SC2086
    if [ -n "$answer" ] && echo '#include <mpi.h>
int main(int n, char **words) { return MPI_Init(&n, &words) != MPI_SUCCESS; }' | try mpi $answer; then
        mpi=" -DUSE_MPI=1 -DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1$answer"
        break
    fi
done
flags="$flags$mpi"
[ -n "$mpi" ] || missing "MPI is missing (make setup): one rank only"

# NCCL moves data between GPUs; MPI tells the ranks of each other.
if [ -n "$nvcc" ] && [ -n "$mpi" ]; then
    compile="$nvcc -x cu"
    if echo '#include <nccl.h>
int main(void) { ncclUniqueId id; return ncclGetUniqueId(&id) != ncclSuccess; }' | try nccl -lnccl; then
        flags="$flags -DUSE_NCCL=1 -lnccl"
    else
        missing "NCCL is missing: one GPU only"
    fi
fi
echo "$flags -lm -lpthread"
