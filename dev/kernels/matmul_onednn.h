// matmul_onednn.h - products of matrices by oneDNN on the CPU: primitives, made once, in the storage type.
//
// Only brgemm implementations will do (AVX-512). Others take memory of their own at every call (0.9 to 8 MiB for
// GPT-2's shapes on AVX2), which no plan can count. Primitives depend on shapes and on the number of threads; the
// planning pass describes them, they are created before the first step and kept. Their scratchpads are the caller's.
//
// Empty without the library (USE_ONEDNN 0).
#ifndef MATMUL_ONEDNN_H
#define MATMUL_ONEDNN_H

#ifndef USE_ONEDNN
#define USE_ONEDNN 0
#endif
#if USE_ONEDNN
#ifndef _OPENMP
#error "oneDNN's threads are OpenMP's, which must say how many there are: build with OpenMP, or without oneDNN"
#endif
#include <oneapi/dnnl/dnnl.h>

#include "../error.h"
#include "matmul_shape.h"

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
} MatmulLibrary;

// What the library keeps for one product.
typedef struct {
    dnnl_primitive_desc_t description;  // NULL where our own tiles make the product
    dnnl_primitive_t primitive;         // NULL until matmul_create()
    dnnl_memory_t a, b, bias, c, scratch;
} MatmulPrimitive;

static inline void matmul_check(dnnl_status_t status, const char *what) {
    if (status != dnnl_success) die("oneDNN: %s failed with status %d", what, (int)status);
}

static inline void matmul_onednn_open(MatmulLibrary *library) {
    matmul_check(dnnl_engine_create(&library->engine, dnnl_cpu, 0), "creating the engine");
    matmul_check(dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags), "creating a stream");
}

static inline void matmul_onednn_close(MatmulLibrary *library) {
    if (!library->engine) return;
    dnnl_stream_destroy(library->stream);
    dnnl_engine_destroy(library->engine);
}

