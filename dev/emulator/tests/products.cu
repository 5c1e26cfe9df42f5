// products.cu - the cuBLASLt stand-in against naive products: types, transpositions, batches, epilogues, splits.
//
// Invariant: the expected value is worked out in double from the rounded inputs; the bound is the output's unit
// roundoff and what fp32 sums of so many terms may err.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "emulator.h"
#include "plants.h"

#define CHECK(call)                                                      \
    do {                                                                 \
        if ((call) != 0) fprintf(stderr, "%s failed\n", #call), exit(3); \
    } while (0)

typedef std::vector<double> Numbers;

static double unit(cudaDataType type) { return type == CUDA_R_32F ? 0x1p-24 : type == CUDA_R_16BF ? 0x1p-8 : 0x1p-11; }
static size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static void put(cudaDataType type, void *base, size_t i, double x) {
    if (type == CUDA_R_32F) ((float *)base)[i] = (float)x;
    if (type == CUDA_R_16BF) ((__nv_bfloat16 *)base)[i] = __float2bfloat16_rn((float)x);
    if (type == CUDA_R_16F) ((__half *)base)[i] = __float2half_rn((float)x);
}
static double get(cudaDataType type, const void *base, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)base)[i];
    if (type == CUDA_R_16BF) return __bfloat162float(((const __nv_bfloat16 *)base)[i]);
    return __half2float(((const __half *)base)[i]);
}

static uint32_t state = 1;
static double number() {
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) / (1 << 23) - 1;
}

// n numbers on the device, and as they are rounded.
static void *numbers(cudaDataType type, size_t n, Numbers *rounded) {
    std::vector<char> host(n * size_of(type));
    void *device;
    for (size_t i = 0; i < n; i++) put(type, host.data(), i, number());
    rounded->resize(n);
    for (size_t i = 0; i < n; i++) (*rounded)[i] = get(type, host.data(), i);
    CHECK(cudaMalloc(&device, host.size()));
    CHECK(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
    return device;
}

static Numbers fetch(cudaDataType type, const void *device, size_t n) {
    std::vector<char> host(n * size_of(type));
    CHECK(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost));
    Numbers values(n);
    for (size_t i = 0; i < n; i++) values[i] = get(type, host.data(), i);
    return values;
}

static double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

typedef struct Case {
    cudaDataType in, out;
    bool ta, tb;
    int m, n, k, batches;
    float beta;
    cublasLtEpilogue_t epilogue;
    uint32_t schemes;  // of reductions that are allowed
} Case;

static void expect_near(const char *what, const Case *c, double got, double want, double bound) {
    if (std::fabs(got - want) <= bound) return;
    fprintf(stderr, "%s of %dx%dx%d, types %d %d, epilogue %d: %.9g, not %.9g (bound %g)\n", what, c->m, c->n, c->k,
            (int)c->in, (int)c->out, (int)c->epilogue, got, want, bound);
    exit(2);
}

template <class T>
static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, T value) {
    CHECK(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)));
}

static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int columns, int ld, int batches, int64_t stride) {
    cublasLtMatrixLayout_t l;
    CHECK(cublasLtMatrixLayoutCreate(&l, type, rows, columns, ld));
    CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof(batches)));
    CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
    return l;
}

