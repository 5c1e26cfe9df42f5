// cublaslt.c - the matrix product of the cuBLASLt stand-in: D = epilogue(alpha op(A) op(B) + beta C), column by column.
//
// The real library accepts what it can and is undefined beyond; this one holds the caller to everything that the
// documentation asks and that the heuristic was told: types, shapes, alignments, workspace, who overlaps whom.
//
// The heuristic offers what a careless program would take first: a split over K whose parts are added in the output
// type, if the preference allows it. Products are fp32 with one fused multiply-add per term, in the order of K.
//
// Invariant: the result is a function of the arguments only.
#include "cublaslt.h"
#include "numbers.h"

// Everything a product needs, copied at the call.
typedef struct Matmul {
    MatmulDesc desc;
    MatrixLayout layout[4];  // A B C D
    void *pointer[4];
    float alpha, beta;
    Algorithm algorithm;
    void *workspace;
} Matmul;

static const char *const MATRIX_NAMES[4] = {"A", "B", "C", "D"};

static size_t element_bytes(uint32_t type) { return type == CUDA_R_32F ? 4 : 2; }

static bool has_bias(uint32_t epilogue) { return epilogue & CUBLASLT_EPILOGUE_BIAS; }
static bool has_bias_gradient(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
static bool has_aux(uint32_t epilogue) { return epilogue & 128; }
static bool reads_aux(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

// ---------------------------------------------------------------------------------------------------------------
// Is the problem one that the library documents?

static void check_layout(const MatrixLayout *layout, const char *name, const char *call) {
    bool is_known = layout->type == CUDA_R_32F || layout->type == CUDA_R_16BF || layout->type == CUDA_R_16F;
    if (!is_known) fail("%s: %s has type %u, which is not emulated", call, name, layout->type);
    if (layout->order != CUBLASLT_ORDER_COL) fail("%s: %s is not in column order, which is not emulated", call, name);
    if (layout->rows == 0 || layout->columns == 0 || layout->batches < 1) {
        fail("invalid argument: %s: %s is %llu x %llu, %d batches", call, name, (unsigned long long)layout->rows,
             (unsigned long long)layout->columns, layout->batches);
    }
    if (layout->ld < (int64_t)layout->rows) {
        fail("invalid argument: %s: %s has leading dimension %lld for %llu rows", call, name, (long long)layout->ld,
             (unsigned long long)layout->rows);
    }
}

static void check_shapes(const MatmulDesc *d, const MatrixLayout *l, const char *call) {
    uint64_t m = d->trans_a ? l[0].columns : l[0].rows, k = d->trans_a ? l[0].rows : l[0].columns;
    uint64_t kb = d->trans_b ? l[1].columns : l[1].rows, n = d->trans_b ? l[1].rows : l[1].columns;
    if (k != kb || l[2].rows != m || l[2].columns != n || l[3].rows != m || l[3].columns != n) {
        fail("invalid argument: %s: shapes: op(A) %llu x %llu, op(B) %llu x %llu, C %llu x %llu, D %llu x %llu", call,
             (unsigned long long)m, (unsigned long long)k, (unsigned long long)kb, (unsigned long long)n,
             (unsigned long long)l[2].rows, (unsigned long long)l[2].columns, (unsigned long long)l[3].rows,
             (unsigned long long)l[3].columns);
    }
    for (int i = 0; i < 4; i++) {
        if (l[i].batches != l[0].batches) {
            fail("invalid argument: %s: batch counts of A and %s differ", call, MATRIX_NAMES[i]);
        }
    }
    int64_t extent = l[3].ld * ((int64_t)l[3].columns - 1) + (int64_t)l[3].rows;
    bool is_apart = l[3].stride >= extent || -l[3].stride >= extent;
    if (l[3].batches > 1 && !is_apart) fail("invalid argument: %s: batches of D overlap", call);
}

static void check_types(const MatmulDesc *d, const MatrixLayout *l, const char *call) {
    bool is_tf32 = d->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && l[0].type == CUDA_R_32F;
    if (d->compute != CUBLAS_COMPUTE_32F && d->compute != CUBLAS_COMPUTE_32F_PEDANTIC && !is_tf32) {
        fail("%s: compute type %d is not emulated (CUBLAS_COMPUTE_32F is)", call, d->compute);
    }
    if (d->scale != CUDA_R_32F) {
        fail("invalid argument: %s: scale type %d, compute type 32F needs CUDA_R_32F", call, d->scale);
    }
    bool is_output = l[3].type == CUDA_R_32F || l[3].type == l[0].type;
    if (l[0].type != l[1].type || l[2].type != l[3].type || !is_output) {
        fail("invalid argument: %s: types A %u, B %u, C %u, D %u don't go together", call, l[0].type, l[1].type,
             l[2].type, l[3].type);
    }
}

static void check_epilogue(const MatmulDesc *d, const MatrixLayout *l, const char *call) {
    switch (d->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: break;
    default: fail("%s: epilogue %u is not emulated", call, d->epilogue);
    }
    bool uses_bias = has_bias(d->epilogue) || has_bias_gradient(d->epilogue);
    if (uses_bias && d->bias_type != -1 && d->bias_type != (int32_t)l[3].type) {
        fail("invalid argument: %s: bias of type %d for D of type %u", call, d->bias_type, l[3].type);
    }
    if (!has_aux(d->epilogue)) return;
    if (d->aux_type != -1 && d->aux_type != (int32_t)l[3].type) {
        fail("invalid argument: %s: epilogue aux of type %d for D of type %u", call, d->aux_type, l[3].type);
    }
    if (d->aux_ld < (int64_t)l[3].rows || d->aux_ld % 8 != 0) {
        fail("invalid argument: %s: epilogue aux has leading dimension %lld for %llu rows; a multiple of 8 it must be",
             call, (long long)d->aux_ld, (unsigned long long)l[3].rows);
    }
}

static void check_problem(const MatmulDesc *d, const MatrixLayout *layouts, const char *call) {
    for (int i = 0; i < 4; i++) check_layout(&layouts[i], MATRIX_NAMES[i], call);
    bool is_plain = d->trans_a <= CUBLAS_OP_T && d->trans_b <= CUBLAS_OP_T && d->trans_c == CUBLAS_OP_N;
    if (!is_plain) fail("%s: transposition %d, %d, %d is not emulated", call, d->trans_a, d->trans_b, d->trans_c);
    if (d->pointer_mode != CUBLASLT_POINTER_MODE_HOST) {
        fail("%s: pointer mode %d is not emulated", call, d->pointer_mode);
    }
    if (d->fast_accumulation) fail("%s: fast accumulation is for fp8", call);
    check_shapes(d, layouts, call);
    check_types(d, layouts, call);
    check_epilogue(d, layouts, call);
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
    return hash;
}

// All that an algorithm may depend on: not the pointers.
static uint64_t problem_hash(const MatmulDesc *d, const MatrixLayout *layouts) {
    MatmulDesc desc = *d;
    desc.bias = desc.aux = NULL;
    uint64_t hash = 0xcbf29ce484222325ull;
    int32_t words[] = {desc.compute,           desc.scale,     desc.trans_a, desc.trans_b,
                       (int32_t)desc.epilogue, desc.bias_type, desc.aux_type};
    hash = hash_bytes(hash, words, sizeof(words));
    hash = hash_bytes(hash, &desc.aux_ld, sizeof(desc.aux_ld));
    for (int i = 0; i < 4; i++) {
        const MatrixLayout *l = &layouts[i];
        int64_t numbers[] = {l->type, l->batches, (int64_t)l->rows, (int64_t)l->columns, l->ld, l->stride};
        hash = hash_bytes(hash, numbers, sizeof(numbers));
    }
    return hash;
}

// ---------------------------------------------------------------------------------------------------------------
// The heuristic

static void read_problem(MatmulDesc *desc, MatrixLayout *layouts, cublasLtMatmulDesc_t d, const void *a, const void *b,
                         const void *c, const void *result, const char *call) {
    const void *handles[4] = {a, b, c, result};
    *desc = *(MatmulDesc *)object_checked(d, OBJECT_DESC, call);
    for (int i = 0; i < 4; i++) layouts[i] = *(MatrixLayout *)object_checked(handles[i], OBJECT_LAYOUT, call);
}

static uint64_t split_workspace(const MatrixLayout *d, uint32_t splits, uint32_t scheme) {
    if (splits <= 1) return 0;
    uint64_t elements = d->rows * d->columns * (uint64_t)d->batches;
    if (scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE) return 4096;
    size_t part = scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? 4 : element_bytes(d->type);
    return round_up(elements * splits * part, 256);
}

static uint8_t log2_of(uint32_t x, const char *call) {
    if (x == 0 || (x & (x - 1)) != 0) fail("invalid argument: %s: alignment of %u bytes", call, x);
    return (uint8_t)__builtin_ctz(x);
}

// 10 parameters: the library's.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t result, cublasLtMatmulPreference_t preference,
                                              int n_wanted, cublasLtMatmulHeuristicResult_t results[], int *n_found) {
    API_ENTER;
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    static const uint32_t SCHEMES[] = {CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE,
                                       CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE};
    MatmulDesc desc;
    MatrixLayout layouts[4];
    object_checked(handle, OBJECT_HANDLE, call);
    read_problem(&desc, layouts, d, a, b, c, result, call);
    check_problem(&desc, layouts, call);
    const MatmulPreference *p = object_checked(preference, OBJECT_PREFERENCE, call);
    if (n_wanted < 1) fail("invalid argument: %s: %d results wanted", call, n_wanted);
    uint64_t k = desc.trans_a ? layouts[0].rows : layouts[0].columns;
    *n_found = 0;
    for (uint32_t s = 0; s < 4 && *n_found < n_wanted; s++) {
        bool is_split = SCHEMES[s] != CUBLASLT_REDUCTION_SCHEME_NONE;
        if (is_split && (!(p->reduction_mask & SCHEMES[s]) || k < 64 || desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT)) {
            continue;
        }
        Algorithm algorithm = {.magic = ALGORITHM_MAGIC,
                               .id = 20 + s,
                               .splits = is_split ? 4 : 1,
                               .scheme = SCHEMES[s],
                               .tile = 18,
                               .stages = 8,
                               .problem = problem_hash(&desc, layouts)};
        algorithm.workspace = split_workspace(&layouts[3], algorithm.splits, algorithm.scheme);
        if (algorithm.workspace > p->workspace) continue;
        for (int i = 0; i < 4; i++) algorithm.alignment[i] = log2_of(p->alignment[i], call);
        cublasLtMatmulHeuristicResult_t *r = &results[(*n_found)++];
        memset(r, 0, sizeof(*r));
        memcpy(&r->algo, &algorithm, sizeof(algorithm));
        r->workspaceSize = algorithm.workspace;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t result, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r) {
    API_ENTER;
    const char *call = "cublasLtMatmulAlgoCheck";
    MatmulDesc desc;
    MatrixLayout layouts[4];
    Algorithm algorithm;
    object_checked(handle, OBJECT_HANDLE, call);
    read_problem(&desc, layouts, d, a, b, c, result, call);
    check_problem(&desc, layouts, call);
    memcpy(&algorithm, algo, sizeof(algorithm));
    memset(r, 0, sizeof(*r));
    bool is_good = algorithm.magic == ALGORITHM_MAGIC && algorithm.problem == problem_hash(&desc, layouts);
    r->state = is_good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    r->algo = *algo;
    r->workspaceSize = is_good ? split_workspace(&layouts[3], algorithm.splits, algorithm.scheme) : 0;
    r->wavesCount = 1;
    return r->state;
}

// ---------------------------------------------------------------------------------------------------------------
// The product

static float element_get(const void *base, uint32_t type, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)base)[i];
    uint16_t bits = ((const uint16_t *)base)[i];
    return type == CUDA_R_16BF ? bf16_float(bits) : f16_float(bits);
}

