// matmul.h - the products of matrices: nearly all of the arithmetic.
//
//     forward          out (rows, OC)  = in (rows, IC) . weight (OC, IC)^T + bias (OC)
//     backward input   din (rows, IC)  = dout (rows, OC) . weight (OC, IC)
//     backward weight  dweight (OC, IC) (+)= dout (rows, OC)^T . in (rows, IC)
//     backward bias    dbias (OC)       (+)= column sums of dout
//
// Activations and weights are in the storage type; sums are fp32 and rounded once, after the bias. Gradients of
// weights and biases are fp32: a product is summed completely, then added once to what is there (or, the first time in
// a step, replaces it). Cost: 2 rows IC OC operations each.
//
// On CUDA cuBLASLt does the work, with sums in fp32 and one explicit workspace.
//
// On the CPU oneDNN's matmul primitive does it where it has a brgemm implementation (AVX-512), in the storage type
// where the processor multiplies it natively. Its other implementations take memory of their own at every call (0.9 to 8 MiB
// for GPT-2's shapes on AVX2), which no plan can count, so everything else, and a machine without the library, runs on
// the tiles of tile.h, which convert while they pack.
//
// Primitives depend on shapes and on the number of threads; they are looked up by the planning pass, made before the
// first step and kept. Their scratchpads and workspaces, like the packing buffers, are taken from the stack. A product
// that replaces in one micro-batch and adds in the next takes the same bytes both times: the larger scratchpad.
#ifndef MATMUL_H
#define MATMUL_H

#ifndef USE_ONEDNN
#define USE_ONEDNN 0
#endif
#if USE_ONEDNN
#ifndef _OPENMP
#error "oneDNN's threads are OpenMP's, which must say how many there are: build with OpenMP, or without oneDNN"
#endif
#include <oneapi/dnnl/dnnl.h>
#endif

#include "../memory.h"
#include "tile.h"
#include "vector.h"

// One product C (M, N) = A (M, K) . B (K, N), each stored in rows of its own columns, or transposed.
typedef struct {
    size_t M, N, K;
    bool a_transposed, b_transposed;  // A stored (K, M), B stored (N, K)
    Number a_type, b_type, c_type;
    bool bias, add;  // C = A . B + bias (in a_type); C += A . B
    bool gradient;   // C is a gradient's sum: the product comes with `add` and without, and takes the same either way
    int alignment;   // bytes that all addresses are multiples of, at most 16; only CUDA asks
} MatmulShape;

typedef struct {
    MatmulShape shape;
    bool tiled;         // our own tiles instead of a primitive
    size_t scratchpad;  // bytes
#ifdef __CUDACC__
    cublasLtMatmulDesc_t operation;  // NULL until matmul_create()
    cublasLtMatrixLayout_t a_layout, b_layout, c_layout;
    cublasLtMatmulAlgo_t algorithm;
    int choice;       // rank of the algorithm in the library's list: 0, or --tune's
    bool own_kernel;  // the library has none for this shape
#endif
#if USE_ONEDNN
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;  // NULL until matmul_create()
    dnnl_memory_t a, b, bias, c, scratch;
#endif
} MatmulEntry;

enum { MATMUL_ENTRIES = 512 };

typedef struct Matmul {
    bool use_library;  // oneDNN is there, on AVX-512
    bool native_bf16;  // and multiplies bf16 natively
    const char *isa;   // what the products run on, for the log
    size_t n_entries, last;
    MatmulEntry entries[MATMUL_ENTRIES];
#if USE_ONEDNN
    dnnl_engine_t engine;
    dnnl_stream_t stream;
#endif
} Matmul;

#if USE_ONEDNN
static inline void matmul_check(dnnl_status_t status, const char *what) {
    if (status != dnnl_success) die("oneDNN: %s failed with status %d", what, (int)status);
}
#endif

