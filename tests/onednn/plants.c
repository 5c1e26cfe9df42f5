// plants.c - what a program may do wrong with oneDNN, one fault at a time, and what the stand-in answers.
//
//   plants NAME wrong|right   the fault of plants.h, or its correct twin; 2 is "wrong result"
//   plants isa | forms | sizes | allocations | leak | nothing   what test_onednn.c asks for, printed
//
// All faults are in one product C (M, N) = A . B + bias, fp32, whose scratchpad is not empty.
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "plants.h"

enum { M = 70, N = 90, PAD = 1 << 20 };

static void must(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return;
    fprintf(stderr, "plants: %s failed with status %d\n", what, (int)status);
    exit(3);
}

#define MUST(call) must(call, #call)

// Allocations by anyone while `counting`.
static volatile bool counting;
static volatile long n_allocations;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
void *malloc(size_t n_bytes) {
    if (counting) __sync_fetch_and_add(&n_allocations, 1);
    return __libc_malloc(n_bytes);
}
void *calloc(size_t n, size_t n_bytes) {
    if (counting) __sync_fetch_and_add(&n_allocations, 1);
    return __libc_calloc(n, n_bytes);
}

// ---------------------------------------------------------------------------------------------------------------
// One product

typedef struct {
    dnnl_dim_t M, N, K;
    dnnl_data_type_t dtype, c_dtype;
    bool a_transposed, b_transposed, bias, sum;
} Form;

static dnnl_memory_desc_t matrix(dnnl_data_type_t dtype, dnnl_dim_t rows, dnnl_dim_t columns, bool transposed) {
    dnnl_memory_desc_t description;
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};
    MUST(dnnl_memory_desc_init_by_strides(&description, 2, dims, dtype, strides));
    return description;
}

static dnnl_status_t describe(dnnl_primitive_desc_t *description, dnnl_engine_t engine, const Form *f, bool user) {
    dnnl_memory_desc_t a = matrix(f->dtype, f->M, f->K, f->a_transposed);
    dnnl_memory_desc_t b = matrix(f->dtype, f->K, f->N, f->b_transposed);
    dnnl_memory_desc_t bias = matrix(f->dtype, 1, f->N, false), c = matrix(f->c_dtype, f->M, f->N, false);
    dnnl_matmul_desc_t operation;
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t post;
    MUST(dnnl_matmul_desc_init(&operation, &a, &b, f->bias ? &bias : NULL, &c));
    MUST(dnnl_primitive_attr_create(&attributes));
    MUST(dnnl_post_ops_create(&post));
    MUST(dnnl_primitive_attr_set_scratchpad_mode(attributes,
                                                 user ? dnnl_scratchpad_mode_user : dnnl_scratchpad_mode_library));
    if (f->sum) MUST(dnnl_post_ops_append_sum(post, 1.0f));
    MUST(dnnl_primitive_attr_set_post_ops(attributes, post));
    dnnl_status_t status = dnnl_primitive_desc_create(description, &operation, attributes, engine, NULL);
    MUST(dnnl_post_ops_destroy(post));
    MUST(dnnl_primitive_attr_destroy(attributes));
    return status;
}

static size_t scratchpad_of(dnnl_primitive_desc_t description) {
    return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0));
}

enum { A, B, BIAS, C, SCRATCHPAD, MEMORIES };
static const int ARGUMENTS[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_memory_t memories[MEMORIES];
    dnnl_exec_arg_t arguments[MEMORIES + 1];
    dnnl_dim_t K;
    size_t scratchpad_size;
    float *data[MEMORIES];
} Test;

static dnnl_memory_t memory_of(const Test *t, const dnnl_memory_desc_t *description, void *data) {
    dnnl_memory_t memory;
    MUST(dnnl_memory_create(&memory, description, t->engine, data));
    return memory;
}

