// attention_mma.cuh - fused causal attention on tensor cores.
//
// The equations are at the top of attention.h, what tensor cores do is in mma.cuh, and dev/ATTENTION.md explains all of
// this slowly. Nothing of size T x T leaves the chip. A block of threads owns 128 rows of one head and walks over the
// rows of the other side in steps:
//
//     kernel        owns              walks over       keeps in registers   products
//     forward       queries: Q        keys: K, V       O, maximum, sum      S = Q K^T, O += P V
//     backward_q    queries: Q, dO    keys: K, V       dQ                   S, dP = dO V^T, dQ += dS K
//     backward_kv   keys: K, V        queries: Q, dO   dK, dV               S^T = K Q^T, dV += P^T dO,
//                                                                           dP^T = V dO^T, dK += dS^T Q
//
//           keys -> 0       128      256      The forward, head size 64: a block's warp w owns queries 32 w ... + 31
//     queries    +---+---+                    and walks in steps of 64 keys. It leaves out a step that is all after its
//           0    | \ |   |                    queries, and masks only the one on the diagonal.
//                |   | \ |
//         128    +---+---+---+---+            shared memory   | Q | K V of this step | K V of the next, arriving |
//                |   |   | \ |   |            registers       S -> P -> O += P V
//                |   |   |   | \ |
//                  step ->                    One barrier a step: what it waits for has had a whole step to arrive.
//
// Softmax in one walk (Milakov and Gimelshein 2018; Dao 2023): with the reference m of a row, P = 2^(s - m) is summed,
// unnormalised, into `sum` and O; when m moves, both are multiplied by 2^(old - new). Any m near the maximum will do:
// it moves only when a score exceeds it by more than 8, so that O is hardly ever rescaled after the first step, and P,
// which is rounded to the storage type for O += P V, stays below 2^8. The rule looks at a row alone, so bits don't
// depend on which warp has it. At the end O / sum, and lse = m ln 2 + ln(sum), all that is left for the backward.
//
// The backward has two kernels, with 7 products where 5 would do. The alternatives sum dQ over blocks of keys: with
// atomics (not deterministic); in partial sums, B C T^2/64 bytes of them (400 MB for 124M at B = 32, T = 1024), or
// block after block in one fp32 copy (4 B T C bytes of scratch, read and written in each step, and blocks that wait for
// each other). One block per head needs no order, but B NH is rarely a multiple of what a GPU runs at once. With two
// kernels every sum stays in registers in a fixed order, nothing waits, B NH T / 128 blocks are there from the start,
// and P and dS never cross shared memory: since S^T has keys as rows, both are fragments of the next product's A
// already. (One kernel that makes dQ as well has to take dS through shared memory, and dQ through global memory.)
//
// Operations: 2 products of B NH T^2/2 HS multiply-adds forward, 7 backward. Bytes of memory, each tensor once, in
// elements of B T C: forward reads 3, writes 1; backward_q reads 5 (q, k, v, out, dout), writes 1; backward_kv reads 4,
// writes 2; and 4 bytes a row for lse (one write, two reads) and D (one write, one read). D = row sums of dO o O is
// made by backward_q from tiles that it needs anyway: no pass of its own.
// Shared memory per multiply: a fragment of B (256 bytes) serves M pieces of 16 rows: 128 bytes with M = 2, plus A
// where registers can't hold it. An A100 reads 256 bytes in the time of one multiply.
// Blocks with the longest walk start first, over `group` heads at a time, whose k and v stay in the L2 cache.
//
// Head sizes are multiples of 8 up to 128, filled up with zeros to D = 64, 96 or 128 in shared memory. Pointers are
// aligned to 16 bytes. Other cases, and fp32, are for the kernels in attention.cuh.
#ifndef ATTENTION_MMA_CUH
#define ATTENTION_MMA_CUH

#include "mma.cuh"

#define ATTENTION_LN_2 0.693147181f
#define ATTENTION_MMA_SLACK 8.0f  // how far scores may exceed their reference, in powers of two
#define ATTENTION_MMA_CACHE ((size_t)16 << 20)  // bytes of k and v at work at a time: half of a small L2 cache

typedef struct {
    uint32_t T, C, NH, HS, heads, group;  // heads: B NH
    float scale;
} AttentionMma;

