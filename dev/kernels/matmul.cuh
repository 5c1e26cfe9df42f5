// matmul.cuh - products of matrices on CUDA: cuBLASLt, with sums in fp32 and one explicit workspace.
//
// The library stores matrices by columns, so it is asked for the transpose, C^T (N,M) = B^T (N,K) . A^T (K,M): its
// first matrix is our B, its second our A, and a matrix that we store by rows of its own columns needs no transposing.
// Where it has no algorithm for a shape, a kernel with a thread per element makes the product, one chain of fused
// multiply-adds in the order of k.
#ifndef MATMUL_CUH
#define MATMUL_CUH

#include "../device.h"
#include "matmul_shape.h"

// What the library keeps for one product.
typedef struct {
    cublasLtMatmulDesc_t operation;  // NULL until matmul_create()
    cublasLtMatrixLayout_t a_layout, b_layout, c_layout;
    cublasLtMatmulAlgo_t algorithm;
    int choice;       // rank of the algorithm in the library's list: 0, or --tune's
    bool own_kernel;  // the library has none for this shape
} MatmulCuda;

static inline cudaDataType_t matmul_cuda_type(Dtype dtype) {
    return dtype == FP32 ? CUDA_R_32F : dtype == BF16 ? CUDA_R_16BF : CUDA_R_16F;
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
            float x = number_get(s.a_dtype, a, s.a_transposed ? k * s.M + m : m * s.K + k);
            sum = fmaf(x, number_get(s.b_dtype, b, s.b_transposed ? n * s.K + k : k * s.N + n), sum);
        }
        if (s.bias) sum += number_get(s.a_dtype, bias, n);
        number_put(s.c_dtype, c, i, s.add ? number_get(s.c_dtype, c, i) + sum : sum);
    }
}

enum { MATMUL_CANDIDATES = 8 };  // that --tune chooses from

// The algorithm of rank kept->choice among those of the library's that fit the workspace and add partial sums, if
// they cut K, in fp32 and in a fixed order: a function of shape, device and library, so that runs repeat bit for bit.
// Returns how many there are, at most MATMUL_CANDIDATES.
static inline int matmul_cuda_choose(Device *device, const MatmulShape *s, MatmulCuda *kept) {
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
        cublasLtMatmulAlgoGetHeuristic(device->cuda->blas, kept->operation, kept->a_layout, kept->b_layout,
                                       kept->c_layout, kept->c_layout, preference, MATMUL_CANDIDATES, results,
                                       &found);
    kept->own_kernel = status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0);
    if (!kept->own_kernel) {
        BLAS_CHECK(status);
        if (kept->choice >= found) kept->choice = 0;
        kept->algorithm = results[kept->choice].algo;
    }
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return found;
}

static inline void matmul_cuda_create(Device *device, const MatmulShape *s, MatmulCuda *kept) {
    cublasOperation_t a_operation = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b_operation = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_CHECK(cublasLtMatmulDescCreate(&kept->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    MATMUL_SET(MatmulDesc, kept->operation, CUBLASLT_MATMUL_DESC_TRANSA, a_operation);
    MATMUL_SET(MatmulDesc, kept->operation, CUBLASLT_MATMUL_DESC_TRANSB, b_operation);
    if (s->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t dtype = matmul_cuda_type(s->a_dtype);
        MATMUL_SET(MatmulDesc, kept->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        MATMUL_SET(MatmulDesc, kept->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, dtype);
    }
    const uint64_t b_rows = s->b_transposed ? s->K : s->N, b_columns = s->b_transposed ? s->N : s->K;
    const uint64_t a_rows = s->a_transposed ? s->M : s->K, a_columns = s->a_transposed ? s->K : s->M;
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&kept->a_layout, matmul_cuda_type(s->b_dtype), b_rows, b_columns,
                                          (int64_t)b_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&kept->b_layout, matmul_cuda_type(s->a_dtype), a_rows, a_columns,
                                          (int64_t)a_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&kept->c_layout, matmul_cuda_type(s->c_dtype), s->N, s->M, (int64_t)s->N));
    matmul_cuda_choose(device, s, kept);
}

static inline void matmul_cuda_destroy(MatmulCuda *kept) {
    if (!kept->operation) return;
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(kept->a_layout));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(kept->b_layout));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(kept->c_layout));
    BLAS_CHECK(cublasLtMatmulDescDestroy(kept->operation));
}

static inline void matmul_cuda(Device *device, const MatmulShape *s, const MatmulCuda *kept, void *c, const void *a,
                               const void *b, const void *bias, void *workspace) {
    const float one = 1.0f, beta = s->add ? 1.0f : 0.0f;
    workspace = (void *)size_round_up((uintptr_t)workspace, MATMUL_WORKSPACE_ALIGN);
    if (!kept->operation) die("a product of matrices was not planned; this is a bug, please report the command line");
    if (kept->own_kernel) {
        CUDA_RUN(device, matmul_plain_kernel, cuda_blocks(s->M * s->N), CUDA_THREADS, 0, *s, c, a, b, bias);
        return;
    }
    if (s->bias) MATMUL_SET(MatmulDesc, kept->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    BLAS_CHECK(cublasLtMatmul(device->cuda->blas, kept->operation, &one, b, kept->a_layout, a, kept->b_layout, &beta, c,
                              kept->c_layout, c, kept->c_layout, &kept->algorithm, workspace,
                              matmul_workspace(device->compute_capability), device->cuda->queues[QUEUE_COMPUTE]));
}

// Bytes, at most 16, that a product's addresses are all multiples of.
static inline int matmul_cuda_alignment(const void *c, const void *a, const void *b, const void *bias) {
    uintptr_t bits = (uintptr_t)c | (uintptr_t)a | (uintptr_t)b | (uintptr_t)bias;
    int alignment = 16;
    while (bits % (uintptr_t)alignment != 0) alignment /= 2;
    return alignment;
}

#endif
