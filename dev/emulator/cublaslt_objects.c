// cublaslt_objects.c - handles, descriptors, layouts, preferences and algorithms of the cuBLASLt stand-in.
//
// Invariant: an attribute that is not understood, or has the wrong size or an unknown value, is a fault; none is
// ignored.
#include "cublaslt.h"

typedef struct Object {
    ObjectKind kind;
    bool is_live;
    max_align_t content[];
} Object;

static const char *const KIND_NAMES[] = {"handle", "matmul descriptor", "matrix layout", "matmul preference"};

static void *object_new(ObjectKind kind, const void *content, size_t n_bytes) {
    Object *object = checked_alloc(sizeof(Object) + n_bytes);
    object->kind = kind;
    object->is_live = true;
    if (n_bytes > 0) memcpy(object->content, content, n_bytes);
    emulator.objects = grown(emulator.objects, emulator.n_objects, sizeof(void *));
    emulator.objects[emulator.n_objects++] = object;
    return object->content;
}

static Object *object_find(const void *handle) {
    for (size_t i = 0; i < emulator.n_objects; i++) {
        Object *object = emulator.objects[i];
        if ((void *)object->content == handle) return object;
    }
    return NULL;
}

void *object_checked(const void *handle, ObjectKind kind, const char *call) {
    const Object *object = object_find(handle);
    if (!object) fail("invalid argument: %s: %p is no %s, or is destroyed", call, handle, KIND_NAMES[kind]);
    if (object->kind != kind) {
        fail("invalid argument: %s: a %s where a %s belongs", call, KIND_NAMES[object->kind], KIND_NAMES[kind]);
    }
    return (void *)(uintptr_t)handle;
}

static cublasStatus_t object_destroy(const void *handle, ObjectKind kind, const char *call) {
    API_ENTER;
    object_checked(handle, kind, call);
    Object *object = object_find(handle);
    size_t i = 0;
    while (emulator.objects[i] != object) i++;
    emulator.objects[i] = emulator.objects[--emulator.n_objects];
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

// An attribute: which field, and how many bytes the caller must give.
typedef struct Field {
    int attribute;
    size_t offset, n_bytes;
} Field;

#define FIELD(attribute, T, member) \
    { attribute, offsetof(T, member), sizeof(((T *)0)->member) }

static const Field DESC_FIELDS[] = {FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, MatmulDesc, compute),
                                    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, MatmulDesc, scale),
                                    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, MatmulDesc, pointer_mode),
                                    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, MatmulDesc, trans_a),
                                    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, MatmulDesc, trans_b),
                                    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, MatmulDesc, trans_c),
                                    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, MatmulDesc, epilogue),
                                    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, MatmulDesc, bias),
                                    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, MatmulDesc, bias_stride),
                                    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, MatmulDesc, bias_type),
                                    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, MatmulDesc, aux),
                                    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, MatmulDesc, aux_ld),
                                    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, MatmulDesc, aux_stride),
                                    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, MatmulDesc, aux_type),
                                    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, MatmulDesc, sm_count),
                                    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, MatmulDesc, fast_accumulation),
                                    {-1, 0, 0}};

static const Field LAYOUT_FIELDS[] = {FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, MatrixLayout, type),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, MatrixLayout, order),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, MatrixLayout, rows),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, MatrixLayout, columns),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_LD, MatrixLayout, ld),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, MatrixLayout, batches),
                                      FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, MatrixLayout, stride),
                                      {-1, 0, 0}};

static const Field PREFERENCE_FIELDS[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, MatmulPreference, search_mode),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MatmulPreference, workspace),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, MatmulPreference, reduction_mask),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, MatmulPreference, alignment[0]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, MatmulPreference, alignment[1]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, MatmulPreference, alignment[2]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, MatmulPreference, alignment[3]),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, MatmulPreference, most_waves),
    FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, MatmulPreference, implementation_mask),
    {-1, 0, 0}};

static const Field ALGORITHM_FIELDS[] = {FIELD(CUBLASLT_ALGO_CONFIG_ID, Algorithm, id),
                                         FIELD(CUBLASLT_ALGO_CONFIG_TILE_ID, Algorithm, tile),
                                         FIELD(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, Algorithm, splits),
                                         FIELD(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, Algorithm, scheme),
                                         FIELD(CUBLASLT_ALGO_CONFIG_STAGES_ID, Algorithm, stages),
                                         {-1, 0, 0}};

static const Field *field_find(const Field *fields, int attribute, size_t n_bytes, const char *call) {
    while (fields->attribute != attribute && fields->attribute != -1) fields++;
    if (fields->attribute == -1) fail("%s: attribute %d is not emulated", call, attribute);
    if (n_bytes != fields->n_bytes) {
        fail("invalid argument: %s: attribute %d was given %zu bytes, it has %zu", call, attribute, n_bytes,
             fields->n_bytes);
    }
    return fields;
}