// How a block is cut: warps, rows of a warp / 16, rows of the other side in a step; whether Q (and dO) stay in
// registers. 255 registers a thread are what there is, shared memory allows two blocks at once where that is written.
template <int D> struct AttentionMmaForward {
    enum { WARPS = 4, M = 2, STEP = D == 64 ? 64 : 32, HELD = D == 64, BLOCKS = 2 };
};
template <int D> struct AttentionMmaBackward {
    enum { WARPS = D == 64 ? 4 : 8, M = D == 64 ? 2 : 1, STEP = 32, HELD = 1, BLOCKS = D == 64 ? 2 : 1 };
};

template <bool HELD, int D, int M> struct AttentionMmaRows { typedef MmaShared<D, M> Type; };
template <int D, int M> struct AttentionMmaRows<true, D, M> { typedef MmaHeld<D, M> Type; };

// Which head is a block's, and which of a head's n blocks, counted from the one with the longest walk.
HOST_DEVICE uint32_t attention_mma_work(uint32_t heads, uint32_t group, uint32_t n, uint32_t block, uint32_t *head) {
    const uint32_t first = block / (group * n) * group, left = heads - first, i = block % (group * n);
    const uint32_t together = left < group ? left : group;
    *head = first + i % together;
    return i / together;
}

// Row 0 of a head in qkv (width 3C, part 0, 1, 2 for q, k, v) or in out (width C, part 0).
__device__ __forceinline__ size_t attention_mma_first(const AttentionMma &s, uint32_t width, uint32_t part,
                                                      uint32_t head) {
    return (size_t)(head / s.NH) * s.T * width + part * s.C + head % s.NH * s.HS;
}

// Scores (times scale) become P, unnormalised, relative to `reference`; true if some lane's reference moved: what was
// summed before has to be multiplied by `rescale`. Each row of the warp has a score that is not masked.
template <int M, int N>
__device__ __forceinline__ bool attention_mma_softmax(float (&x)[M][N][4], float (&reference)[M][2], float (&sum)[M][2],
                                                      float (&rescale)[M][2], float scale) {
    bool moved = false;
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = x[i][0][2 * h], total = 0.0f;
#pragma unroll
            for (int j = 0; j < N; j++) top = fmaxf(top, fmaxf(x[i][j][2 * h], x[i][j][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = scale * fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            rescale[i][h] = 1.0f;
            if (top > reference[i][h] + ATTENTION_MMA_SLACK) {
                rescale[i][h] = cuda_exp2(reference[i][h] - top);
                reference[i][h] = top;
                moved = true;
            }
#pragma unroll
            for (int j = 0; j < N; j++) {
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    x[i][j][e] = cuda_exp2(fmaf(x[i][j][e], scale, -reference[i][h]));
                    total += x[i][j][e];
                }
            }
            sum[i][h] = fmaf(sum[i][h], rescale[i][h], total);
        }
    }
    return __any_sync(0xffffffffu, moved);
}

// Multiplies row h of every pair by its factor.
template <int M, int N> __device__ __forceinline__ void attention_mma_scale(float (&x)[M][N][4], float (&by)[M][2]) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][j][e] *= by[i][e / 2];
        }
    }
}

// Where a lane's element (i, j, e) of a result is, counted from the result's first row and column.
__device__ __forceinline__ int attention_mma_row(int i, int e) {
    return 16 * i + 8 * (e / 2) + (int)threadIdx.x % WARP / 4;
}
__device__ __forceinline__ int attention_mma_column(int j, int e) { return 8 * j + 2 * ((int)threadIdx.x % 4) + e % 2; }

// Scores of keys after their query, far below all others: x begins `ahead` rows after its columns.
template <bool KEYS_ARE_ROWS, int M, int N>
__device__ __forceinline__ void attention_mma_mask(float (&x)[M][N][4], int ahead) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = attention_mma_row(i, e) + ahead, column = attention_mma_column(j, e);
                if (KEYS_ARE_ROWS ? row > column : column > row) x[i][j][e] = -INFINITY;
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Forward

template <int D> static inline size_t attention_mma_forward_shared() {
    typedef AttentionMmaForward<D> Cut;
    return (size_t)mma_tile_bytes(D, 16 * Cut::M * Cut::WARPS + 4 * Cut::STEP);
}