// `use_library` false: our own tiles for everything, also where oneDNN is there.
static inline Matmul *matmul_open(bool use_library) {
    Matmul *matmul = (Matmul *)calloc(1, sizeof(Matmul));
    if (!matmul) die("out of memory at the start");
#if defined(__AVX512F__)
    matmul->isa = "own tiles, AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    matmul->isa = "own tiles, AVX2";
#else
    matmul->isa = "own tiles, no vector instructions assumed";
#endif
#if USE_ONEDNN
    if (!use_library) return matmul;
    matmul_check(dnnl_engine_create(&matmul->engine, dnnl_cpu, 0), "creating the engine");
    matmul_check(dnnl_stream_create(&matmul->stream, matmul->engine, dnnl_stream_default_flags), "creating a stream");
    int isa = (int)dnnl_get_effective_cpu_isa();
    bool avx512 = (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    matmul->native_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    matmul->use_library = avx512;
    if (avx512) {
        matmul->isa = (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx ? "oneDNN, AMX"
                      : matmul->native_bf16                                                ? "oneDNN, AVX-512 BF16"
                                                                                           : "oneDNN, AVX-512";
    }
#else
    (void)use_library;
#endif
    return matmul;
}

#ifdef __CUDACC__
static inline void matmul_close_cuda(MatmulEntry *entry);
#endif

static inline void matmul_close(Matmul *matmul) {
#ifdef __CUDACC__
    for (size_t i = 0; i < matmul->n_entries; i++) matmul_close_cuda(&matmul->entries[i]);
#endif
#if USE_ONEDNN
    for (size_t i = 0; i < matmul->n_entries; i++) {
        MatmulEntry *entry = &matmul->entries[i];
        if (entry->tiled || !entry->description) continue;
        if (entry->primitive) {
            dnnl_memory_destroy(entry->a);
            dnnl_memory_destroy(entry->b);
            dnnl_memory_destroy(entry->bias);
            dnnl_memory_destroy(entry->c);
            dnnl_memory_destroy(entry->scratch);
            dnnl_primitive_destroy(entry->primitive);
        }
        dnnl_primitive_desc_destroy(entry->description);
    }
    if (matmul->engine) {
        dnnl_stream_destroy(matmul->stream);
        dnnl_engine_destroy(matmul->engine);
    }
#endif
    free(matmul);
}

// ---------------------------------------------------------------------------------------------------------------
// Own tiles

// C is made in super-blocks of at most MATMUL_M x MATMUL_N. For each, parts of at most MATMUL_K columns of A and rows
// of B are packed once, by all threads; then threads take units of it, one after the other: a few columns of B stay in
// the second-level cache, TILE_M rows of A in the first, and B streams past them.
enum { MATMUL_M = 1024, MATMUL_N = 768, MATMUL_K = 1024, MATMUL_UNIT = 96 * 1024, MATMUL_UNITS = 6 };
// Added to the distances of packed rows and panels, floats: one line, so that a column of A, or the same row of all
// panels, does not fall into few sets of the cache.
enum { MATMUL_LINE = 16 };

// How a product is cut; a function of its shape and the number of threads. Workspace in floats.
typedef struct {
    size_t M, N, K;         // of a super-block: whole tiles; all equal but the last
    size_t lda, panel;      // distances of packed rows of A and of panels of B
    size_t unit_m, unit_n;  // of a unit, whole tiles
    bool direct;            // A is read where it lies, but for its last, incomplete tile
    bool parted;            // K is cut: sums of a whole super-block are kept between its parts
    size_t a, b, sums;      // floats of workspace for A, for B, and for the sums
} MatmulCut;

// The size of equal parts of n, at most `most` each, in multiples of `unit`.
static inline size_t matmul_part(size_t n, size_t most, size_t unit) {
    return round_up(ceil_div(n, ceil_div(n, most)), unit);
}

static inline MatmulCut matmul_cut(const MatmulShape *s, int threads) {
    MatmulCut cut;
    memset(&cut, 0, sizeof(cut));
    cut.M = matmul_part(s->M, MATMUL_M, TILE_M);
    cut.N = matmul_part(s->N, MATMUL_N, TILE_N);
    cut.K = matmul_part(s->K, MATMUL_K, 8);
    cut.lda = cut.K + MATMUL_LINE;
    cut.panel = cut.K * TILE_N + MATMUL_LINE;
    cut.unit_n = matmul_part(cut.N, size_max(MATMUL_UNIT / cut.K, TILE_N), TILE_N);
    size_t across = ceil_div(cut.N, cut.unit_n), down = ceil_div(MATMUL_UNITS * (size_t)threads, across);
    cut.unit_m = matmul_part(cut.M, ceil_div(cut.M, down), TILE_M);
    cut.direct = s->a_type == FP32 && !s->a_transposed;
    cut.parted = cut.K < s->K;
    cut.a = (cut.direct ? (size_t)TILE_M : cut.M) * cut.lda;
    cut.b = cut.N / TILE_N * cut.panel;
    cut.sums = cut.parted ? cut.M * cut.N : (size_t)threads * TILE_M * cut.unit_n;
    return cut;
}

// Floats of workspace of a product.
static inline size_t matmul_tiled_floats(const MatmulShape *s, int threads) {
    MatmulCut cut = matmul_cut(s, threads);
    return cut.a + cut.b + cut.sums;
}

// Rounds one finished row of sums into C, after bias or addition.
static inline void matmul_store_row(const MatmulShape *s, void *c, const void *bias, const float *sums, size_t m,
                                    size_t n0, size_t n) {
    float c_block[NUMBER_BLOCK], bias_block[NUMBER_BLOCK];
    float *to = number_target(s->c_type, c, m * s->N + n0, c_block);
    if (s->bias) {
        const float *b = number_load(s->a_type, bias, n0, n, bias_block);
        for (size_t i = 0; i < n; i++) to[i] = sums[i] + b[i];
    } else if (s->add) {
        const float *before = number_load(s->c_type, c, m * s->N + n0, n, c_block);  // a block, or C itself
        for (size_t i = 0; i < n; i++) to[i] = before[i] + sums[i];
    } else {
        for (size_t i = 0; i < n; i++) to[i] = sums[i];
    }
    number_store(s->c_type, c, m * s->N + n0, n, to);
}

// A super-block of C: rows [m0, m1), columns [n0, n1); of the sums over k: [k0, k1).
typedef struct {
    size_t m0, m1, n0, n1, k0, k1;
} MatmulRange;

// Packs what the super-block needs of A or B. Called by all threads, which share the work by rows of the source.
static inline void matmul_pack(const MatmulShape *s, const MatmulCut *cut, const MatmulRange *r, float *a, float *b,
                               const void *a_base, const void *b_base, bool pack_a, bool pack_b) {
    TileSource a_from = {s->a_type, a_base, 0, s->a_transposed ? s->M : s->K};
    TileSource b_from = {s->b_type, b_base, 0, s->b_transposed ? s->K : s->N};
    const size_t m0 = cut->direct ? r->m0 + (r->m1 - r->m0) / TILE_M * TILE_M : r->m0, K = r->k1 - r->k0;
    const size_t a_step = s->a_transposed ? 32 : 8 * TILE_M, b_step = s->b_transposed ? 2 * TILE_N : 32;
    const size_t a_steps = pack_a ? ceil_div(s->a_transposed ? K : r->m1 - m0, a_step) : 0;
    const size_t b_steps = pack_b ? ceil_div(s->b_transposed ? r->n1 - r->n0 : K, b_step) : 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t step = 0; step < (int64_t)(a_steps + b_steps); step++) {
        size_t i = (size_t)step;
        if (i < b_steps && s->b_transposed) {
            size_t n = r->n0 + i * b_step;
            tile_pack_b(b + i * b_step / TILE_N * cut->panel, cut->panel, &b_from, true, n, size_min(n + b_step, r->n1),
                        r->k0, K);
        } else if (i < b_steps) {
            size_t k = i * b_step;
            tile_pack_b(b + k * TILE_N, cut->panel, &b_from, false, r->n0, r->n1, r->k0 + k, size_min(b_step, K - k));
        } else if (s->a_transposed) {
            size_t k = (i - b_steps) * a_step;
            tile_pack_a(a + k, cut->lda, &a_from, true, m0, r->m1, r->k0 + k, size_min(a_step, K - k));
        } else {
            size_t m = m0 + (i - b_steps) * a_step;
            tile_pack_a(a + (m - m0) * cut->lda, cut->lda, &a_from, false, m, size_min(m + a_step, r->m1), r->k0, K);
        }
    }
}

// Columns [n0, n1) of one row of tiles, at row m.
static inline void matmul_tiles(const MatmulShape *s, const MatmulCut *cut, const MatmulRange *r, void *c,
                                const void *a_base, const void *bias, const float *a, const float *b, float *sums,
                                size_t m, size_t n0, size_t n1) {
    size_t K = r->k1 - r->k0, lda = cut->lda, rows = size_min(TILE_M, r->m1 - m);
    size_t ldc = cut->parted ? cut->N : cut->unit_n;
    float *to =
        cut->parted ? sums + (m - r->m0) * cut->N + n0 - r->n0 : sums + (size_t)device_thread() * TILE_M * cut->unit_n;
    if (!cut->direct) {
        a += (m - r->m0) * lda;
    } else if (rows == TILE_M) {
        a = (const float *)a_base + m * s->K + r->k0;
        lda = s->K;
    }
    for (size_t n = n0; n < n1; n += TILE_N) {
        tile_product(K, a, lda, b + (n - r->n0) / TILE_N * cut->panel, to + n - n0, ldc, r->k0 > 0);
    }
    if (r->k1 < s->K) return;
    for (size_t i = 0; i < rows; i++) matmul_store_row(s, c, bias, to + i * ldc, m + i, n0, n1 - n0);
}

static inline void matmul_tiled_cpu(const MatmulShape *s, void *c, const void *a_base, const void *b_base,
                                    const void *bias, float *workspace, int threads) {
    const MatmulCut cut = matmul_cut(s, threads);
    float *a = workspace, *b = a + cut.a, *sums = b + cut.b;
    // Super-blocks in rows, parts of K innermost: A stays packed along a row if it has one part, B if the row also has
    // only one super-block.
    size_t across = ceil_div(s->N, cut.N), parts = ceil_div(s->K, cut.K),
           steps = ceil_div(s->M, cut.M) * across * parts;
#pragma omp parallel
    for (size_t step = 0; step < steps; step++) {
        size_t m = step / parts / across, n = step / parts % across, k = step % parts;
        MatmulRange r = {m * cut.M, size_min((m + 1) * cut.M, s->M), n * cut.N, size_min((n + 1) * cut.N, s->N),
                         k * cut.K, size_min((k + 1) * cut.K, s->K)};
        size_t columns = ceil_div(r.n1 - r.n0, cut.unit_n), units = columns * ceil_div(r.m1 - r.m0, cut.unit_m);
        matmul_pack(s, &cut, &r, a, b, a_base, b_base, parts > 1 || n == 0, parts > 1 || across > 1 || m == 0);
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < (int64_t)units; unit++) {
            size_t n0 = r.n0 + (size_t)unit % columns * cut.unit_n, n1 = size_min(n0 + cut.unit_n, r.n1);
            size_t m0 = r.m0 + (size_t)unit / columns * cut.unit_m, m1 = size_min(m0 + cut.unit_m, r.m1);
            for (size_t i = m0; i < m1; i += TILE_M) {
                matmul_tiles(s, &cut, &r, c, a_base, bias, a, b, sums, i, n0, n1);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// oneDNN

#if USE_ONEDNN
static inline dnnl_data_type_t matmul_onednn_type(Number type) { return type == FP32 ? dnnl_f32 : dnnl_bf16; }

static inline dnnl_memory_desc_t matmul_onednn_matrix(Number type, size_t rows, size_t columns, bool transposed) {
    dnnl_memory_desc_t description;
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    dnnl_dims_t strides = {transposed ? 1 : (dnnl_dim_t)columns, transposed ? (dnnl_dim_t)rows : 1};
    matmul_check(dnnl_memory_desc_init_by_strides(&description, 2, dims, matmul_onednn_type(type), strides),
                 "describing a matrix");
    return description;
}

// Describes the primitive and asks for its scratchpad; false if the library has none that will do.
static inline bool matmul_describe(Matmul *matmul, MatmulEntry *entry) {
    const MatmulShape *s = &entry->shape;
    dnnl_memory_desc_t a = matmul_onednn_matrix(s->a_type, s->M, s->K, s->a_transposed);
    dnnl_memory_desc_t b = matmul_onednn_matrix(s->b_type, s->K, s->N, s->b_transposed);
    dnnl_memory_desc_t bias = matmul_onednn_matrix(s->a_type, 1, s->N, false);
    dnnl_memory_desc_t c = matmul_onednn_matrix(s->c_type, s->M, s->N, false);
    dnnl_matmul_desc_t description;
    matmul_check(dnnl_matmul_desc_init(&description, &a, &b, s->bias ? &bias : NULL, &c), "describing a product");
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t post;
    matmul_check(dnnl_primitive_attr_create(&attributes), "creating attributes");
    matmul_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "scratchpad mode");
    matmul_check(dnnl_post_ops_create(&post), "creating post-operations");
    if (s->add) {
        matmul_check(dnnl_post_ops_append_sum(post, 1.0f), "appending a sum");
        matmul_check(dnnl_primitive_attr_set_post_ops(attributes, post), "setting post-operations");
    }
    dnnl_status_t status =
        dnnl_primitive_desc_create(&entry->description, &description, attributes, matmul->engine, NULL);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attributes);
    if (status == dnnl_unimplemented || status == dnnl_invalid_arguments) {
        entry->description = NULL;
        return false;
    }
    matmul_check(status, "creating a product");
    const char *name = "";
    matmul_check(dnnl_primitive_desc_query(entry->description, dnnl_query_impl_info_str, 0, &name), "asking its name");
    if (strncmp(name, "brg", 3) != 0) {  // allocates at every call
        dnnl_primitive_desc_destroy(entry->description);
        entry->description = NULL;
        return false;
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(entry->description, dnnl_query_scratchpad_md, 0);
    entry->scratchpad = pad ? dnnl_memory_desc_get_size(pad) : 0;
    return true;
}

static inline dnnl_memory_t matmul_onednn_memory(Matmul *matmul, const MatmulEntry *entry, dnnl_query_t what, int n) {
    dnnl_memory_t memory;
    const dnnl_memory_desc_t *description = dnnl_primitive_desc_query_md(entry->description, what, n);
    matmul_check(dnnl_memory_create(&memory, description, matmul->engine, DNNL_MEMORY_NONE), "creating a memory");
    return memory;
}

static inline void matmul_onednn_cpu(Matmul *matmul, MatmulEntry *entry, void *c, const void *a, const void *b,
                                     const void *bias, void *scratchpad) {
    if (!entry->primitive) die("a product of matrices was not planned; this is a bug, please report the command line");
    dnnl_memory_set_data_handle(entry->a, (void *)(uintptr_t)a);
    dnnl_memory_set_data_handle(entry->b, (void *)(uintptr_t)b);
    dnnl_memory_set_data_handle(entry->bias, (void *)(uintptr_t)bias);
    dnnl_memory_set_data_handle(entry->c, c);
    dnnl_memory_set_data_handle(entry->scratch, scratchpad);
    dnnl_exec_arg_t arguments[5] = {{DNNL_ARG_SRC, entry->a},
                                    {DNNL_ARG_WEIGHTS, entry->b},
                                    {DNNL_ARG_DST, entry->c},
                                    {DNNL_ARG_SCRATCHPAD, entry->scratch},
                                    {DNNL_ARG_BIAS, entry->bias}};
    matmul_check(dnnl_primitive_execute(entry->primitive, matmul->stream, entry->shape.bias ? 5 : 4, arguments),
                 "a product");
    matmul_check(dnnl_stream_wait(matmul->stream), "waiting for a product");
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// CUDA: cuBLASLt
//
// The library stores matrices by columns, so it is asked for the transpose, C^T (N,M) = B^T (N,K) . A^T (K,M): its
// first matrix is our B, its second our A, and a matrix that we store by rows of its own columns needs no transposing.

// Bytes of the explicit workspace: what NVIDIA recommends for the library. It must begin at a multiple of
// MATMUL_WORKSPACE_ALIGN bytes, for which the take has room.
enum { MATMUL_WORKSPACE_ALIGN = 256 };

static inline size_t matmul_workspace(int compute_capability) {
    return (size_t)(compute_capability >= 90 ? 32 : 4) << 20;
}

#ifdef __CUDACC__
static inline cudaDataType_t matmul_cuda_type(Number type) {
    return type == FP32 ? CUDA_R_32F : type == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

#define MATMUL_SET(what, object, attribute, value) \
    BLAS_CHECK(cublasLt##what##SetAttribute(object, attribute, &(value), sizeof(value)))

// Where the library has no algorithm: one thread per element of C.
__global__ static void matmul_plain_kernel(MatmulShape s, void *c, const void *a, const void *b, const void *bias) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.M * s.N; i += step) {
        size_t m = i / s.N, n = i % s.N;
        float sum = 0.0f;
        for (size_t k = 0; k < s.K; k++) {
            float x = number_get(s.a_type, a, s.a_transposed ? k * s.M + m : m * s.K + k);
            sum = fmaf(x, number_get(s.b_type, b, s.b_transposed ? n * s.K + k : k * s.N + n), sum);
        }
        if (s.bias) sum += number_get(s.a_type, bias, n);
        number_put(s.c_type, c, i, s.add ? number_get(s.c_type, c, i) + sum : sum);
    }
}

enum { MATMUL_CANDIDATES = 8 };  // that --tune chooses from

// The algorithm of rank entry->choice among those of the library's that fit the workspace and add partial sums, if they
// cut K, in fp32 and in a fixed order: a function of shape, device and library, so that runs repeat bit for bit.
// Returns how many there are, at most MATMUL_CANDIDATES.
static inline int matmul_choose(Device *device, MatmulEntry *entry) {
    const MatmulShape *s = &entry->shape;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[MATMUL_CANDIDATES];
    size_t workspace = matmul_workspace(device->compute_capability);
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = (uint32_t)s->alignment;
    int found = 0;
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    MATMUL_SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(device->cuda->blas, entry->operation, entry->a_layout, entry->b_layout,
                                       entry->c_layout, entry->c_layout, preference, MATMUL_CANDIDATES, results,
                                       &found);
    entry->own_kernel = status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0);
    if (!entry->own_kernel) {
        BLAS_CHECK(status);
        if (entry->choice >= found) entry->choice = 0;
        entry->algorithm = results[entry->choice].algo;
    }
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return found;
}

static inline void matmul_create_cuda(Device *device, MatmulEntry *entry) {
    const MatmulShape *s = &entry->shape;
    cublasOperation_t a_operation = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b_operation = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_CHECK(cublasLtMatmulDescCreate(&entry->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    MATMUL_SET(MatmulDesc, entry->operation, CUBLASLT_MATMUL_DESC_TRANSA, a_operation);
    MATMUL_SET(MatmulDesc, entry->operation, CUBLASLT_MATMUL_DESC_TRANSB, b_operation);
    if (s->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t type = matmul_cuda_type(s->a_type);
        MATMUL_SET(MatmulDesc, entry->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        MATMUL_SET(MatmulDesc, entry->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
    const uint64_t b_rows = s->b_transposed ? s->K : s->N, b_columns = s->b_transposed ? s->N : s->K;
    const uint64_t a_rows = s->a_transposed ? s->M : s->K, a_columns = s->a_transposed ? s->K : s->M;
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&entry->a_layout, matmul_cuda_type(s->b_type), b_rows, b_columns,
                                          (int64_t)b_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&entry->b_layout, matmul_cuda_type(s->a_type), a_rows, a_columns,
                                          (int64_t)a_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&entry->c_layout, matmul_cuda_type(s->c_type), s->N, s->M, (int64_t)s->N));
    matmul_choose(device, entry);
}

static inline void matmul_close_cuda(MatmulEntry *entry) {
    if (!entry->operation) return;
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(entry->a_layout));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(entry->b_layout));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(entry->c_layout));
    BLAS_CHECK(cublasLtMatmulDescDestroy(entry->operation));
}

static inline void matmul_cuda(Device *device, MatmulEntry *entry, void *c, const void *a, const void *b,
                               const void *bias, void *workspace) {
    const MatmulShape *s = &entry->shape;
    const float one = 1.0f, beta = s->add ? 1.0f : 0.0f;
    workspace = (void *)round_up((uintptr_t)workspace, MATMUL_WORKSPACE_ALIGN);
    if (!entry->operation) die("a product of matrices was not planned; this is a bug, please report the command line");
    if (entry->own_kernel) {
        CUDA_RUN(device, matmul_plain_kernel, cuda_blocks(s->M * s->N), CUDA_THREADS, 0, *s, c, a, b, bias);
        return;
    }
    if (s->bias) MATMUL_SET(MatmulDesc, entry->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    BLAS_CHECK(cublasLtMatmul(device->cuda->blas, entry->operation, &one, b, entry->a_layout, a, entry->b_layout, &beta,
                              c, entry->c_layout, c, entry->c_layout, &entry->algorithm, workspace,
                              matmul_workspace(device->compute_capability), device->cuda->queues[QUEUE_COMPUTE]));
}

// Bytes, at most 16, that a product's addresses are all multiples of.
static inline int matmul_alignment(const void *c, const void *a, const void *b, const void *bias) {
    uintptr_t bits = (uintptr_t)c | (uintptr_t)a | (uintptr_t)b | (uintptr_t)bias;
    int alignment = 16;
    while (bits % (uintptr_t)alignment != 0) alignment /= 2;
    return alignment;
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// Choice, by fixed rules

// Our own tiles instead of the library's product, if it has been described.
static inline void matmul_use_tiles(const Device *device, MatmulEntry *entry) {
#if USE_ONEDNN
    if (entry->description) dnnl_primitive_desc_destroy(entry->description);
    entry->description = NULL;
#endif
    entry->tiled = true;
    entry->scratchpad = matmul_tiled_floats(&entry->shape, device->threads) * sizeof(float);
}

static inline MatmulEntry *matmul_lookup(Matmul *matmul, const MatmulShape *shape) {
    for (size_t i = 0, at = matmul->last; i < matmul->n_entries; i++, at++) {
        if (at >= matmul->n_entries) at = 0;
        if (memcmp(&matmul->entries[at].shape, shape, sizeof(*shape)) != 0) continue;
        matmul->last = at;
        return &matmul->entries[at];
    }
    return NULL;
}

// A new entry; on the CPU the library's, where it has one for the shape.
static inline MatmulEntry *matmul_add(Device *device, const MatmulShape *shape) {
    Matmul *matmul = device->matmul;
    if (matmul->n_entries == MATMUL_ENTRIES) die("more than %d shapes of matrix products", MATMUL_ENTRIES);
    MatmulEntry *entry = &matmul->entries[matmul->n_entries++];
    memcpy(&entry->shape, shape, sizeof(*shape));
    if (device->real == DEVICE_CUDA) {
        entry->scratchpad = matmul_workspace(device->compute_capability) + MATMUL_WORKSPACE_ALIGN;
        return entry;
    }
    entry->tiled = !matmul->use_library || shape->a_type == FP16 || (shape->a_type == BF16 && !matmul->native_bf16);
#if USE_ONEDNN
    if (!entry->tiled && !matmul_describe(matmul, entry)) entry->tiled = true;
#endif
    return entry;
}

// The entry for a shape; the planning pass adds what is missing, of a gradient both forms: the library is used for both
// or for neither, and both take the larger scratchpad.
static inline MatmulEntry *matmul_find(Device *device, const MatmulShape *shape) {
    MatmulEntry *entry = matmul_lookup(device->matmul, shape), *other = NULL;
    if (entry) return entry;
    entry = matmul_add(device, shape);
    if (device->real == DEVICE_CUDA) return entry;  // one workspace for all
    if (shape->gradient) {
        MatmulShape form;
        memcpy(&form, shape, sizeof(form));
        form.add = !form.add;
        other = matmul_add(device, &form);
    }
    if (entry->tiled || (other && other->tiled)) {
        matmul_use_tiles(device, entry);
        if (other) matmul_use_tiles(device, other);
    }
    if (other) entry->scratchpad = other->scratchpad = size_max(entry->scratchpad, other->scratchpad);
    return entry;
}

// Makes every primitive that the planning pass found; nothing is created afterwards.
static inline void matmul_create(Device *device) {
    Matmul *matmul = device->matmul;
#ifdef __CUDACC__
    for (size_t i = 0; i < matmul->n_entries && device->real == DEVICE_CUDA; i++) {
        if (!matmul->entries[i].operation) matmul_create_cuda(device, &matmul->entries[i]);
    }
#endif
    if (device->real != DEVICE_CPU) return;
#if USE_ONEDNN
    for (size_t i = 0; i < matmul->n_entries; i++) {
        MatmulEntry *entry = &matmul->entries[i];
        if (entry->tiled || entry->primitive) continue;
        matmul_check(dnnl_primitive_create(&entry->primitive, entry->description), "creating a primitive");
        entry->a = matmul_onednn_memory(matmul, entry, dnnl_query_src_md, 0);
        entry->b = matmul_onednn_memory(matmul, entry, dnnl_query_weights_md, 0);
        entry->bias = matmul_onednn_memory(matmul, entry, dnnl_query_weights_md, 1);
        entry->c = matmul_onednn_memory(matmul, entry, dnnl_query_dst_md, 0);
        entry->scratch = matmul_onednn_memory(matmul, entry, dnnl_query_scratchpad_md, 0);
    }
#else
    (void)matmul;
#endif
}

static inline void matmul_run(Device *device, Memory *memory, MatmulShape *shape, void *c, const void *a,
                              const void *b, const void *bias) {
#ifdef __CUDACC__
    if (device->real == DEVICE_CUDA) shape->alignment = matmul_alignment(c, a, b, bias);
#endif
    MatmulEntry *entry = matmul_find(device, shape);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    void *scratchpad = memory_push(memory, TIER_DEVICE, KIND_WORKSPACE, entry->scratchpad, "matmul scratchpad");
    double size = (double)number_size(shape->a_type);
    switch (device->kind) {
    case DEVICE_PLAN:
        device_plan(device, 2.0 * (double)shape->M * (double)shape->N * (double)shape->K,
                    size * ((double)(shape->M * shape->K) + (double)(shape->K * shape->N)) +
                        (double)number_size(shape->c_type) * (double)(shape->M * shape->N) * (shape->add ? 2 : 1));
        break;
    case DEVICE_CPU:
        if (entry->tiled) matmul_tiled_cpu(shape, c, a, b, bias, (float *)scratchpad, device->threads);
#if USE_ONEDNN
        else matmul_onednn_cpu(device->matmul, entry, c, a, b, bias, scratchpad);
#endif
        break;
    case DEVICE_CUDA: CUDA_ONLY(matmul_cuda(device, entry, c, a, b, bias, scratchpad)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

static inline MatmulShape matmul_shape(Number type, Number c_type, size_t M, size_t N, size_t K) {
    MatmulShape shape;
    memset(&shape, 0, sizeof(shape));  // shapes are compared as bytes
    shape.M = M;
    shape.N = N;
    shape.K = K;
    shape.a_type = shape.b_type = type;
    shape.c_type = c_type;
    return shape;
}

// ---------------------------------------------------------------------------------------------------------------
// What the model calls

// out (rows, OC) = in (rows, IC) . weight (OC, IC)^T + bias (OC, or NULL)
static inline void matmul_forward(Device *device, Memory *memory, Number type, void *out, const void *in,
                                  const void *weight, const void *bias, size_t rows, size_t IC, size_t OC) {
    MatmulShape shape = matmul_shape(type, type, rows, OC, IC);
    shape.b_transposed = true;
    shape.bias = bias != NULL;
    matmul_run(device, memory, &shape, out, in, weight, bias);
}

// din (rows, IC) = dout (rows, OC) . weight (OC, IC)
static inline void matmul_backward_input(Device *device, Memory *memory, Number type, void *din, const void *dout,
                                         const void *weight, size_t rows, size_t IC, size_t OC) {
    MatmulShape shape = matmul_shape(type, type, rows, IC, OC);
    matmul_run(device, memory, &shape, din, dout, weight, NULL);
}

// dweight (OC, IC) fp32 (+)= dout (rows, OC)^T . in (rows, IC); replaces unless `add`
static inline void matmul_backward_weight(Device *device, Memory *memory, Number type, float *dweight,
                                          const void *dout, const void *in, size_t rows, size_t IC, size_t OC,
                                          bool add) {
    MatmulShape shape = matmul_shape(type, FP32, OC, IC, rows);
    shape.a_transposed = true;
    shape.gradient = true;
    shape.add = add;
    matmul_run(device, memory, &shape, dweight, dout, in, NULL);
}

// Rows are summed in BIAS_SLOTS fixed groups, so the order does not depend on the number of threads.
enum { BIAS_SLOTS = 32 };

static inline size_t matmul_bias_slots(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_slots(rows, 8 * VECTOR_WARPS) : (size_t)BIAS_SLOTS;
}

static inline void matmul_backward_bias_cpu(Number type, float *dbias, const void *dout, size_t rows, size_t OC,
                                            bool add, float *sums) {
    size_t per_slot = ceil_div(rows, BIAS_SLOTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int slot = 0; slot < BIAS_SLOTS; slot++) {
            float *sum = sums + (size_t)slot * OC, block[NUMBER_BLOCK];
            memset(sum, 0, OC * sizeof(float));
            for (size_t r = (size_t)slot * per_slot; r < size_min(rows, ((size_t)slot + 1) * per_slot); r++) {
                for (size_t c = 0, n; c < OC; c += n) {
                    n = size_min(OC - c, NUMBER_BLOCK);
                    const float *x = number_load(type, dout, r * OC + c, n, block);
                    for (size_t i = 0; i < n; i++) sum[c + i] += x[i];
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)OC; c++) {
            float sum = 0.0f;
            for (size_t slot = 0; slot < BIAS_SLOTS; slot++) sum += sums[slot * OC + (size_t)c];
            dbias[c] = add ? dbias[c] + sum : sum;
        }
    }
}

#ifdef __CUDACC__
// Sums over a slot's rows: blocks in y are slots, lanes have N columns each.
template <Number TYPE, int N>
__global__ static void matmul_bias_kernel(float *sums, const void *dout, size_t rows, size_t OC) {
    __shared__ float shared[VECTOR_WARPS * WARP * N];
    const size_t c0 = (size_t)blockIdx.x * WARP * N, c = c0 + threadIdx.x % WARP * N;
    const size_t per_slot = ceil_div(rows, gridDim.y), first = blockIdx.y * per_slot;
    const size_t last = size_min(rows, first + per_slot);
    float own[N] = {};
#pragma unroll 4
    for (size_t r = first + threadIdx.x / WARP; r < last && c < OC; r += VECTOR_WARPS) {
        Vector<TYPE, N> x;
        x.load(dout, r * OC + c);
#pragma unroll
        for (int i = 0; i < N; i++) own[i] += x.x[i];
    }
    columns_store<N>(sums + blockIdx.y * OC + c0, OC - c0, own, shared);
}

static inline void matmul_backward_bias_cuda(Device *device, Number type, float *dbias, const void *dout, size_t rows,
                                             size_t OC, bool add, float *sums) {
    const size_t slots = matmul_bias_slots(device, rows);
    const bool wide = vector_is_wide(OC * number_size(type), dout, NULL, NULL, NULL);
    auto run = VECTOR_SELECT(type, wide, matmul_bias_kernel);
    const size_t across = ceil_div(OC, WARP * (wide ? vector_wide(type) : 1));
    CUDA_RUN_GRID(device, run, cuda_grid(across, slots), CUDA_THREADS, 0, sums, dout, rows, OC);
    columns_total(device, dbias, NULL, OC, sums, slots, OC, add);
}
#endif

// dbias (OC) fp32 (+)= column sums of dout (rows, OC)
static inline void matmul_backward_bias(Device *device, Memory *memory, Number type, float *dbias, const void *dout,
                                        size_t rows, size_t OC, bool add) {
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       matmul_bias_slots(device, rows) * OC * sizeof(float), "bias gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, (double)(rows * OC), (double)(rows * OC * number_size(type))); break;
    case DEVICE_CPU: matmul_backward_bias_cpu(type, dbias, dout, rows, OC, add, sums); break;
    case DEVICE_CUDA: CUDA_ONLY(matmul_backward_bias_cuda(device, type, dbias, dout, rows, OC, add, sums)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
