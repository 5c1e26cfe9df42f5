#!/bin/sh
# Prints the compiler and linker flags for the libraries that are there, on one line: what a recipe asks when it runs.
# Says on stderr, in one line each, what is missing and what that costs.
#   libraries.sh COMPILER [quiet]       WITHOUT="onednn openmp" in the environment leaves those out
compiler=${1:-cc}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# try NAME FLAGS... < program: does it compile and link?
try() {
    name=$1
    shift
    case " ${WITHOUT:-} " in *" $name "*) return 1 ;; esac
    cat >"$folder/try.c"
    $compiler -x c "$folder/try.c" -o "$folder/try" "$@" >/dev/null 2>&1
}

flags=""
if echo 'int main(void) { int n = 0;
#pragma omp parallel
n++; return n == 0; }' | try openmp -fopenmp; then
    flags="$flags -fopenmp"
else
    flags="$flags -Wno-unknown-pragmas"
    [ "${2:-}" = quiet ] || echo "OpenMP is missing: one thread only" >&2
fi
if echo '#include <oneapi/dnnl/dnnl.h>
int main(void) { dnnl_matmul_desc_t d; return dnnl_matmul_desc_init(&d, 0, 0, 0, 0) == dnnl_success; }' |
    try onednn -ldnnl; then
    flags="$flags -DUSE_ONEDNN=1 -ldnnl"
elif [ "${2:-}" != quiet ]; then
    echo "oneDNN is missing (make setup): the trainer's own loops multiply matrices; no loss with AVX2, but with" \
        "AVX-512 its kernels are not used, nor native bf16" >&2
fi
echo "$flags -lm"