template <Dtype DTYPE, int D>
__global__ static void __launch_bounds__(AttentionMmaForward<D>::WARPS *WARP, AttentionMmaForward<D>::BLOCKS)
    attention_mma_forward_kernel(AttentionMma s, uint16_t *out, float *lse, const uint16_t *qkv) {
    typedef AttentionMmaForward<D> Cut;
    constexpr int M = Cut::M, STEP = Cut::STEP, ROWS = 16 * M * Cut::WARPS, THREADS = Cut::WARPS * WARP;
    extern __shared__ __align__(256) unsigned char attention_mma_shared[];
    const uint32_t q_tile = mma_shared_address(attention_mma_shared), k_tiles = q_tile + mma_tile_bytes(D, ROWS);
    const uint32_t v_tiles = k_tiles + mma_tile_bytes(D, 2 * STEP);
    const int T = (int)s.T, n_blocks = (T + ROWS - 1) / ROWS, warp = (int)threadIdx.x / WARP;
    uint32_t head;
    const int nth = (int)attention_mma_work(s.heads, s.group, n_blocks, blockIdx.x, &head);
    const int q0 = (n_blocks - 1 - nth) * ROWS, w0 = q0 + warp * 16 * M;
    const int end = min(T, q0 + ROWS), HS = (int)s.HS;
    const uint32_t stride = 3 * s.C;
    const uint16_t *k = qkv + attention_mma_first(s, stride, 1, head), *q = k - s.C + (size_t)q0 * stride;
    const float scale = s.scale * CUDA_LOG2_E;

    mma_tile_load<D, ROWS, THREADS>(q_tile, q, stride, T - q0, HS);
    mma_tile_load<D, STEP, THREADS>(k_tiles, k, stride, T, HS);
    mma_tile_load<D, STEP, THREADS>(v_tiles, k + s.C, stride, T, HS);
    float o[M][D / 8][4] = {}, reference[M][2], sum[M][2], rescale[M][2];
    for (int i = 0; i < 2 * M; i++) {
        reference[i / 2][i % 2] = -FLT_MAX;
        sum[i / 2][i % 2] = 0.0f;
    }
    mma_copies_wait();
    __syncthreads();
    const typename AttentionMmaRows<Cut::HELD, D, M>::Type q_rows(q_tile, warp * 16 * M);
    uint32_t here = 0;
    for (int k0 = 0; k0 < end; k0 += STEP, here ^= 1) {
        mma_copies_wait();
        __syncthreads();  // the step is there, and the one before is done with
        if (k0 + STEP < end) {
            const uint32_t offset = (here ^ 1) * mma_tile_bytes(D, STEP);
            k += STEP * stride;
            mma_tile_load<D, STEP, THREADS>(k_tiles + offset, k, stride, T - k0 - STEP, HS);
            mma_tile_load<D, STEP, THREADS>(v_tiles + offset, k + s.C, stride, T - k0 - STEP, HS);
        }
        if (w0 >= T || k0 >= w0 + 16 * M) continue;
        const uint32_t offset = here * mma_tile_bytes(D, STEP);
        float x[M][STEP / 8][4];
        mma_rows_by_rows<DTYPE, D>(x, q_rows, k_tiles + offset);
        if (k0 + STEP - 1 > w0) attention_mma_mask<false>(x, w0 - k0);
        if (attention_mma_softmax(x, reference, sum, rescale, scale)) attention_mma_scale(o, rescale);
        mma_add_product<DTYPE, D>(o, x, v_tiles + offset);
    }
    if (w0 >= T) return;
    for (int i = 0; i < M; i++) {
        for (int h = 0; h < 2; h++) {
            sum[i][h] += __shfl_xor_sync(0xffffffffu, sum[i][h], 1);
            sum[i][h] += __shfl_xor_sync(0xffffffffu, sum[i][h], 2);
            const int row = w0 + attention_mma_row(i, 2 * h);
            if (row < T && threadIdx.x % 4 == 0) {
                lse[(size_t)head * s.T + row] = fmaf(reference[i][h], ATTENTION_LN_2, logf(sum[i][h]));
            }
            rescale[i][h] = 1.0f / sum[i][h];
        }
    }
    attention_mma_scale(o, rescale);
    mma_store_rows<DTYPE, D>(out + attention_mma_first(s, s.C, 0, head) + (size_t)q0 * s.C, s.C, T - q0, HS,
                            attention_mma_shared, warp * 16 * M, o);
}

// ---------------------------------------------------------------------------------------------------------------
// Backward: queries

