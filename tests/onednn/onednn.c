// onednn.c - the functions of oneDNN's C interface that the trainer calls.
//
// What the library leaves to luck is refused here: every argument of a product is checked when it is executed, and the
// product itself is made no earlier than the stream is waited for, or used again.
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

// ---------------------------------------------------------------------------------------------------------------
// Descriptions of matrices

size_t type_size(dnnl_data_type_t type) {
    switch (type) {
    case dnnl_f32: return 4;
    case dnnl_bf16:
    case dnnl_f16: return 2;
    case dnnl_u8: return 1;
    default: standin_die("a type that the stand-in does not know: %d", (int)type);
    }
}

size_t description_size(const dnnl_memory_desc_t *d) {
    if (d->ndims == 0) return 0;
    size_t last = 0;
    for (int i = 0; i < d->ndims; i++) last += (size_t)((d->dims[i] - 1) * d->format_desc.blocking.strides[i]);
    return (last + 1) * type_size(d->data_type);
}

static dnnl_memory_desc_t describe(int n_dims, const dnnl_dim_t *dims, dnnl_data_type_t type,
                                   const dnnl_dim_t *strides) {
    dnnl_memory_desc_t d;
    memset(&d, 0, sizeof(d));
    d.ndims = n_dims;
    d.data_type = type;
    d.format_kind = strides ? dnnl_blocked : dnnl_format_kind_any;
    for (int i = 0; i < n_dims; i++) {
        d.dims[i] = d.padded_dims[i] = dims[i];
        if (strides) d.format_desc.blocking.strides[i] = strides[i];
    }
    return d;
}

static bool descriptions_match(const dnnl_memory_desc_t *x, const dnnl_memory_desc_t *y) {
    if (x->ndims != y->ndims) return false;
    if (x->ndims == 0) return true;
    bool match = x->data_type == y->data_type && x->format_kind == y->format_kind;
    for (int i = 0; i < x->ndims; i++) {
        match = match && x->dims[i] == y->dims[i] &&
                x->format_desc.blocking.strides[i] == y->format_desc.blocking.strides[i];
    }
    return match;
}

dnnl_status_t dnnl_memory_desc_init_by_strides(dnnl_memory_desc_t *memory_desc, int ndims, const dnnl_dims_t dims,
                                               dnnl_data_type_t data_type, const dnnl_dims_t strides) {
    if (!memory_desc || ndims != 2 || !dims || !strides || dims[0] < 1 || dims[1] < 1) return dnnl_invalid_arguments;
    // Plain matrices whose rows, or columns, lie apart from each other.
    bool by_rows = strides[1] == 1 && (strides[0] >= dims[1] || dims[0] == 1);
    bool by_columns = strides[0] == 1 && (strides[1] >= dims[0] || dims[1] == 1);
    if (!by_rows && !by_columns) return dnnl_invalid_arguments;
    *memory_desc = describe(ndims, dims, data_type, strides);
    return dnnl_success;
}

// Only "any", with which the benchmark asks for weights as the library would have them: here by rows.
dnnl_status_t dnnl_memory_desc_init_by_tag(dnnl_memory_desc_t *memory_desc, int ndims, const dnnl_dims_t dims,
                                           dnnl_data_type_t data_type, dnnl_format_tag_t tag) {
    if (!memory_desc || ndims != 2 || !dims || dims[0] < 1 || dims[1] < 1) return dnnl_invalid_arguments;
    if (tag != dnnl_format_tag_any) return dnnl_unimplemented;
    *memory_desc = describe(ndims, dims, data_type, NULL);
    return dnnl_success;
}