static cublasStatus_t field_set(void *object, const Field *fields, int attribute, const void *from, size_t n_bytes,
                                const char *call) {
    const Field *field = field_find(fields, attribute, n_bytes, call);
    if (!from) fail("invalid argument: %s: attribute %d from NULL", call, attribute);
    memcpy((char *)object + field->offset, from, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t field_get(const void *object, const Field *fields, int attribute, void *to, size_t n_bytes,
                                size_t *written, const char *call) {
    const Field *field = field_find(fields, attribute, n_bytes == 0 ? fields[0].n_bytes : n_bytes, call);
    if (n_bytes > 0) memcpy(to, (const char *)object + field->offset, n_bytes);
    if (written) *written = field->n_bytes;
    return CUBLAS_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------
// Handles and descriptors

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    API_ENTER;
    *handle = object_new(OBJECT_HANDLE, NULL, 0);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return object_destroy(handle, OBJECT_HANDLE, "cublasLtDestroy");
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    API_ENTER;
    MatmulDesc content = {.compute = compute,
                          .scale = scale,
                          .trans_a = CUBLAS_OP_N,
                          .trans_b = CUBLAS_OP_N,
                          .trans_c = CUBLAS_OP_N,
                          .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                          .bias_type = -1,
                          .aux_type = -1};
    *desc = object_new(OBJECT_DESC, &content, sizeof(content));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return object_destroy(desc, OBJECT_DESC, "cublasLtMatmulDescDestroy");
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *from, size_t n_bytes) {
    API_ENTER;
    const char *call = "cublasLtMatmulDescSetAttribute";
    return field_set(object_checked(desc, OBJECT_DESC, call), DESC_FIELDS, (int)attribute, from, n_bytes, call);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              void *to, size_t n_bytes, size_t *written) {
    API_ENTER;
    const char *call = "cublasLtMatmulDescGetAttribute";
    return field_get(object_checked(desc, OBJECT_DESC, call), DESC_FIELDS, (int)attribute, to, n_bytes, written, call);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    API_ENTER;
    MatrixLayout content = {
        .type = type, .order = CUBLASLT_ORDER_COL, .batches = 1, .rows = rows, .columns = columns, .ld = ld};
    *layout = object_new(OBJECT_LAYOUT, &content, sizeof(content));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return object_destroy(layout, OBJECT_LAYOUT, "cublasLtMatrixLayoutDestroy");
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *from,
                                                size_t n_bytes) {
    API_ENTER;
    const char *call = "cublasLtMatrixLayoutSetAttribute";
    return field_set(object_checked(layout, OBJECT_LAYOUT, call), LAYOUT_FIELDS, (int)attribute, from, n_bytes, call);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, void *to, size_t n_bytes,
                                                size_t *written) {
    API_ENTER;
    const char *call = "cublasLtMatrixLayoutGetAttribute";
    return field_get(object_checked(layout, OBJECT_LAYOUT, call), LAYOUT_FIELDS, (int)attribute, to, n_bytes, written,
                     call);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    API_ENTER;
    MatmulPreference content = {.reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK, .alignment = {256, 256, 256, 256}};
    *preference = object_new(OBJECT_PREFERENCE, &content, sizeof(content));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return object_destroy(preference, OBJECT_PREFERENCE, "cublasLtMatmulPreferenceDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *from,
                                                    size_t n_bytes) {
    API_ENTER;
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    return field_set(object_checked(preference, OBJECT_PREFERENCE, call), PREFERENCE_FIELDS, (int)attribute, from,
                     n_bytes, call);
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, void *to,
                                                    size_t n_bytes, size_t *written) {
    API_ENTER;
    const char *call = "cublasLtMatmulPreferenceGetAttribute";
    return field_get(object_checked(preference, OBJECT_PREFERENCE, call), PREFERENCE_FIELDS, (int)attribute, to,
                     n_bytes, written, call);
}

// ---------------------------------------------------------------------------------------------------------------
// Algorithms

static Algorithm algorithm_read(const cublasLtMatmulAlgo_t *algo, const char *call) {
    Algorithm algorithm;
    memcpy(&algorithm, algo, sizeof(algorithm));
    if (algorithm.magic != ALGORITHM_MAGIC) fail("invalid argument: %s: the algorithm comes from no heuristic", call);
    return algorithm;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *to,
                                                    size_t n_bytes, size_t *written) {
    API_ENTER;
    const char *call = "cublasLtMatmulAlgoConfigGetAttribute";
    Algorithm algorithm = algorithm_read(algo, call);
    if (attribute == CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING || attribute == CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) {
        memset(to, 0, n_bytes);
        if (written) *written = n_bytes;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) {
        memset(to, 0, n_bytes);
        if (written) *written = n_bytes;
        return CUBLAS_STATUS_SUCCESS;
    }
    return field_get(&algorithm, ALGORITHM_FIELDS, (int)attribute, to, n_bytes, written, call);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void *from,
                                                    size_t n_bytes) {
    API_ENTER;
    const char *call = "cublasLtMatmulAlgoConfigSetAttribute";
    Algorithm algorithm = algorithm_read(algo, call);
    field_set(&algorithm, ALGORITHM_FIELDS, (int)attribute, from, n_bytes, call);
    memcpy(algo, &algorithm, sizeof(algorithm));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void *to, size_t n_bytes,
                                                 size_t *written) {
    API_ENTER;
    const char *call = "cublasLtMatmulAlgoCapGetAttribute";
    Algorithm algorithm = algorithm_read(algo, call);
    uint64_t value = 0;
    switch (attribute) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT:
    case CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT:
    case CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT: value = 1; break;
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: value = CUBLASLT_REDUCTION_SCHEME_MASK; break;
    case CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS: value = 0; break;
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES: value = 1u << algorithm.alignment[0]; break;
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES: value = 1u << algorithm.alignment[1]; break;
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES: value = 1u << algorithm.alignment[2]; break;
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES: value = 1u << algorithm.alignment[3]; break;
    default: fail("%s: attribute %d is not emulated", call, (int)attribute);
    }
    if (n_bytes > sizeof(value)) {
        fail("invalid argument: %s: attribute %d was given %zu bytes", call, (int)attribute, n_bytes);
    }
    memcpy(to, &value, n_bytes);
    if (written) *written = n_bytes;
    return CUBLAS_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------
// Versions and names

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) {
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "another cuBLAS status";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