template <int D> static inline size_t attention_mma_backward_q_shared() {
    typedef AttentionMmaBackward<D> Cut;
    const int rows = 16 * Cut::M * Cut::WARPS;
    return (size_t)mma_tile_bytes(D, 2 * rows + 4 * Cut::STEP) + 2 * rows * sizeof(float);
}

// d[row] = sum of dO o O, for a warp's rows first ... of a tile of dO; `o` row 0 of the tile in memory.
template <Dtype DTYPE, int D, int N>
__device__ __forceinline__ void attention_mma_row_products(float *d, const unsigned char *tile, const uint16_t *o,
                                                           uint32_t stride, int first, int n_rows, int n_channels) {
    constexpr int CHUNKS = mma_pitch(D) / 8;
    const int lane = (int)threadIdx.x % WARP, chunk = lane % CHUNKS;
#pragma unroll 2
    for (int i = 0; i < N; i += WARP / CHUNKS) {
        const int row = first + i + lane / CHUNKS;
        float sum = 0.0f;
        if (row < n_rows && chunk * 8 < n_channels) {
            const uint4 a = *(const uint4 *)(o + (uint32_t)row * stride + chunk * 8);
            const uint4 b = *(const uint4 *)(tile + mma_offset(D, row, chunk));
            const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                sum = fmaf(Mma<DTYPE>::low(x[w]), Mma<DTYPE>::low(y[w]), sum);
                sum = fmaf(Mma<DTYPE>::high(x[w]), Mma<DTYPE>::high(y[w]), sum);
            }
        }
#pragma unroll
        for (int distance = CHUNKS / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (chunk == 0) d[row] = sum;
    }
    __syncwarp();
}