static float rounded_to(uint32_t type, float x) {
    return type == CUDA_R_32F ? x : type == CUDA_R_16BF ? bf16_float(float_bf16(x)) : f16_float(float_f16(x));
}

static void element_set(void *base, uint32_t type, size_t i, float x) {
    if (type == CUDA_R_32F) ((float *)base)[i] = x;
    if (type == CUDA_R_16BF) ((uint16_t *)base)[i] = float_bf16(x);
    if (type == CUDA_R_16F) ((uint16_t *)base)[i] = float_f16(x);
}

static float tf32_of(float x) { return bits_float((float_bits(x) + 0x1000u) & 0xffffe000u); }

// op(matrix) of one batch as fp32: `major` rows (of A: k, each m long; of B: n, each k long).
static void unpack(float *to, const MatrixLayout *l, const char *data, bool trans, size_t n_major, size_t n_minor,
                   bool tf32) {
    for (size_t j = 0; j < n_major; j++) {
        for (size_t i = 0; i < n_minor; i++) {
            float x = element_get(data, l->type, trans ? j + i * (size_t)l->ld : i + j * (size_t)l->ld);
            to[j * n_minor + i] = tf32 ? tf32_of(x) : x;
        }
    }
}

static double gelu_inner(double x) { return 0.7978845608028654 * (x + 0.044715 * x * x * x); }
static float gelu(float x) { return (float)(0.5 * x * (1 + tanh(gelu_inner(x)))); }
static float gelu_slope(float x) {
    double t = tanh(gelu_inner(x));
    return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * (double)x * x));
}

