// encoder.cuh - tokens become vectors on CUDA, and their gradients find the way back.
//
// Forward: a vector a thread; reads two elements, writes one. Backward: one launch for both gradients. A warp adds up
// the rows of a position (over the sequences, in their order), or of a token (in ascending order). Tokens of more than
// ENCODER_ROWS rows are summed by a whole block, a portion a warp, and the portions are added in order: the CPU's bits.
// dout is read twice, at best once from memory and once from the L2 cache.
#ifndef ENCODER_CUH
#define ENCODER_CUH

#include "columns.h"
#include "vector.cuh"

template <Dtype DTYPE, int N>
__global__ static void encoder_forward_kernel(void *out, const int32_t *tokens, const void *wte, const void *wpe,
                                              size_t T, size_t C, size_t n_elements) {
    vector_walk<N>(n_elements, [=](auto width, size_t first) {
        constexpr int W = decltype(width)::value;
        const size_t bt = first / C, c = first % C;
        Vector<DTYPE, W> x, position;
        x.load(wte, (size_t)tokens[bt] * C + c);
        position.load(wpe, bt % T * C + c);
#pragma unroll
        for (int i = 0; i < W; i++) x.x[i] += position.x[i];
        x.store(out, first);
    });
}

static inline void encoder_forward_cuda(const Context *context, void *out, const int32_t *tokens, const void *wte,
                                        const void *wpe, size_t B, size_t T, size_t C) {
    const Dtype dtype = context->dtype;
    const bool wide = vector_is_wide(C * number_size(dtype), out, wte, wpe, NULL);
    auto run = VECTOR_SELECT(dtype, wide, encoder_forward_kernel);
    CUDA_RUN(context->device, run, vector_blocks(dtype, wide, B * T * C), CUDA_THREADS, 0, out, tokens, wte, wpe, T, C,
             B * T * C);
}

static_assert((int)ENCODER_PORTIONS == (int)COLUMNS_WARPS, "a portion a warp");

// Channels of this thread: a vector of its lane's, blockIdx.y in slices of 32 vectors.
template <int N> __device__ __forceinline__ size_t encoder_channel() {
    return (blockIdx.y * (size_t)WARP + threadIdx.x % WARP) * N;
}

// A warp's position t: dwpe[t,:] (+)= the sum over the sequences, which is 0 from T on.
template <Dtype DTYPE, int N>
__device__ __forceinline__ void encoder_sum_position(float *dwpe, const void *dout, size_t t, size_t B, size_t T,
                                                     size_t C, bool add) {
    const size_t c = encoder_channel<N>();
    Vector<FP32, N> sum = {};
    if (c >= C) return;
#pragma unroll 8
    for (size_t b = 0; b < (t < T ? B : 0); b++) {
        Vector<DTYPE, N> x;
        x.load(dout, (b * T + t) * C + c);
#pragma unroll
        for (int i = 0; i < N; i++) sum.x[i] += x.x[i];
    }
    vector_add<N>(dwpe + t * C + c, sum.x, add);
}

// A warp's sum of rows positions[at ... stop) of dout; lanes beyond the channels read the last ones.
template <Dtype DTYPE, int N>
__device__ __forceinline__ Vector<FP32, N> encoder_sum_rows(const void *dout, const int32_t *positions, int32_t row,
                                                            int32_t stop, size_t C) {
    constexpr int LOADS = 4;  // on their way at the same time
    const size_t channel = encoder_channel<N>(), c = channel < C ? channel : C - N;
    const int32_t lane = (int32_t)(threadIdx.x % WARP);
    Vector<FP32, N> sum = {};
    for (; row < stop; row += WARP) {
        const int32_t mine = row + lane < stop ? positions[row + lane] : 0, rows = min(stop - row, WARP);
        for (int32_t i = 0; i < rows; i += LOADS) {
            Vector<DTYPE, N> x[LOADS] = {};  // what is not there adds zeros
#pragma unroll
            for (int k = 0; k < LOADS; k++) {
                const size_t row = (size_t)__shfl_sync(0xffffffffu, mine, i + k);
                if (i + k < rows) x[k].load(dout, row * C + c);
            }
#pragma unroll
            for (int k = 0; k < LOADS; k++) {
#pragma unroll
                for (int j = 0; j < N; j++) sum.x[j] += x[k].x[j];
            }
        }
    }
    return sum;
}