// dq, and d (B NH, T), the row sums of dO o O.
template <Dtype DTYPE, int D>
__global__ static void __launch_bounds__(AttentionMmaBackward<D>::WARPS *WARP, AttentionMmaBackward<D>::BLOCKS)
    attention_mma_backward_q_kernel(AttentionMma s, uint16_t *dqkv, float *d, const uint16_t *dout, const uint16_t *qkv,
                                    const uint16_t *out, const float *lse) {
    typedef AttentionMmaBackward<D> Cut;
    constexpr int M = Cut::M, STEP = Cut::STEP, ROWS = 16 * M * Cut::WARPS, THREADS = Cut::WARPS * WARP;
    extern __shared__ __align__(256) unsigned char attention_mma_shared[];
    const uint32_t q_tile = mma_shared_address(attention_mma_shared), do_tile = q_tile + mma_tile_bytes(D, ROWS);
    const uint32_t k_tiles = do_tile + mma_tile_bytes(D, ROWS), v_tiles = k_tiles + mma_tile_bytes(D, 2 * STEP);
    float *d_rows = (float *)(attention_mma_shared + mma_tile_bytes(D, 2 * ROWS + 4 * STEP)), *lse_rows = d_rows + ROWS;
    const int T = (int)s.T, n_blocks = (T + ROWS - 1) / ROWS, warp = (int)threadIdx.x / WARP, w = warp * 16 * M;
    uint32_t head;
    const int nth = (int)attention_mma_work(s.heads, s.group, n_blocks, blockIdx.x, &head);
    const int q0 = (n_blocks - 1 - nth) * ROWS, w0 = q0 + w;
    const int end = min(T, q0 + ROWS), HS = (int)s.HS;
    const uint32_t stride = 3 * s.C, C = s.C;
    const size_t at_q = attention_mma_first(s, stride, 0, head) + (size_t)q0 * stride;
    const size_t at_o = attention_mma_first(s, s.C, 0, head) + (size_t)q0 * s.C;
    const uint16_t *k = qkv + attention_mma_first(s, stride, 1, head);
    const float scale = s.scale * CUDA_LOG2_E;

    mma_tile_load<D, ROWS, THREADS>(q_tile, qkv + at_q, stride, T - q0, HS);
    mma_tile_load<D, ROWS, THREADS>(do_tile, dout + at_o, C, T - q0, HS);
    mma_tile_load<D, STEP, THREADS>(k_tiles, k, stride, T, HS);
    mma_tile_load<D, STEP, THREADS>(v_tiles, k + s.C, stride, T, HS);
    float dq[M][D / 8][4] = {};
    mma_copies_wait();
    __syncthreads();
    attention_mma_row_products<DTYPE, D, 16 * M>(d_rows, attention_mma_shared + mma_tile_bytes(D, ROWS), out + at_o, C,
                                                w, T - q0, HS);
    for (int row = w + (int)threadIdx.x % WARP; row < w + 16 * M; row += WARP) {
        lse_rows[row] = q0 + row < T ? lse[(size_t)head * s.T + q0 + row] * CUDA_LOG2_E : 0.0f;
        if (q0 + row < T) d[(size_t)head * s.T + q0 + row] = d_rows[row];
    }
    __syncwarp();
    const typename AttentionMmaRows<Cut::HELD, D, M>::Type q_rows(q_tile, w), do_rows(do_tile, w);
    uint32_t here = 0;
    for (int k0 = 0; k0 < end; k0 += STEP, here ^= 1) {
        mma_copies_wait();
        __syncthreads();  // the step is there, and the one before is done with
        if (k0 + STEP < end) {
            const uint32_t offset = (here ^ 1) * mma_tile_bytes(D, STEP);
            k += STEP * stride;
            mma_tile_load<D, STEP, THREADS>(k_tiles + offset, k, stride, T - k0 - STEP, HS);
            mma_tile_load<D, STEP, THREADS>(v_tiles + offset, k + s.C, stride, T - k0 - STEP, HS);
        }
        if (w0 >= T || k0 >= w0 + 16 * M) continue;
        const uint32_t offset = here * mma_tile_bytes(D, STEP);
        float x[M][STEP / 8][4], dp[M][STEP / 8][4];
        mma_rows_by_rows<DTYPE, D>(x, q_rows, k_tiles + offset);
        if (k0 + STEP - 1 > w0) attention_mma_mask<false>(x, w0 - k0);
        mma_rows_by_rows<DTYPE, D>(dp, do_rows, v_tiles + offset);
#pragma unroll
        for (int n = 0; n < M * STEP / 2; n++) {  // scores become dS
            const int i = n / (STEP / 2), j = n / 4 % (STEP / 8), e = n % 4;
            const int row = attention_mma_row(i, e);
            x[i][j][e] = cuda_exp2(fmaf(x[i][j][e], scale, -lse_rows[w + row])) * (dp[i][j][e] - d_rows[w + row]);
        }
        mma_add_product<DTYPE, D>(dq, x, k_tiles + offset);
    }
    if (w0 >= T) return;
    float by[M][2];
    for (int i = 0; i < 2 * M; i++) by[i / 2][i % 2] = s.scale;
    attention_mma_scale(dq, by);
    mma_store_rows<DTYPE, D>(dqkv + at_q, stride, T - q0, HS, attention_mma_shared, w, dq);
}

// ---------------------------------------------------------------------------------------------------------------
// Backward: keys and values

template <int D> static inline size_t attention_mma_backward_kv_shared() {
    typedef AttentionMmaBackward<D> Cut;
    return (size_t)mma_tile_bytes(D, 2 * 16 * Cut::M * Cut::WARPS + 4 * Cut::STEP) + 4 * Cut::STEP * sizeof(float);
}

// A head's queries, of which a step needs some rows: q, the gradients of their out, their lse and d.
struct AttentionMmaQueries {
    const uint16_t *q, *dout;
    const float *lse, *d;
};

// Begins to bring in a step's queries, from row t0 on.
template <int D, int STEP, int THREADS>
__device__ __forceinline__ void attention_mma_load_queries(const AttentionMma &s, uint32_t q_tile, uint32_t do_tile,
                                                           uint32_t rows, const AttentionMmaQueries &from, int t0) {
    const int n = (int)s.T - t0, i = (int)threadIdx.x;
    mma_tile_load<D, STEP, THREADS>(q_tile, from.q + (size_t)t0 * (3 * s.C), 3 * s.C, n, (int)s.HS);
    mma_tile_load<D, STEP, THREADS>(do_tile, from.dout + (size_t)t0 * s.C, s.C, n, (int)s.HS);
    if (i >= STEP) return;
    mma_copy_4(rows + 4 * i, i < n ? from.lse + t0 + i : from.lse, i < n ? 4 : 0);
    mma_copy_4(rows + 4 * (STEP + i), i < n ? from.d + t0 + i : from.d, i < n ? 4 : 0);
}