// One value of D before it is rounded; `at` is its place in aux.
static float epilogue_apply(const MatmulDesc *d, uint32_t type, float v, size_t row, size_t element) {
    const char *bias = d->bias ? memory_data(d->bias) : NULL;
    char *aux = d->aux ? memory_data(d->aux) : NULL;
    if (has_bias(d->epilogue)) v += element_get(bias, type, row);
    if (has_aux(d->epilogue) && !reads_aux(d->epilogue)) element_set(aux, type, element, v);
    if (d->epilogue & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
    if (reads_aux(d->epilogue)) v *= gelu_slope(element_get(aux, type, element));
    return v;
}

// acc[m] += sum over k of a[k][m] b[k], parts of K separately where the algorithm splits it.
static void column_product(float *acc, float *part, const float *a, const float *b, size_t m, size_t k,
                           const Matmul *x) {
    uint32_t splits = x->algorithm.splits;
    for (size_t i = 0; i < m; i++) acc[i] = 0;
    for (uint32_t s = 0; s < splits; s++) {
        for (size_t i = 0; i < m; i++) part[i] = 0;
        for (size_t q = k * s / splits; q < k * (s + 1) / splits; q++) {
            for (size_t i = 0; i < m; i++) part[i] = __builtin_fmaf(a[q * m + i], b[q], part[i]);
        }
        bool is_short = splits > 1 && x->algorithm.scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        for (size_t i = 0; i < m; i++) {
            acc[i] += is_short ? rounded_to(x->layout[3].type, part[i]) : part[i];
            if (is_short) acc[i] = rounded_to(x->layout[3].type, acc[i]);
        }
    }
}

static void batch_product(const Matmul *x, int batch, float *scratch, float *bias_gradient) {
    const MatmulDesc *d = &x->desc;
    const MatrixLayout *l = x->layout;
    size_t m = l[3].rows, n = l[3].columns, k = d->trans_a ? l[0].rows : l[0].columns;
    char *data[4];
    for (int i = 0; i < 4; i++) {
        data[i] =
            x->pointer[i] ? memory_data(x->pointer[i]) + batch * l[i].stride * (int64_t)element_bytes(l[i].type) : NULL;
    }
    bool tf32 = d->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    float *a = scratch, *b = a + k * m, *acc = b + n * k, *part = acc + m;
    unpack(a, &l[0], data[0], d->trans_a, k, m, tf32);
    unpack(b, &l[1], data[1], d->trans_b, n, k, tf32);
    for (size_t j = 0; j < n; j++) {
        column_product(acc, part, a, b + j * k, m, k, x);
        for (size_t i = 0; i < m; i++) {
            float v = x->alpha * acc[i];
            if (x->beta != 0) v = __builtin_fmaf(x->beta, element_get(data[2], l[2].type, i + j * (size_t)l[2].ld), v);
            v = epilogue_apply(d, l[3].type, v, i, (size_t)(batch * d->aux_stride) + i + j * (size_t)d->aux_ld);
            if (d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) bias_gradient[i] += v;
            element_set(data[3], l[3].type, i + j * (size_t)l[3].ld, v);
        }
    }
    for (size_t q = 0; q < k; q++) {
        for (size_t i = 0; i < m && d->epilogue == CUBLASLT_EPILOGUE_BGRADA; i++) bias_gradient[i] += a[q * m + i];
        for (size_t j = 0; j < n && d->epilogue == CUBLASLT_EPILOGUE_BGRADB; j++) bias_gradient[j] += b[j * k + q];
    }
}

static size_t bias_elements(const Matmul *x) {
    return x->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? x->layout[3].columns : x->layout[3].rows;
}

// Columns of a matrix, without what lies between them.
static void touch_matrix(const Matmul *x, int which, AccessKind kind) {
    const MatrixLayout *l = &x->layout[which];
    char what[48];
    snprintf(what, sizeof(what), "cublasLtMatmul's %s", MATRIX_NAMES[which]);
    size_t size = element_bytes(l->type), column = l->rows * size;
    for (int batch = 0; batch < l->batches; batch++) {
        uint64_t base = (uint64_t)(uintptr_t)x->pointer[which] + (uint64_t)(batch * l->stride * (int64_t)size);
        if (l->ld == (int64_t)l->rows) {
            shadow_touch(base, column * l->columns, kind, what);
            continue;
        }
        for (size_t j = 0; j < l->columns; j++) shadow_touch(base + j * (size_t)l->ld * size, column, kind, what);
    }
}

static void touch_aux(const Matmul *x) {
    const MatmulDesc *d = &x->desc;
    size_t size = element_bytes(x->layout[3].type);
    for (int batch = 0; batch < x->layout[3].batches; batch++) {
        uint64_t base = (uint64_t)(uintptr_t)d->aux + (uint64_t)(batch * d->aux_stride) * size;
        for (size_t j = 0; j < x->layout[3].columns; j++) {
            shadow_touch(base + j * (size_t)d->aux_ld * size, x->layout[3].rows * size,
                         reads_aux(d->epilogue) ? ACCESS_READ : ACCESS_WRITE, "cublasLtMatmul's epilogue aux");
        }
    }
}

static float *scratch_floats(size_t n) {
    if (n > emulator.n_scratch) {
        free(emulator.scratch);
        emulator.scratch = checked_alloc(n * sizeof(float));
        emulator.n_scratch = n;
    }
    return emulator.scratch;
}

static void matmul_run(void *payload) {
    const Matmul *x = payload;
    const MatmulDesc *d = &x->desc;
    touch_matrix(x, 0, ACCESS_READ);
    touch_matrix(x, 1, ACCESS_READ);
    if (x->beta != 0) touch_matrix(x, 2, ACCESS_READ);
    size_t size = element_bytes(x->layout[3].type), n_bias = bias_elements(x);
    uint64_t bias = (uint64_t)(uintptr_t)d->bias, workspace = (uint64_t)(uintptr_t)x->workspace;
    if (has_bias(d->epilogue)) shadow_touch(bias, n_bias * size, ACCESS_READ, "cublasLtMatmul's bias");
    if (x->algorithm.workspace > 0) {
        shadow_touch(workspace, x->algorithm.workspace, ACCESS_WRITE, "cublasLtMatmul's workspace");
        shadow_set_state(&emulator.global, workspace, x->algorithm.workspace, FRESH);
        memset(memory_data(x->workspace), 0xff, x->algorithm.workspace);
    }
    if (has_aux(d->epilogue)) touch_aux(x);
    size_t m = x->layout[3].rows, n = x->layout[3].columns, k = d->trans_a ? x->layout[0].rows : x->layout[0].columns;
    float *scratch = scratch_floats(k * m + n * k + 2 * m + n_bias), *gradient = scratch + k * m + n * k + 2 * m;
    for (size_t i = 0; i < n_bias; i++) gradient[i] = 0;
    for (int batch = 0; batch < x->layout[3].batches; batch++) batch_product(x, batch, scratch, gradient);
    touch_matrix(x, 3, ACCESS_WRITE);
    if (!has_bias_gradient(d->epilogue)) return;
    shadow_touch(bias, n_bias * size, ACCESS_WRITE, "cublasLtMatmul's bias gradient");
    for (size_t i = 0; i < n_bias; i++) element_set(memory_data(d->bias), x->layout[3].type, i, gradient[i]);
}

// ---------------------------------------------------------------------------------------------------------------
// The call

typedef struct Extent {
    uint64_t begin, end;
} Extent;

static Extent matrix_extent(const MatrixLayout *l, const void *pointer) {
    int64_t size = (int64_t)element_bytes(l->type), batch = (l->batches - 1) * l->stride;
    int64_t one = l->ld * ((int64_t)l->columns - 1) + (int64_t)l->rows, low = batch < 0 ? batch : 0;
    uint64_t base = (uint64_t)(uintptr_t)pointer;
    return (Extent){base + (uint64_t)(low * size), base + (uint64_t)(((batch > 0 ? batch : 0) + one) * size)};
}

static bool is_overlapping(Extent a, Extent b) { return a.begin < b.end && b.begin < a.end; }

static void check_matrix(const Matmul *x, int which) {
    const char *call = "cublasLtMatmul", *name = MATRIX_NAMES[which];
    char what[48];
    snprintf(what, sizeof(what), "cublasLtMatmul's %s", name);
    Extent extent = matrix_extent(&x->layout[which], x->pointer[which]);
    memory_check((void *)(uintptr_t)extent.begin, extent.end - extent.begin, what);
    size_t alignment = (size_t)1 << x->algorithm.alignment[which];
    if ((uintptr_t)x->pointer[which] % alignment != 0) {
        fail("misaligned access: %s: %s = %p is not aligned to %zu bytes, as the heuristic was told", call, name,
             x->pointer[which], alignment);
    }
    if ((uintptr_t)x->pointer[which] % element_bytes(x->layout[which].type) != 0) {
        fail("misaligned access: %s: %s = %p", call, name, x->pointer[which]);
    }
}

static void check_overlaps(const Matmul *x) {
    Extent d = matrix_extent(&x->layout[3], x->pointer[3]);
    for (int i = 0; i < 2; i++) {
        if (!is_overlapping(d, matrix_extent(&x->layout[i], x->pointer[i]))) continue;
        fail("invalid argument: cublasLtMatmul: D overlaps %s", MATRIX_NAMES[i]);
    }
    if (x->beta == 0 || !is_overlapping(d, matrix_extent(&x->layout[2], x->pointer[2]))) return;
    bool is_same = x->pointer[2] == x->pointer[3] && x->layout[2].ld == x->layout[3].ld &&
                   (x->layout[2].batches == 1 || x->layout[2].stride == x->layout[3].stride);
    if (!is_same) fail("invalid argument: cublasLtMatmul: D overlaps C, and is not the same matrix");
}

static void check_epilogue_pointers(const Matmul *x) {
    const MatmulDesc *d = &x->desc;
    size_t size = element_bytes(x->layout[3].type);
    if (has_bias(d->epilogue) || has_bias_gradient(d->epilogue)) {
        if (!d->bias) fail("invalid argument: cublasLtMatmul: epilogue %u needs a bias pointer", d->epilogue);
        memory_check(d->bias, bias_elements(x) * size, "cublasLtMatmul's bias");
        if ((uintptr_t)d->bias % size != 0) fail("misaligned access: cublasLtMatmul: bias %p", d->bias);
    }
    if (!has_aux(d->epilogue)) return;
    if (!d->aux) fail("invalid argument: cublasLtMatmul: epilogue %u needs an aux pointer", d->epilogue);
    size_t extent = (size_t)d->aux_ld * (x->layout[3].columns - 1) + x->layout[3].rows;
    extent += (size_t)((x->layout[3].batches - 1) * d->aux_stride);
    memory_check(d->aux, extent * size, "cublasLtMatmul's epilogue aux");
    if ((uintptr_t)d->aux % 16 != 0) fail("misaligned access: cublasLtMatmul: epilogue aux %p", d->aux);
}

static void check_workspace(const Matmul *x, size_t n_bytes) {
    if (n_bytes < x->algorithm.workspace) {
        fail("invalid argument: cublasLtMatmul: a workspace of %zu bytes, the algorithm needs %llu", n_bytes,
             (unsigned long long)x->algorithm.workspace);
    }
    if (n_bytes == 0) return;
    memory_check(x->workspace, n_bytes, "cublasLtMatmul's workspace");
    if ((uintptr_t)x->workspace % 256 != 0) fail("misaligned access: cublasLtMatmul: workspace %p", x->workspace);
    Extent workspace = {(uint64_t)(uintptr_t)x->workspace, (uint64_t)(uintptr_t)x->workspace + n_bytes};
    for (int i = 0; i < 4; i++) {
        if (x->pointer[i] && is_overlapping(workspace, matrix_extent(&x->layout[i], x->pointer[i]))) {
            fail("invalid argument: cublasLtMatmul: the workspace overlaps %s", MATRIX_NAMES[i]);
        }
    }
}

static float scalar_of(const void *pointer, const char *name) {
    if (!pointer || memory_is_device(pointer)) {
        fail("invalid argument: cublasLtMatmul: %s must be in host memory", name);
    }
    return *(const float *)pointer;
}

// 16 parameters: the library's.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                              const void *beta, const void *c, cublasLtMatrixLayout_t layout_c, void *result,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t n_workspace, cudaStream_t stream) {
    API_ENTER;
    const char *call = "cublasLtMatmul";
    Matmul x = {.alpha = scalar_of(alpha, "alpha"), .beta = scalar_of(beta, "beta"), .workspace = workspace};
    const void *pointers[4] = {a, b, c, result};
    for (int i = 0; i < 4; i++) x.pointer[i] = (void *)(uintptr_t)pointers[i];
    object_checked(handle, OBJECT_HANDLE, call);
    read_problem(&x.desc, x.layout, d, layout_a, layout_b, layout_c, layout_d, call);
    check_problem(&x.desc, x.layout, call);
    if (!algo) fail("invalid argument: cublasLtMatmul: no algorithm; which one runs must be the program's choice");
    memcpy(&x.algorithm, algo, sizeof(x.algorithm));
    if (x.algorithm.magic != ALGORITHM_MAGIC) fail("invalid argument: %s: the algorithm comes from no heuristic", call);
    if (x.algorithm.problem != problem_hash(&x.desc, x.layout)) {
        fail("invalid argument: %s: the algorithm was found for another problem", call);
    }
    x.algorithm.workspace = split_workspace(&x.layout[3], x.algorithm.splits, x.algorithm.scheme);
    for (int i = 0; i < 4; i++) {
        if (i != 2 || x.beta != 0) check_matrix(&x, i);
    }
    check_overlaps(&x);
    check_epilogue_pointers(&x);
    check_workspace(&x, n_workspace);
    emulator.counts.matmuls++;
    char name[96];
    snprintf(name, sizeof(name), "cublasLtMatmul %llu x %llu x %llu", (unsigned long long)x.layout[3].rows,
             (unsigned long long)x.layout[3].columns,
             (unsigned long long)(x.desc.trans_a ? x.layout[0].rows : x.layout[0].columns));
    stream_push(stream, name, matmul_run, &x, sizeof(x));
    return CUBLAS_STATUS_SUCCESS;
}