static void open_test(Test *t) {
    memset(t, 0, sizeof(*t));
    MUST(dnnl_engine_create(&t->engine, dnnl_cpu, 0));
    MUST(dnnl_stream_create(&t->stream, t->engine, dnnl_stream_default_flags));
    for (t->K = 300; t->scratchpad_size < 10000; t->K++) {
        Form form = {M, N, t->K, dnnl_f32, dnnl_f32, false, false, true, false};
        if (t->description) MUST(dnnl_primitive_desc_destroy(t->description));
        MUST(describe(&t->description, t->engine, &form, true));
        t->scratchpad_size = scratchpad_of(t->description);
    }
    t->K--;
    MUST(dnnl_primitive_create(&t->primitive, t->description));
    static const dnnl_query_t WHAT[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_weights_md,
                                        dnnl_query_dst_md, dnnl_query_scratchpad_md};
    for (int i = 0; i < MEMORIES; i++) {
        t->data[i] = calloc(PAD, 1);
        for (int j = 0; j < PAD / 4 && i < SCRATCHPAD; j++) t->data[i][j] = (float)(1 + (j * 7 + i) % 5);
        t->memories[i] = memory_of(t, dnnl_primitive_desc_query_md(t->description, WHAT[i], i == BIAS), t->data[i]);
        t->arguments[i] = (dnnl_exec_arg_t){ARGUMENTS[i], t->memories[i]};
    }
}

static void close_test(Test *t) {
    for (int i = 0; i < MEMORIES; i++) {
        MUST(dnnl_memory_destroy(t->memories[i]));
        free(t->data[i]);
    }
    MUST(dnnl_primitive_destroy(t->primitive));
    MUST(dnnl_primitive_desc_destroy(t->description));
    MUST(dnnl_stream_destroy(t->stream));
    MUST(dnnl_engine_destroy(t->engine));
}

static void execute(Test *t, int n) { MUST(dnnl_primitive_execute(t->primitive, t->stream, n, t->arguments)); }
static void wait_for(Test *t) { MUST(dnnl_stream_wait(t->stream)); }

static void run(Test *t) {
    execute(t, MEMORIES);
    wait_for(t);
}

static void place(Test *t, int memory, void *data) { MUST(dnnl_memory_set_data_handle(t->memories[memory], data)); }