// dk and dv.
template <Dtype DTYPE, int D>
__global__ static void __launch_bounds__(AttentionMmaBackward<D>::WARPS *WARP, AttentionMmaBackward<D>::BLOCKS)
    attention_mma_backward_kv_kernel(AttentionMma s, uint16_t *dqkv, const uint16_t *dout, const uint16_t *qkv,
                                     const float *lse, const float *d) {
    typedef AttentionMmaBackward<D> Cut;
    constexpr int M = Cut::M, STEP = Cut::STEP, ROWS = 16 * M * Cut::WARPS, THREADS = Cut::WARPS * WARP;
    extern __shared__ __align__(256) unsigned char attention_mma_shared[];
    const uint32_t k_tile = mma_shared_address(attention_mma_shared), v_tile = k_tile + mma_tile_bytes(D, ROWS);
    const uint32_t q_tiles = v_tile + mma_tile_bytes(D, ROWS), do_tiles = q_tiles + mma_tile_bytes(D, 2 * STEP);
    const int ROWS_AT = mma_tile_bytes(D, 2 * ROWS + 4 * STEP);
    const uint32_t rows = k_tile + ROWS_AT;  // (2 steps, lse and d, STEP)
    const int T = (int)s.T, n_blocks = (T + ROWS - 1) / ROWS, warp = (int)threadIdx.x / WARP, w = warp * 16 * M;
    uint32_t head;
    const int k0 = (int)attention_mma_work(s.heads, s.group, n_blocks, blockIdx.x, &head) * ROWS, w0 = k0 + w;
    const uint32_t stride = 3 * s.C;
    const size_t at_q = attention_mma_first(s, stride, 0, head), at_k = at_q + s.C + (size_t)k0 * stride;
    const AttentionMmaQueries queries = {qkv + at_q, dout + attention_mma_first(s, s.C, 0, head),
                                         lse + (size_t)head * s.T, d + (size_t)head * s.T};
    const float scale = s.scale * CUDA_LOG2_E;

    mma_tile_load<D, ROWS, THREADS>(k_tile, qkv + at_k, stride, T - k0, (int)s.HS);
    mma_tile_load<D, ROWS, THREADS>(v_tile, qkv + at_k + s.C, stride, T - k0, (int)s.HS);
    attention_mma_load_queries<D, STEP, THREADS>(s, q_tiles, do_tiles, rows, queries, k0);
    const MmaShared<D, M> k_rows(k_tile, w), v_rows(v_tile, w);
    float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
    uint32_t here = 0;
    for (int t0 = k0; t0 < T; t0 += STEP, here ^= 1) {
        mma_copies_wait();
        __syncthreads();  // the step is there, and the one before is done with
        if (t0 + STEP < T) {
            const uint32_t next = here ^ 1, offset = next * mma_tile_bytes(D, STEP);
            attention_mma_load_queries<D, STEP, THREADS>(s, q_tiles + offset, do_tiles + offset,
                                                         rows + next * 2 * STEP * 4, queries, t0 + STEP);
        }
        if (w0 >= T || t0 + STEP <= w0) continue;
        const uint32_t offset = here * mma_tile_bytes(D, STEP);
        const float *step_lse = (const float *)(attention_mma_shared + ROWS_AT) + here * 2 * STEP;
        const float *step_d = step_lse + STEP;
        float p[M][STEP / 8][4], dp[M][STEP / 8][4];
        mma_rows_by_rows<DTYPE, D>(p, k_rows, q_tiles + offset);
        if (t0 < w0 + 16 * M - 1) attention_mma_mask<true>(p, w0 - t0);
#pragma unroll
        for (int n = 0; n < M * STEP / 2; n++) {
            const int i = n / (STEP / 2), j = n / 4 % (STEP / 8), e = n % 4;
            const float row_lse = CUDA_LOG2_E * step_lse[attention_mma_column(j, e)];
            p[i][j][e] = cuda_exp2(fmaf(p[i][j][e], scale, -row_lse));
        }
        mma_add_product<DTYPE, D>(dv, p, do_tiles + offset);
        mma_rows_by_rows<DTYPE, D>(dp, v_rows, do_tiles + offset);
#pragma unroll
        for (int n = 0; n < M * STEP / 2; n++) {
            const int i = n / (STEP / 2), j = n / 4 % (STEP / 8), e = n % 4;
            p[i][j][e] *= dp[i][j][e] - step_d[attention_mma_column(j, e)];
        }
        mma_add_product<DTYPE, D>(dk, p, q_tiles + offset);
    }
    if (w0 >= T) return;
    float by[M][2];
    for (int i = 0; i < 2 * M; i++) by[i / 2][i % 2] = s.scale;
    attention_mma_scale(dk, by);
    mma_store_rows<DTYPE, D>(dqkv + at_k, stride, T - k0, (int)s.HS, attention_mma_shared, w, dk);
    mma_store_rows<DTYPE, D>(dqkv + at_k + s.C, stride, T - k0, (int)s.HS,
                            attention_mma_shared + mma_tile_bytes(D, ROWS), w, dv);
}