size_t dnnl_memory_desc_get_size(const dnnl_memory_desc_t *memory_desc) {
    return memory_desc ? description_size(memory_desc) : 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Engines, streams, memories, attributes

dnnl_cpu_isa_t dnnl_get_effective_cpu_isa(void) { return (dnnl_cpu_isa_t)settings()->isa; }

dnnl_status_t dnnl_engine_create(dnnl_engine_t *engine, dnnl_engine_kind_t kind, size_t index) {
    if (!engine || kind != dnnl_cpu || index != 0) return dnnl_invalid_arguments;
    *engine = (dnnl_engine_t)(void *)object_open(OBJECT_ENGINE, 1, NULL, __func__);
    return dnnl_success;
}

dnnl_status_t dnnl_engine_destroy(dnnl_engine_t engine) { return object_close(engine, OBJECT_ENGINE, __func__); }

dnnl_status_t dnnl_stream_create(dnnl_stream_t *stream, dnnl_engine_t engine, unsigned flags) {
    if (!stream || flags != dnnl_stream_default_flags) return dnnl_invalid_arguments;
    object_of(engine, OBJECT_ENGINE, __func__);
    *stream = (dnnl_stream_t)(void *)object_open(OBJECT_STREAM, sizeof(StreamBody), engine, __func__);
    return dnnl_success;
}

// What the stream still has to do.
static void stream_run(StreamBody *stream) {
    if (!stream->pending) return;
    Execution *execution = &stream->execution;
    product_finish(execution);
    for (size_t i = 0; i < sizeof(execution->users) / sizeof(execution->users[0]); i++) {
        if (execution->users[i]) execution->users[i]->users--;
    }
    stream->pending = false;
}

dnnl_status_t dnnl_stream_wait(dnnl_stream_t stream) {
    stream_run(object_body(stream, OBJECT_STREAM, __func__));
    return dnnl_success;
}

dnnl_status_t dnnl_stream_destroy(dnnl_stream_t stream) {
    if (stream && ((StreamBody *)object_body(stream, OBJECT_STREAM, __func__))->pending) {
        standin_die("%s: a stream with a product that was not waited for", __func__);
    }
    return object_close(stream, OBJECT_STREAM, __func__);
}

dnnl_status_t dnnl_memory_create(dnnl_memory_t *memory, const dnnl_memory_desc_t *memory_desc, dnnl_engine_t engine,
                                 void *handle) {
    if (!memory || (memory_desc && memory_desc->format_kind == dnnl_format_kind_any)) return dnnl_invalid_arguments;
    if (handle == DNNL_MEMORY_ALLOCATE)
        standin_die("%s: a memory of the library's own, which no plan counts", __func__);
    object_of(engine, OBJECT_ENGINE, __func__);
    Object *object = object_open(OBJECT_MEMORY, sizeof(MemoryBody), engine, __func__);
    MemoryBody *body = object->body;
    if (memory_desc) body->description = *memory_desc;
    body->data = handle;
    *memory = (dnnl_memory_t)(void *)object;
    return dnnl_success;
}

dnnl_status_t dnnl_memory_set_data_handle(dnnl_memory_t memory, void *handle) {
    ((MemoryBody *)object_body(memory, OBJECT_MEMORY, __func__))->data = handle;
    return dnnl_success;
}

dnnl_status_t dnnl_memory_destroy(dnnl_memory_t memory) { return object_close(memory, OBJECT_MEMORY, __func__); }

dnnl_status_t dnnl_primitive_attr_create(dnnl_primitive_attr_t *attr) {
    if (!attr) return dnnl_invalid_arguments;
    *attr = (dnnl_primitive_attr_t)(void *)object_open(OBJECT_ATTRIBUTES, sizeof(AttributesBody), NULL, __func__);
    return dnnl_success;
}

dnnl_status_t dnnl_primitive_attr_destroy(dnnl_primitive_attr_t attr) {
    return object_close(attr, OBJECT_ATTRIBUTES, __func__);
}

dnnl_status_t dnnl_primitive_attr_set_scratchpad_mode(dnnl_primitive_attr_t attr, dnnl_scratchpad_mode_t mode) {
    ((AttributesBody *)object_body(attr, OBJECT_ATTRIBUTES, __func__))->user_scratchpad =
        mode == dnnl_scratchpad_mode_user;
    return dnnl_success;
}

dnnl_status_t dnnl_primitive_attr_set_post_ops(dnnl_primitive_attr_t attr, const_dnnl_post_ops_t post_ops) {
    AttributesBody *body = object_body(attr, OBJECT_ATTRIBUTES, __func__);
    body->post_ops = *(const PostOpsBody *)object_body(post_ops, OBJECT_POST_OPS, __func__);
    return dnnl_success;
}

dnnl_status_t dnnl_post_ops_create(dnnl_post_ops_t *post_ops) {
    if (!post_ops) return dnnl_invalid_arguments;
    *post_ops = (dnnl_post_ops_t)(void *)object_open(OBJECT_POST_OPS, sizeof(PostOpsBody), NULL, __func__);
    return dnnl_success;
}

dnnl_status_t dnnl_post_ops_append_sum(dnnl_post_ops_t post_ops, float scale) {
    PostOpsBody *body = object_body(post_ops, OBJECT_POST_OPS, __func__);
    if (scale == 1.0f) body->n_sums++;
    else body->n_others++;
    return dnnl_success;
}

dnnl_status_t dnnl_post_ops_destroy(dnnl_post_ops_t post_ops) {
    return object_close(post_ops, OBJECT_POST_OPS, __func__);
}

// ---------------------------------------------------------------------------------------------------------------
// What there is for a product

dnnl_status_t dnnl_matmul_desc_init(dnnl_matmul_desc_t *matmul_desc, const dnnl_memory_desc_t *src_desc,
                                    const dnnl_memory_desc_t *weights_desc, const dnnl_memory_desc_t *bias_desc,
                                    const dnnl_memory_desc_t *dst_desc) {
    if (!matmul_desc || !src_desc || !weights_desc || !dst_desc) return dnnl_invalid_arguments;
    const dnnl_dim_t M = src_desc->dims[0], K = src_desc->dims[1], N = weights_desc->dims[1];
    if (src_desc->ndims != 2 || weights_desc->ndims != 2 || dst_desc->ndims != 2 || weights_desc->dims[0] != K ||
        dst_desc->dims[0] != M || dst_desc->dims[1] != N) {
        return dnnl_invalid_arguments;
    }
    if (bias_desc && (bias_desc->ndims != 2 || bias_desc->dims[0] != 1 || bias_desc->dims[1] != N)) {
        return dnnl_invalid_arguments;
    }
    memset(matmul_desc, 0, sizeof(*matmul_desc));
    matmul_desc->primitive_kind = dnnl_matmul;
    matmul_desc->src_desc = *src_desc;
    matmul_desc->weights_desc = *weights_desc;
    if (bias_desc) matmul_desc->bias_desc = *bias_desc;
    matmul_desc->dst_desc = *dst_desc;
    matmul_desc->accum_data_type = dnnl_f32;
    return dnnl_success;
}

static uint64_t hash_mix(uint64_t hash, int64_t value) {
    uint64_t x = (hash ^ (uint64_t)value) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Of the seed, the sizes, the types and how the matrices lie.
static uint64_t product_hash(const Product *p) {
    const dnnl_memory_desc_t *matrices[] = {&p->a, &p->b, &p->c};
    uint64_t hash = hash_mix(0, (int64_t)settings()->seed);
    for (int i = 0; i < 3; i++) {
        hash = hash_mix(hash, matrices[i]->data_type);
        for (int d = 0; d < 2; d++) {
            hash = hash_mix(hash, matrices[i]->dims[d]);
            hash = hash_mix(hash, matrices[i]->format_desc.blocking.strides[d]);
        }
    }
    return hash;
}

// Bytes of scratchpad: 0 for one form in eight, else an odd number, mostly below 300 KB. Nothing follows from that of
// another form of the same product, nor of another number of threads.
static size_t product_scratchpad(const Product *p) {
    uint64_t hash = hash_mix(product_hash(p), p->bias.ndims ? 1 + (int64_t)p->bias.data_type : 0);
    hash = hash_mix(hash_mix(hash, p->sum), p->threads);
    if (hash % 8 == 0) return 0;
    return 1001 + 2 * (size_t)p->threads + 2 * (size_t)((hash >> 8) % (hash % 8 == 7 ? 400000 : 150000));
}

// From seed 100 on, one shape in eight lacks brgemm in its plain form, its sum form, or both: then there is either
// another implementation or none.
static dnnl_status_t product_name(Product *p) {
    static const char BRGEMM[] = "brg:stand-in", OTHER[] = "gemm:stand-in";
    const bool avx512 = (settings()->isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    const uint64_t hash = product_hash(p), lacking = (hash >> 8) % 3;
    p->name = avx512 ? BRGEMM : OTHER;
    if (settings()->seed < 100 || hash % 8 != 0 || lacking == (p->sum ? 0 : 1)) return dnnl_success;
    p->name = OTHER;
    return (hash >> 16) % 2 ? dnnl_unimplemented : dnnl_success;
}

static bool types_fit(const Product *p) {
    const bool avx512 = (settings()->isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    const dnnl_data_type_t a = p->a.data_type, b = p->b.data_type, c = p->c.data_type, bias = p->bias.data_type;
    if (a != b || (a != dnnl_f32 && (a != dnnl_bf16 || !avx512))) return false;
    return (c == dnnl_f32 || c == a) && (!p->bias.ndims || bias == dnnl_f32 || bias == a);
}

dnnl_status_t dnnl_primitive_desc_create(dnnl_primitive_desc_t *primitive_desc, const_dnnl_op_desc_t op_desc,
                                         const_dnnl_primitive_attr_t attr, dnnl_engine_t engine,
                                         const_dnnl_primitive_desc_t hint_forward_primitive_desc) {
    const dnnl_matmul_desc_t *matmul = op_desc;
    if (!primitive_desc || !matmul || hint_forward_primitive_desc) return dnnl_invalid_arguments;
    if (matmul->primitive_kind != dnnl_matmul) return dnnl_unimplemented;
    object_of(engine, OBJECT_ENGINE, __func__);
    const AttributesBody *attributes = attr ? object_body(attr, OBJECT_ATTRIBUTES, __func__) : NULL;
    if (!attributes || !attributes->user_scratchpad) {
        standin_die("%s: a scratchpad of the library's own would be allocated at every call", __func__);
    }
    if (attributes->post_ops.n_sums > 1 || attributes->post_ops.n_others > 0) return dnnl_unimplemented;
    Product p;
    memset(&p, 0, sizeof(p));
    p.a = matmul->src_desc;
    p.b = matmul->weights_desc;
    p.bias = matmul->bias_desc;
    p.c = matmul->dst_desc;
    p.sum = attributes->post_ops.n_sums == 1;
    p.threads = omp_get_max_threads();
    const dnnl_dim_t rows[] = {p.b.dims[1], 1};
    if (p.b.format_kind == dnnl_format_kind_any) p.b = describe(2, p.b.dims, p.b.data_type, rows);
    if (p.a.format_kind != dnnl_blocked || p.c.format_kind != dnnl_blocked || !types_fit(&p)) return dnnl_unimplemented;
    dnnl_status_t status = product_name(&p);
    if (status != dnnl_success) return status;
    const dnnl_dim_t size = (dnnl_dim_t)product_scratchpad(&p), one = 1;
    if (size > 0) p.scratchpad = describe(1, &size, dnnl_u8, &one);
    Object *object = object_open(OBJECT_DESCRIPTION, sizeof(Product), engine, __func__);
    memcpy(object->body, &p, sizeof(p));
    *primitive_desc = (dnnl_primitive_desc_t)(void *)object;
    return dnnl_success;
}

dnnl_status_t dnnl_primitive_desc_destroy(dnnl_primitive_desc_t primitive_desc) {
    return object_close(primitive_desc, OBJECT_DESCRIPTION, __func__);
}

dnnl_status_t dnnl_primitive_desc_query(const_dnnl_primitive_desc_t primitive_desc, dnnl_query_t what, int index,
                                        void *result) {
    const Product *product = object_body(primitive_desc, OBJECT_DESCRIPTION, __func__);
    if (!result || index != 0) return dnnl_invalid_arguments;
    if (what != dnnl_query_impl_info_str) return dnnl_unimplemented;
    *(const char **)result = product->name;
    return dnnl_success;
}

const dnnl_memory_desc_t *dnnl_primitive_desc_query_md(const_dnnl_primitive_desc_t primitive_desc, dnnl_query_t what,
                                                       int index) {
    const Product *product = object_body(primitive_desc, OBJECT_DESCRIPTION, __func__);
    if (what == dnnl_query_weights_md && index == 1) return &product->bias;
    if (index != 0) return NULL;
    return what == dnnl_query_src_md          ? &product->a
           : what == dnnl_query_weights_md    ? &product->b
           : what == dnnl_query_dst_md        ? &product->c
           : what == dnnl_query_scratchpad_md ? &product->scratchpad
                                              : NULL;
}

dnnl_status_t dnnl_primitive_create(dnnl_primitive_t *primitive, const_dnnl_primitive_desc_t primitive_desc) {
    const Object *from = object_of(primitive_desc, OBJECT_DESCRIPTION, __func__);
    if (!primitive) return dnnl_invalid_arguments;
    Object *object = object_open(OBJECT_PRIMITIVE, sizeof(Product), from->engine, __func__);
    memcpy(object->body, from->body, sizeof(Product));
    *primitive = (dnnl_primitive_t)(void *)object;
    report_primitive();
    return dnnl_success;
}

dnnl_status_t dnnl_primitive_destroy(dnnl_primitive_t primitive) {
    return object_close(primitive, OBJECT_PRIMITIVE, __func__);
}

// ---------------------------------------------------------------------------------------------------------------
// Execution

enum { SLOT_A, SLOT_B, SLOT_BIAS, SLOT_C, SLOT_SCRATCHPAD, SLOTS };

typedef struct {
    const char *name;
    int argument;
    const dnnl_memory_desc_t *description;
    Object *memory;
    unsigned char *data;
} Slot;

// Finds the memory of a slot among the arguments, and checks it.
static void slot_fill(Slot *slot, int n, const dnnl_exec_arg_t *args) {
    const size_t size = description_size(slot->description);
    for (int i = 0; i < n; i++) {
        if (args[i].arg != slot->argument) continue;
        if (slot->memory) standin_die("a product is given its %s twice", slot->name);
        slot->memory = object_of(args[i].memory, OBJECT_MEMORY, "dnnl_primitive_execute");
    }
    if (!slot->memory) {
        if (size > 0) standin_die("a product is not given its %s", slot->name);
        return;
    }
    const MemoryBody *body = slot->memory->body;
    if (!descriptions_match(&body->description, slot->description)) {
        standin_die("the %s of a product has another description: %zu bytes instead of %zu, or other ones", slot->name,
                    description_size(&body->description), size);
    }
    if (size == 0) return;
    slot->data = body->data;
    if (!slot->data) standin_die("the %s of a product, %zu bytes, is at NULL", slot->name, size);
    if ((uintptr_t)slot->data % type_size(slot->description->data_type) != 0) {
        standin_die("the %s of a product is not aligned to its elements", slot->name);
    }
}

static void slots_check_overlap(const Slot *x, const Slot *y) {
    if (!x->data || !y->data) return;
    const uintptr_t x0 = (uintptr_t)x->data, y0 = (uintptr_t)y->data;
    if (x0 < y0 + description_size(y->description) && y0 < x0 + description_size(x->description)) {
        standin_die("the %s and the %s of a product overlap", x->name, y->name);
    }
}

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int nargs,
                                     const dnnl_exec_arg_t *args) {
    Object *object = object_of(primitive, OBJECT_PRIMITIVE, __func__);
    const Product *product = object->body;
    StreamBody *body = object_body(stream, OBJECT_STREAM, __func__);
    Slot slots[SLOTS] = {{"source", DNNL_ARG_SRC, &product->a, NULL, NULL},
                         {"weights", DNNL_ARG_WEIGHTS, &product->b, NULL, NULL},
                         {"bias", DNNL_ARG_BIAS, &product->bias, NULL, NULL},
                         {"destination", DNNL_ARG_DST, &product->c, NULL, NULL},
                         {"scratchpad", DNNL_ARG_SCRATCHPAD, &product->scratchpad, NULL, NULL}};
    for (int i = 0; i < nargs; i++) {
        bool known = false;
        for (int s = 0; s < SLOTS; s++) known = known || args[i].arg == slots[s].argument;
        if (!known) standin_die("a product is given argument %d, which it does not have", args[i].arg);
    }
    for (int s = 0; s < SLOTS; s++) slot_fill(&slots[s], nargs, args);
    for (int s = 0; s < SLOTS; s++) {
        if (s != SLOT_C) slots_check_overlap(&slots[SLOT_C], &slots[s]);
        if (s != SLOT_C && s != SLOT_SCRATCHPAD) slots_check_overlap(&slots[SLOT_SCRATCHPAD], &slots[s]);
    }
    stream_run(body);  // in order: one product at a time is kept waiting
    Execution *e = &body->execution;
    memset(e, 0, sizeof(*e));
    e->product = product;
    e->a = slots[SLOT_A].data;
    e->b = slots[SLOT_B].data;
    e->bias = slots[SLOT_BIAS].data;
    e->c = slots[SLOT_C].data;
    e->scratchpad = slots[SLOT_SCRATCHPAD].data;
    e->scratchpad_size = description_size(&product->scratchpad);
    for (int s = 0; s < SLOTS; s++) e->users[s] = slots[s].memory;
    e->users[SLOTS] = object;
    for (int i = 0; i <= SLOTS; i++) {
        if (e->users[i]) e->users[i]->users++;
    }
    product_begin(e);
    body->pending = true;
    report_execution(product);
    return dnnl_success;
}