static void run(const Case c) {
    int ra = c.ta ? c.k : c.m, ca = c.ta ? c.m : c.k, rb = c.tb ? c.n : c.k, cb = c.tb ? c.k : c.n;
    int lda = ra + 3, ldb = rb + 5, ldd = c.m + 2, ldx = (c.m + 7) / 8 * 8;
    size_t sa = (size_t)lda * ca, sb = (size_t)ldb * cb, sd = (size_t)ldd * c.n, sx = (size_t)ldx * c.n;
    Numbers a, b, d, bias, aux;
    void *pa = numbers(c.in, sa * c.batches, &a), *pb = numbers(c.in, sb * c.batches, &b);
    void *pd = numbers(c.out, sd * c.batches, &d), *pbias = numbers(c.out, c.m > c.n ? c.m : c.n, &bias);
    void *paux = numbers(c.out, sx * c.batches, &aux), *workspace;
    CHECK(cudaMalloc(&workspace, 1 << 20));
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtCreate(&handle));
    CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, c.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, c.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, pbias);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, paux);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)ldx);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, (int64_t)sx);
    cublasLtMatrixLayout_t la = layout(c.in, ra, ca, lda, c.batches, (int64_t)sa),
                           lb = layout(c.in, rb, cb, ldb, c.batches, (int64_t)sb);
    cublasLtMatrixLayout_t ld = layout(c.out, c.m, c.n, ldd, c.batches, (int64_t)sd);
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    uint64_t most = 1 << 20;
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                               sizeof(most)));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &c.schemes, 4));
    cublasLtMatmulHeuristicResult_t found[4];
    int n_found;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference, 4, found, &n_found));
    CHECK(n_found < 1);
    float alpha = 0.5f;
    CHECK(cublasLtMatmul(handle, desc, &alpha, pa, la, pb, lb, &c.beta, pd, ld, pd, ld, &found[0].algo, workspace,
                         found[0].workspaceSize, 0));
    Numbers got = fetch(c.out, pd, d.size()), got_aux = fetch(c.out, paux, aux.size()),
            got_bias = fetch(c.out, pbias, bias.size());
    uint32_t splits, scheme;
    size_t written;
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&found[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, 4, &written));
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&found[0].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, 4,
                                               &written));
    double rounding = splits > 1 && scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? 8 : 1;
    Numbers gradient(bias.size());
    for (int batch = 0; batch < c.batches; batch++) {
        for (int j = 0; j < c.n; j++) {
            for (int i = 0; i < c.m; i++) {
                double sum = 0, size = 0;
                for (int k = 0; k < c.k; k++) {
                    double x = a[batch * sa + (c.ta ? k + (size_t)i * lda : i + (size_t)k * lda)];
                    double y = b[batch * sb + (c.tb ? j + (size_t)k * ldb : k + (size_t)j * ldb)];
                    sum += x * y, size += std::fabs(x * y);
                }
                size_t at = batch * sd + i + (size_t)j * ldd, at_aux = batch * sx + i + (size_t)j * ldx;
                double v = 0.5 * sum + (c.beta != 0 ? c.beta * d[at] : 0), bound = size * 0x1p-20;
                if (c.epilogue & CUBLASLT_EPILOGUE_BIAS) v += bias[i];
                bool writes_aux =
                    c.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || c.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
                if (writes_aux) expect_near("aux", &c, got_aux[at_aux], v, bound + unit(c.out) * std::fabs(v));
                if (c.epilogue & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
                if (c.epilogue == CUBLASLT_EPILOGUE_DGELU || c.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
                    v *= gelu_slope(aux[at_aux]);
                }
                if (c.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) gradient[i] += v;
                bound = (bound + 1e-8) * rounding + rounding * unit(c.out) * (std::fabs(v) + (rounding > 1 ? size : 0));
                expect_near("product", &c, got[at], v, bound);
            }
        }
    }
    for (int i = 0; i < c.m && c.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; i++) {
        expect_near("bias gradient", &c, got_bias[i], gradient[i], 1e-3 + unit(c.out) * std::fabs(gradient[i]));
    }
    for (int j = 0; j < c.n && c.epilogue == CUBLASLT_EPILOGUE_BGRADB; j++) {
        double sum = 0;
        for (int k = 0; k < c.k; k++) sum += b[c.tb ? j + (size_t)k * ldb : k + (size_t)j * ldb];
        expect_near("bias gradient", &c, got_bias[j], sum, 1e-4 + unit(c.out) * std::fabs(sum));
    }
}

static void products() {
    const cudaDataType S = CUDA_R_32F, B = CUDA_R_16BF, H = CUDA_R_16F;
    const cublasLtEpilogue_t plain = CUBLASLT_EPILOGUE_DEFAULT;
    for (int t = 0; t < 4; t++) {
        run({B, B, (t & 1) != 0, (t & 2) != 0, 33, 17, 48, 1, 0, plain, 0});
        run({B, S, (t & 1) != 0, (t & 2) != 0, 67, 5, 31, 1, 1, plain, 0});
        run({S, S, (t & 1) != 0, (t & 2) != 0, 16, 40, 20, 3, 0, plain, 0});
        run({H, H, (t & 1) != 0, (t & 2) != 0, 24, 8, 9, 2, 1, plain, 0});
    }
    run({H, S, true, false, 8, 8, 64, 1, 0, plain, 0});
    run({B, B, true, false, 40, 24, 256, 1, 0, plain, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE});
    run({B, B, true, false, 40, 24, 256, 1, 0, plain, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (cublasLtEpilogue_t e : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
                                 CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                 CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB}) {
        run({B, B, true, false, 24, 17, 40, 1, 0, e, 0});
        run({S, S, false, false, 24, 17, 40, 1, 0, e, 0});
    }
}

const Family PRODUCTS = {"family_products", products};