// What its products run on, for the log, and whether that multiplies bf16 natively; NULL where none can be planned.
static inline const char *matmul_onednn_isa(bool *native_bf16) {
    int isa = (int)dnnl_get_effective_cpu_isa();
    *native_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    if ((isa & dnnl_cpu_isa_avx512_core) != dnnl_cpu_isa_avx512_core) return NULL;
    if ((isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx) return "oneDNN, AMX";
    return *native_bf16 ? "oneDNN, AVX-512 BF16" : "oneDNN, AVX-512";
}

static inline dnnl_data_type_t matmul_onednn_type(Dtype dtype) { return dtype == FP32 ? dnnl_f32 : dnnl_bf16; }

static inline dnnl_memory_desc_t matmul_onednn_matrix(Dtype dtype, size_t rows, size_t columns, bool transposed) {
    dnnl_memory_desc_t description;
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    dnnl_dims_t strides = {transposed ? 1 : (dnnl_dim_t)columns, transposed ? (dnnl_dim_t)rows : 1};
    matmul_check(dnnl_memory_desc_init_by_strides(&description, 2, dims, matmul_onednn_type(dtype), strides),
                 "describing a matrix");
    return description;
}

static inline void matmul_onednn_forget(MatmulPrimitive *kept) {
    if (kept->description) dnnl_primitive_desc_destroy(kept->description);
    kept->description = NULL;
}

// Describes the primitive and asks for the bytes of its scratchpad; false if the library has none that will do.
static inline bool matmul_onednn_describe(const MatmulLibrary *library, MatmulPrimitive *kept, const MatmulShape *s,
                                          size_t *scratchpad) {
    dnnl_memory_desc_t a = matmul_onednn_matrix(s->a_dtype, s->M, s->K, s->a_transposed);
    dnnl_memory_desc_t b = matmul_onednn_matrix(s->b_dtype, s->K, s->N, s->b_transposed);
    dnnl_memory_desc_t bias = matmul_onednn_matrix(s->a_dtype, 1, s->N, false);
    dnnl_memory_desc_t c = matmul_onednn_matrix(s->c_dtype, s->M, s->N, false);
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
        dnnl_primitive_desc_create(&kept->description, &description, attributes, library->engine, NULL);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attributes);
    if (status == dnnl_unimplemented || status == dnnl_invalid_arguments) {
        kept->description = NULL;
        return false;
    }
    matmul_check(status, "creating a product");
    const char *name = "";
    matmul_check(dnnl_primitive_desc_query(kept->description, dnnl_query_impl_info_str, 0, &name), "asking its name");
    if (strncmp(name, "brg", 3) != 0) {  // allocates at every call
        matmul_onednn_forget(kept);
        return false;
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(kept->description, dnnl_query_scratchpad_md, 0);
    *scratchpad = pad ? dnnl_memory_desc_get_size(pad) : 0;
    return true;
}

static inline dnnl_memory_t matmul_onednn_memory(const MatmulLibrary *library, const MatmulPrimitive *kept,
                                                 dnnl_query_t what, int n) {
    dnnl_memory_t memory;
    const dnnl_memory_desc_t *description = dnnl_primitive_desc_query_md(kept->description, what, n);
    matmul_check(dnnl_memory_create(&memory, description, library->engine, DNNL_MEMORY_NONE), "creating a memory");
    return memory;
}

static inline void matmul_onednn_create(const MatmulLibrary *library, MatmulPrimitive *kept) {
    matmul_check(dnnl_primitive_create(&kept->primitive, kept->description), "creating a primitive");
    kept->a = matmul_onednn_memory(library, kept, dnnl_query_src_md, 0);
    kept->b = matmul_onednn_memory(library, kept, dnnl_query_weights_md, 0);
    kept->bias = matmul_onednn_memory(library, kept, dnnl_query_weights_md, 1);
    kept->c = matmul_onednn_memory(library, kept, dnnl_query_dst_md, 0);
    kept->scratch = matmul_onednn_memory(library, kept, dnnl_query_scratchpad_md, 0);
}

static inline void matmul_onednn_destroy(MatmulPrimitive *kept) {
    if (!kept->description) return;
    if (kept->primitive) {
        dnnl_memory_destroy(kept->a);
        dnnl_memory_destroy(kept->b);
        dnnl_memory_destroy(kept->bias);
        dnnl_memory_destroy(kept->c);
        dnnl_memory_destroy(kept->scratch);
        dnnl_primitive_destroy(kept->primitive);
    }
    matmul_onednn_forget(kept);
}

static inline void matmul_onednn_cpu(const MatmulLibrary *library, const MatmulPrimitive *kept, bool has_bias,
                                     void *c, const void *a, const void *b, const void *bias, void *scratchpad) {
    if (!kept->primitive) die("a product of matrices was not planned; this is a bug, please report the command line");
    dnnl_memory_set_data_handle(kept->a, (void *)(uintptr_t)a);
    dnnl_memory_set_data_handle(kept->b, (void *)(uintptr_t)b);
    dnnl_memory_set_data_handle(kept->bias, (void *)(uintptr_t)bias);
    dnnl_memory_set_data_handle(kept->c, c);
    dnnl_memory_set_data_handle(kept->scratch, scratchpad);
    dnnl_exec_arg_t arguments[5] = {{DNNL_ARG_SRC, kept->a},
                                    {DNNL_ARG_WEIGHTS, kept->b},
                                    {DNNL_ARG_DST, kept->c},
                                    {DNNL_ARG_SCRATCHPAD, kept->scratch},
                                    {DNNL_ARG_BIAS, kept->bias}};
    matmul_check(dnnl_primitive_execute(kept->primitive, library->stream, has_bias ? 5 : 4, arguments), "a product");
    matmul_check(dnnl_stream_wait(library->stream), "waiting for a product");
}
#endif

#endif