// All numbers are small and whole, so every order gives the same.
static void check(const Test *t) {
    for (dnnl_dim_t i = 0; i < M * N; i++) {
        float sum = t->data[BIAS][i % N];
        for (dnnl_dim_t k = 0; k < t->K; k++) sum += t->data[A][i / N * t->K + k] * t->data[B][k * N + i % N];
        if (t->data[C][i] == sum) continue;
        fprintf(stderr, "plants: wrong result: element %ld is %g, not %g\n", (long)i, (double)t->data[C][i],
                (double)sum);
        exit(2);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Handles

static void destroyed_memory(Test *t, bool wrong) {
    dnnl_memory_t memory = memory_of(t, NULL, NULL);
    if (!wrong) MUST(dnnl_memory_set_data_handle(memory, NULL));
    MUST(dnnl_memory_destroy(memory));
    if (wrong) MUST(dnnl_memory_set_data_handle(memory, NULL));
}

static void destroyed_primitive(Test *t, bool wrong) {
    dnnl_primitive_t first = t->primitive;
    MUST(dnnl_primitive_create(&t->primitive, t->description));
    MUST(dnnl_primitive_destroy(first));
    if (wrong) t->primitive = first;
    run(t);
}

static void double_destroy(Test *t, bool wrong) {
    dnnl_memory_t memory = memory_of(t, NULL, NULL);
    MUST(dnnl_memory_destroy(memory));
    if (wrong) MUST(dnnl_memory_destroy(memory));
    MUST(dnnl_memory_destroy(NULL));
}

static void wrong_handle(Test *t, bool wrong) {
    const void *handle = wrong ? (const void *)t->description : (const void *)t->primitive;
    MUST(dnnl_primitive_execute(handle, t->stream, MEMORIES, t->arguments));
    wait_for(t);
}

static void no_handle(Test *t, bool wrong) {
    if (wrong) t->arguments[A].memory = (dnnl_memory_t)(void *)t->data[A];
    run(t);
}

static void engine_in_use(Test *t, bool wrong) {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    (void)t;
    MUST(dnnl_engine_create(&engine, dnnl_cpu, 0));
    MUST(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    if (wrong) MUST(dnnl_engine_destroy(engine));
    MUST(dnnl_stream_destroy(stream));
    if (!wrong) MUST(dnnl_engine_destroy(engine));
}

// ---------------------------------------------------------------------------------------------------------------
// Arguments

// With a memory of a description of its own in the place of one of the product's.
static void run_with(Test *t, int which, dnnl_memory_desc_t description) {
    dnnl_memory_t memory = memory_of(t, &description, t->data[which]);
    t->arguments[which].memory = memory;
    run(t);
    MUST(dnnl_memory_destroy(memory));
}

static void other_shape(Test *t, bool wrong) { run_with(t, A, matrix(dnnl_f32, M + wrong, t->K, false)); }
static void other_layout(Test *t, bool wrong) { run_with(t, B, matrix(dnnl_f32, t->K, N, wrong)); }
static void other_type(Test *t, bool wrong) { run_with(t, C, matrix(wrong ? dnnl_bf16 : dnnl_f32, M, N, false)); }

static void small_scratchpad(Test *t, bool wrong) {
    dnnl_memory_desc_t pad = *dnnl_primitive_desc_query_md(t->description, dnnl_query_scratchpad_md, 0);
    pad.dims[0] -= wrong;
    run_with(t, SCRATCHPAD, pad);
}

// One argument is the last, and not passed.
static void run_without(Test *t, int which, bool wrong) {
    dnnl_exec_arg_t left_out = t->arguments[which];
    t->arguments[which] = t->arguments[MEMORIES - 1];
    t->arguments[MEMORIES - 1] = left_out;
    execute(t, wrong ? MEMORIES - 1 : MEMORIES);
    wait_for(t);
}

static void no_destination(Test *t, bool wrong) { run_without(t, C, wrong); }
static void no_bias(Test *t, bool wrong) { run_without(t, BIAS, wrong); }
static void no_scratchpad(Test *t, bool wrong) { run_without(t, SCRATCHPAD, wrong); }

static void twice(Test *t, bool wrong) {
    t->arguments[MEMORIES] = t->arguments[A];
    execute(t, MEMORIES + wrong);
    wait_for(t);
}

static void unknown_argument(Test *t, bool wrong) {
    t->arguments[MEMORIES] = (dnnl_exec_arg_t){DNNL_ARG_WORKSPACE, t->memories[A]};
    execute(t, MEMORIES + wrong);
    wait_for(t);
}

static void run_at(Test *t, int which, void *data) {
    place(t, which, data);
    run(t);
}

static void null_source(Test *t, bool wrong) { run_at(t, A, wrong ? NULL : t->data[A]); }
static void null_scratchpad(Test *t, bool wrong) { run_at(t, SCRATCHPAD, wrong ? NULL : t->data[SCRATCHPAD]); }

static void misaligned(Test *t, bool wrong) {
    place(t, SCRATCHPAD, (char *)t->data[SCRATCHPAD] + 1);  // has no elements
    run_at(t, C, (char *)t->data[C] + wrong);
}

// One begins where the other ends, or an element earlier.
static void overlap_source(Test *t, bool wrong) { run_at(t, C, t->data[A] + M * t->K - wrong); }

static void overlap_weights(Test *t, bool wrong) {
    place(t, B, t->data[C] + M * N - wrong);
    run(t);
}

static void overlap_scratchpad(Test *t, bool wrong) {
    place(t, SCRATCHPAD, t->data[C] + M * N - wrong);
    run(t);
}

static void overlap_scratchpad_source(Test *t, bool wrong) {
    place(t, SCRATCHPAD, t->data[A] + M * t->K - wrong);
    run(t);
}

// ---------------------------------------------------------------------------------------------------------------
// Scratchpads

// A byte is written while the product is on its way, or before, or just outside.
static void scribble(Test *t, size_t at, bool wrong) {
    unsigned char *pad = (unsigned char *)t->data[SCRATCHPAD] + 1;
    place(t, SCRATCHPAD, pad);
    if (!wrong) pad[at] ^= 1;
    execute(t, MEMORIES);
    if (wrong) pad[at] ^= 1;
    pad[-1] ^= 1;
    pad[t->scratchpad_size] ^= 1;
    wait_for(t);
    check(t);
    // It is left as garbage.
    for (size_t i = 0; i < t->scratchpad_size; i++) {
        if (pad[i] != 0xff) exit(2);
    }
}

static void scratchpad_first(Test *t, bool wrong) { scribble(t, 0, wrong); }
static void scratchpad_middle(Test *t, bool wrong) { scribble(t, t->scratchpad_size / 2, wrong); }
static void scratchpad_last(Test *t, bool wrong) { scribble(t, t->scratchpad_size - 1, wrong); }

// Two products on their way at once, on two streams, with one scratchpad for both.
static void scratchpad_shared(Test *t, bool wrong) {
    dnnl_stream_t streams[2];
    for (int i = 0; i < 2; i++) MUST(dnnl_stream_create(&streams[i], t->engine, dnnl_stream_default_flags));
    for (int i = 0; i < 2; i++) {
        place(t, SCRATCHPAD, t->data[SCRATCHPAD] + (wrong ? 0 : i * PAD / 8));
        MUST(dnnl_primitive_execute(t->primitive, streams[i], MEMORIES, t->arguments));
    }
    for (int i = 0; i < 2; i++) MUST(dnnl_stream_wait(streams[i]));
    check(t);
    for (int i = 0; i < 2; i++) MUST(dnnl_stream_destroy(streams[i]));
}

static void library_scratchpad(Test *t, bool wrong) {
    dnnl_primitive_desc_t description;
    Form form = {M, N, t->K, dnnl_f32, dnnl_f32, false, false, false, false};
    MUST(describe(&description, t->engine, &form, !wrong));
    MUST(dnnl_primitive_desc_destroy(description));
}

static void library_memory(Test *t, bool wrong) {
    dnnl_memory_desc_t description = matrix(dnnl_f32, 5, 7, false);
    MUST(dnnl_memory_destroy(memory_of(t, &description, wrong ? DNNL_MEMORY_ALLOCATE : DNNL_MEMORY_NONE)));
}

// ---------------------------------------------------------------------------------------------------------------
// Waiting, and threads

static void unwaited_stream(Test *t, bool wrong) {
    dnnl_stream_t stream;
    MUST(dnnl_stream_create(&stream, t->engine, dnnl_stream_default_flags));
    MUST(dnnl_primitive_execute(t->primitive, stream, MEMORIES, t->arguments));
    if (!wrong) MUST(dnnl_stream_wait(stream));
    MUST(dnnl_stream_destroy(stream));
}

static void unwaited_primitive(Test *t, bool wrong) {
    dnnl_primitive_t primitive = t->primitive;
    execute(t, MEMORIES);
    if (!wrong) wait_for(t);
    MUST(dnnl_primitive_create(&t->primitive, t->description));
    MUST(dnnl_primitive_destroy(primitive));
}

static void unwaited_result(Test *t, bool wrong) {
    execute(t, MEMORIES);
    if (!wrong) wait_for(t);
    check(t);
}

// A product within a parallel region has a team of one.
static void small_team(Test *t, bool wrong) {
    omp_set_max_active_levels(1);
#pragma omp parallel num_threads(2) if (wrong)
    {
#pragma omp master
        run(t);
    }
    check(t);
}

// ---------------------------------------------------------------------------------------------------------------
// Questions

static const char *form_answer(dnnl_engine_t engine, const Form *form, size_t *scratchpad) {
    dnnl_primitive_desc_t description;
    dnnl_status_t status = describe(&description, engine, form, true);
    if (status == dnnl_unimplemented) return "unimplemented";
    must(status, "describing a product");
    const char *name = "";
    MUST(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name));
    if (scratchpad) *scratchpad = scratchpad_of(description);
    MUST(dnnl_primitive_desc_destroy(description));
    return strncmp(name, "brg", 3) == 0 ? "brgemm" : "other";
}

// What is claimed, and what there is for each type.
static void print_isa(dnnl_engine_t engine) {
    Form fp32 = {M, N, 40, dnnl_f32, dnnl_f32, false, false, true, false}, bf16 = fp32, fp16 = fp32, mixed = fp32;
    bf16.dtype = bf16.c_dtype = dnnl_bf16;
    fp16.dtype = fp16.c_dtype = dnnl_f16;
    mixed.c_dtype = dnnl_bf16;
    printf("isa %x fp32 %s bf16 %s fp16 %s fp32 to bf16 %s\n", (unsigned)dnnl_get_effective_cpu_isa(),
           form_answer(engine, &fp32, NULL), form_answer(engine, &bf16, NULL), form_answer(engine, &fp16, NULL),
           form_answer(engine, &mixed, NULL));
}

// How many of 4000 shapes have: no brgemm for the plain form alone, the sum form alone, both; of those, nothing at all.
static void print_forms(dnnl_engine_t engine) {
    int lacking[4] = {0}, nothing = 0;
    for (int i = 0; i < 4000; i++) {
        int lacks = 0;
        for (int sum = 0; sum < 2; sum++) {
            Form form = {1 + i % 40, 1 + i / 40, 17, dnnl_f32, dnnl_f32, true, false, false, sum};
            const char *answer = form_answer(engine, &form, NULL);
            if (strcmp(answer, "brgemm") != 0) lacks |= 1 << sum;
            if (strcmp(answer, "unimplemented") == 0) nothing++;
        }
        lacking[lacks]++;
    }
    printf("plain %d sum %d both %d nothing %d\n", lacking[1], lacking[2], lacking[3], nothing);
}

// For one attribute after the other: of 200 shapes, how many have another scratchpad when that changes. Then what else
// is known of all these scratchpads.
static void print_sizes(dnnl_engine_t engine) {
    static const char *const NAMES[] = {"M",    "N",   "K",      "type", "c_dtype", "a_transposed", "b_transposed",
                                        "bias", "sum", "threads"};
    int larger = 0, smaller = 0, empty = 0, round = 0, large = 0, most = omp_get_max_threads();
    for (int attribute = 0; attribute < 10; attribute++) {
        int n = 0;
        for (int i = 0; i < 200; i++) {
            Form form = {20 + i, 30, 50, dnnl_bf16, dnnl_f32, false, false, false, false}, other = form;
            other.M += attribute == 0;
            other.N += attribute == 1;
            other.K += attribute == 2;
            if (attribute == 3) other.dtype = dnnl_f32;
            if (attribute == 4) other.c_dtype = dnnl_bf16;
            other.a_transposed = attribute == 5;
            other.b_transposed = attribute == 6;
            other.bias = attribute == 7;
            other.sum = attribute == 8;
            size_t size = 0, other_size = 0;
            form_answer(engine, &form, &size);
            if (attribute == 9) omp_set_num_threads(most + 1);
            form_answer(engine, &other, &other_size);
            omp_set_num_threads(most);
            n += size != other_size;
            larger += attribute == 8 && other_size > size;
            smaller += attribute == 8 && other_size < size;
            empty += other_size == 0;
            round += other_size > 0 && other_size % 64 == 0;
            large += other_size > 302000;
        }
        printf("%s %d\n", NAMES[attribute], n);
    }
    printf("sum larger %d smaller %d\nempty %d round %d large %d\n", larger, smaller, empty, round, large);
}

// Allocations in ten products, after a first one has started the threads.
static void print_allocations(Test *t) {
    run(t);
    counting = true;
    for (int i = 0; i < 10; i++) run(t);
    counting = false;
    printf("allocations %ld\n", n_allocations);
}

typedef struct {
    const char *name;
    void (*run)(Test *t, bool wrong);
} Plant;

#define PLANT_ROW(name, words) {#name, name},
static const Plant ROWS[] = {PLANTS(PLANT_ROW)};

int main(int n_words, char **words) {
    Test t;
    open_test(&t);
    const char *name = n_words > 1 ? words[1] : "";
    dnnl_post_ops_t left;
    bool known = true;
    if (strcmp(name, "isa") == 0) print_isa(t.engine);
    else if (strcmp(name, "forms") == 0) print_forms(t.engine);
    else if (strcmp(name, "sizes") == 0) print_sizes(t.engine);
    else if (strcmp(name, "allocations") == 0) print_allocations(&t);
    else if (strcmp(name, "leak") == 0) MUST(dnnl_post_ops_create(&left));
    else known = strcmp(name, "nothing") == 0;
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]) && !known; i++) {
        if (n_words != 3 || strcmp(ROWS[i].name, name) != 0) continue;
        ROWS[i].run(&t, strcmp(words[2], "wrong") == 0);
        known = true;
    }
    if (!known) {
        fprintf(stderr, "plants: no plant '%s'\n", name);
        return 3;
    }
    close_test(&t);
    return 0;
}
