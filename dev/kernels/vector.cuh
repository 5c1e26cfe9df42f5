// vector.cuh - how memory-bound CUDA kernels read and write: 16 bytes at a time.
//
// A Vector is N numbers that lie side by side, as fp32 in registers: N = vector_wide(type) makes 16 bytes, N = 1
// any single number. A kernel is a template over both; its launch takes the wide one where all addresses, and the
// lengths of rows, are multiples of 16 bytes. The trainer's are, unless C is odd.
//
// Bytes of the memory-bound passes, per token and layer, in multiples of C, for 16-bit storage:
//
//     pass                                        reads                            writes           bytes   least
//     LayerNorm 1                                 in                               ln1                4       2
//     residual + LayerNorm 2                      in, projection                   residual, ln2      8       8
//     residual after the MLP                      residual, projection             out                6       6
//     GELU forward                                fc (4)                           gelu (4)          16      16
//     GELU backward + bias of fc                  dgelu, fc (4 each)               dfc (4)           24      24
//     LayerNorm 2 backward, with dw, db           dln2, residual, dresidual        dresidual          8       8
//     LayerNorm 1 backward, with dw, db           dln1, in, dresidual              dresidual          8       8
//     D of attention (attention_mma.cuh)          out                                                 2       4
//     biases of qkv, and of both projections      dqkv (3), dresidual twice                          10       0
//
// Residuals, LayerNorms and D together: 36. `least` counts D as a pass of its own, and gives LayerNorm 1 the residual
// before it (the layer below would have to know the one above). The last line needs sums in the products' epilogues.
// The head: the classifier reads a row of logits from memory once and from the L2 cache once, and writes it once; AdamW
// moves 28 bytes a parameter and writes its compute copy (the least).
#ifndef VECTOR_CUH
#define VECTOR_CUH

#include "../device.h"

__host__ __device__ constexpr int vector_wide(Dtype dtype) { return dtype == FP32 ? 4 : 8; }

template <int WORDS> struct VectorWords;
template <> struct VectorWords<1> { typedef uint32_t Type; };
template <> struct VectorWords<2> { typedef uint2 Type; };
template <> struct VectorWords<4> { typedef uint4 Type; };

template <Dtype DTYPE, int N> struct Vector {
    float x[N];
    static constexpr int WORDS = N * (DTYPE == FP32 ? 4 : 2) / 4;  // 0: half a word

    // Elements first ... first + N of an array; `first` is a multiple of N.
    __device__ __forceinline__ void load(const void *base, size_t first) {
        if constexpr (WORDS == 0 || N == 1) {
            x[0] = number_get(DTYPE, base, first);
        } else {
            uint32_t words[WORDS];
            *(typename VectorWords<WORDS>::Type *)words =
                *(const typename VectorWords<WORDS>::Type *)number_pointer_const(DTYPE, base, first);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if constexpr (DTYPE == FP32) x[i] = number_of_bits(words[i]);
                else if constexpr (DTYPE == FP16) x[i] = number_from_fp16((uint16_t)(words[i / 2] >> (i % 2 * 16)));
                else x[i] = number_of_bits(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
            }
        }
    }

    // Rounds to the type, in place.
    __device__ __forceinline__ void round() {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = DTYPE == FP32 ? x[i] : number_from_16(DTYPE, number_to_16(DTYPE, x[i]));
    }

    __device__ __forceinline__ void store(void *base, size_t first) const {
        if constexpr (WORDS == 0 || N == 1) {
            number_put(DTYPE, base, first, x[0]);
        } else {
            uint32_t words[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                if constexpr (DTYPE == FP32) {
                    words[i] = number_bits(x[i]);
                } else {
                    const uint32_t low = number_to_16(DTYPE, x[2 * i]), high = number_to_16(DTYPE, x[2 * i + 1]);
                    words[i] = low | high << 16;
                }
            }
            *(typename VectorWords<WORDS>::Type *)number_pointer(DTYPE, base, first) =
                *(const typename VectorWords<WORDS>::Type *)words;
        }
    }
};

// A width as a value, for lambdas.
template <int N> struct VectorWidth {
    static constexpr int value = N;
};

// work(width, first) for all n elements, by the whole grid: vectors, then what is left over.
template <int N, typename Work> __device__ __forceinline__ void vector_walk(size_t n, Work work) {
    const size_t step = (size_t)gridDim.x * blockDim.x, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = first; i < n / N; i += step) work(VectorWidth<N>(), i * N);
    if (N > 1 && first < n % N) work(VectorWidth<1>(), n / N * N + first);
}

// Which of a kernel's forms to launch: by type, and whether all of it is `wide`.
#define VECTOR_SELECT(dtype, wide, kernel)                                              \
    ((dtype) == FP32   ? ((wide) ? kernel<FP32, vector_wide(FP32)> : kernel<FP32, 1>)    \
     : (dtype) == BF16 ? ((wide) ? kernel<BF16, vector_wide(BF16)> : kernel<BF16, 1>)    \
                      : ((wide) ? kernel<FP16, vector_wide(FP16)> : kernel<FP16, 1>))

// A form of a kernel by type: FORM is a function template over the type that returns the kernel.
#define VECTOR_FORM(dtype, form, ...)                  \
    ((dtype) == FP32   ? form<FP32>(__VA_ARGS__)       \
     : (dtype) == BF16 ? form<BF16>(__VA_ARGS__)       \
                      : form<FP16>(__VA_ARGS__))

// Blocks for a vector per thread.
static inline size_t vector_blocks(Dtype dtype, bool wide, size_t n_elements) {
    return cuda_blocks(size_ceil_div(n_elements, wide ? (size_t)vector_wide(dtype) : 1));
}

// Whether addresses and a row's bytes are multiples of 16.
static inline bool vector_is_wide(size_t row_bytes, const void *a, const void *b, const void *c, const void *d) {
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | row_bytes) % 16) == 0;
}

// to[0 ... N) = x, or (add) += x; to is a multiple of 16 bytes, or N = 1.
template <int N> __device__ __forceinline__ void vector_add(float *to, const float *x, bool add) {
    constexpr int W = N < 4 ? N : 4;
#pragma unroll
    for (int i = 0; i < N; i += W) {
        Vector<FP32, W> y = {};
        if (add) y.load(to, i);
#pragma unroll
        for (int j = 0; j < W; j++) y.x[j] = add ? y.x[j] + x[i + j] : x[i + j];
        y.store(to, i);
    }
}

#endif