// ---------------------------------------------------------------------------------------------------------------
// Launches

static inline AttentionMma attention_mma_shape(size_t B, size_t T, size_t C, size_t NH, float scale) {
    const size_t HS = C / NH, group = size_max(1, ATTENTION_MMA_CACHE / (4 * T * HS));
    const AttentionMma s = {(uint32_t)T, (uint32_t)C,        (uint32_t)NH,   (uint32_t)HS,
                            (uint32_t)(B * NH), (uint32_t)group, scale};
    return s;
}

// A kernel, for blocks of ROWS rows of all heads; more than 48 KiB of shared memory have to be asked for.
#define ATTENTION_MMA_RUN(device, kernel, Cut, s, shared, ...)                                                        \
    do {                                                                                                              \
        auto run = kernel;                                                                                            \
        CUDA_CHECK(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(shared)));            \
        const size_t blocks = (s).heads * size_ceil_div((s).T, 16 * Cut::M * Cut::WARPS);                             \
        CUDA_RUN(device, run, blocks, Cut::WARPS * WARP, shared, s, __VA_ARGS__);                                     \
    } while (0)

template <Dtype DTYPE, int D>
static inline void attention_mma_forward_run(Device *device, const AttentionMma &s, void *out, float *lse,
                                             const void *qkv) {
    typedef AttentionMmaForward<D> Cut;
    ATTENTION_MMA_RUN(device, (attention_mma_forward_kernel<DTYPE, D>), Cut, s, attention_mma_forward_shared<D>(),
                      (uint16_t *)out, lse, (const uint16_t *)qkv);
}

template <Dtype DTYPE, int D>
static inline void attention_mma_backward_run(Device *device, const AttentionMma &s, void *dqkv, const void *dout,
                                              const void *qkv, const void *out, const float *lse, float *d) {
    typedef AttentionMmaBackward<D> Cut;
    ATTENTION_MMA_RUN(device, (attention_mma_backward_q_kernel<DTYPE, D>), Cut, s, attention_mma_backward_q_shared<D>(),
                      (uint16_t *)dqkv, d, (const uint16_t *)dout, (const uint16_t *)qkv, (const uint16_t *)out, lse);
    ATTENTION_MMA_RUN(device, (attention_mma_backward_kv_kernel<DTYPE, D>), Cut, s,
                      attention_mma_backward_kv_shared<D>(), (uint16_t *)dqkv, (const uint16_t *)dout,
                      (const uint16_t *)qkv, lse, d);
}

template <Dtype DTYPE>
static inline void attention_mma_forward(Device *device, const AttentionMma &s, void *out, float *lse,
                                         const void *qkv) {
    if (s.HS <= 64) attention_mma_forward_run<DTYPE, 64>(device, s, out, lse, qkv);
    else if (s.HS <= 96) attention_mma_forward_run<DTYPE, 96>(device, s, out, lse, qkv);
    else attention_mma_forward_run<DTYPE, 128>(device, s, out, lse, qkv);
}

// d (B NH, T) is scratch.
template <Dtype DTYPE>
static inline void attention_mma_backward(Device *device, const AttentionMma &s, void *dqkv, const void *dout,
                                          const void *qkv, const void *out, const float *lse, float *d) {
    if (s.HS <= 64) attention_mma_backward_run<DTYPE, 64>(device, s, dqkv, dout, qkv, out, lse, d);
    else if (s.HS <= 96) attention_mma_backward_run<DTYPE, 96>(device, s, dqkv, dout, qkv, out, lse, d);
    else attention_mma_backward_run<DTYPE, 128>(device, s, dqkv, dout, qkv, out, lse, d);
}

#endif