// Of a slice of channels, the first `position_blocks` blocks take 8 positions each; the others 8 tokens each, which are
// far from each other, as neighbours are often frequent together. A slice is read twice, so that the second time most
// of it can come from the L2 cache. A warp adds up the rows of one token, if they are one portion; then all warps share
// those of more.
template <Dtype DTYPE, int N>
__global__ static void encoder_backward_kernel(EncoderTokens batch, float *dwte, float *dwpe, const void *dout,
                                               size_t position_blocks, size_t n_rows, size_t C, bool add) {
    __shared__ float shared[COLUMNS_WARPS * WARP * N];
    const uint32_t all = 0xffffffffu, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (blockIdx.x < position_blocks) {
        const size_t t = (size_t)blockIdx.x * COLUMNS_WARPS + warp;
        if (t < n_rows) encoder_sum_position<DTYPE, N>(dwpe, dout, t, batch.B, batch.T, C, add);
        return;
    }
    // Lane w of every warp knows where the rows of the block's token w are.
    const size_t k = blockIdx.x - position_blocks + lane * (gridDim.x - position_blocks);
    const size_t c = encoder_channel<N>(), c0 = (size_t)blockIdx.y * WARP * N;
    const bool is_there = lane < COLUMNS_WARPS && k < batch.n_distinct;
    const int32_t *tokens = batch.tokens, *positions = batch.positions, *first = positions + batch.B * batch.T;
    const int32_t begin = is_there ? first[k] : 0, end = is_there ? first[k + 1] : 0;
    const int32_t own_begin = __shfl_sync(all, begin, warp), own_end = __shfl_sync(all, end, warp);
    if (own_begin < own_end && own_end - own_begin <= ENCODER_ROWS) {
        const Vector<FP32, N> sum = encoder_sum_rows<DTYPE, N>(dout, positions, own_begin, own_end, C);
        if (c < C) vector_add<N>(dwte + (size_t)tokens[positions[own_begin]] * C + c, sum.x, true);
    }
    for (uint32_t many = __ballot_sync(all, end - begin > ENCODER_ROWS); many != 0; many &= many - 1) {
        const int w = __ffs((int)many) - 1;
        const int32_t from = __shfl_sync(all, begin, w), to = __shfl_sync(all, end, w);
        const int32_t portion = (int32_t)encoder_portion((size_t)(to - from));
        const int32_t first_row = from + (int32_t)warp * portion, end_row = min(first_row + portion, to);
        const Vector<FP32, N> sum = encoder_sum_rows<DTYPE, N>(dout, positions, first_row, end_row, C);
        columns_store<N, true>(dwte + (size_t)tokens[positions[from]] * C + c0, C - c0, sum.x, shared);
    }
}

static inline void encoder_backward_cuda(const Context *context, float *dwte, float *dwpe, const void *dout,
                                         const EncoderTokens *batch, size_t maxT, size_t C, bool add) {
    const Dtype dtype = context->dtype;
    const bool wide = vector_is_wide(C * number_size(dtype), dout, dwte, dwpe, NULL);
    auto run = VECTOR_SELECT(dtype, wide, encoder_backward_kernel);
    const size_t slices = size_ceil_div(C, WARP * (wide ? (size_t)vector_wide(dtype) : 1));
    const size_t n_rows = add ? batch->T : maxT;  // of dwpe
    const size_t position_blocks = size_ceil_div(n_rows, COLUMNS_WARPS);
    const size_t token_blocks = size_ceil_div(batch->n_distinct, COLUMNS_WARPS);
    CUDA_RUN_GRID(context->device, run, cuda_grid(position_blocks + token_blocks, slices), CUDA_THREADS, 0, *batch,
                  dwte, dwpe, dout, position_blocks, n_rows, C, add);
}

#endif
