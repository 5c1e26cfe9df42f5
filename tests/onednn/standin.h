// standin.h - what the parts of the stand-in for oneDNN share: settings, handles, and products.
//
// A handle of the library is a pointer to an Object, whose body is what it stands for. Objects are never freed, only
// their bodies: a handle that was destroyed is still known as such.
#ifndef STANDIN_H
#define STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

enum { STANDIN_STATUS = 86 };  // exit status of whatever is found

// From the environment, when the library is loaded.
typedef struct {
    int isa;  // dnnl_cpu_isa_t, as a set of bits
    uint64_t seed;
    bool strict, leaks;
    const char *report;
} Settings;

const Settings *settings(void);

// One message, and the end of the process.
_Noreturn void standin_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef enum {
    OBJECT_ENGINE,
    OBJECT_STREAM,
    OBJECT_MEMORY,
    OBJECT_ATTRIBUTES,
    OBJECT_POST_OPS,
    OBJECT_DESCRIPTION,
    OBJECT_PRIMITIVE,
    OBJECTS
} ObjectKind;

typedef struct Object {
    uint64_t magic;
    ObjectKind kind;
    bool destroyed;
    int users;  // that need it alive: what belongs to an engine, a product that wasn't waited for
    struct Object *engine, *next;
    void *body;
} Object;

// A new object with a body of zeros; engine: the handle of what it belongs to, or NULL.
Object *object_open(ObjectKind kind, size_t body_size, const void *engine, const char *function);
// The object of a handle, which must be alive and of this kind.
Object *object_of(const void *handle, ObjectKind kind, const char *function);
void *object_body(const void *handle, ObjectKind kind, const char *function);
// NULL is nobody's handle and may be destroyed, as in the library.
dnnl_status_t object_close(const void *handle, ObjectKind kind, const char *function);

typedef struct {
    dnnl_memory_desc_t description;
    void *data;
} MemoryBody;

typedef struct {
    int n_sums, n_others;  // others: sums with a scale
} PostOpsBody;

typedef struct {
    bool user_scratchpad;
    PostOpsBody post_ops;
} AttributesBody;

// C (M, N) = A (M, K) . B (K, N) [+ bias (N)] [+ C]: what primitive descriptors and primitives stand for.
typedef struct {
    dnnl_memory_desc_t a, b, bias, c, scratchpad;  // of no dimensions: not there
    bool sum;
    int threads;  // parts that C is made in, one for each thread of the team that was promised
    const char *name;
} Product;

// A product with its addresses, on its way through a stream.
typedef struct {
    const Product *product;
    const void *a, *b, *bias;
    void *c;
    unsigned char *scratchpad;
    size_t scratchpad_size;
    unsigned char key;  // of the pattern in the scratchpad
    Object *users[6];   // objects that must live until it is done
} Execution;

typedef struct {
    bool pending;
    Execution execution;
} StreamBody;

// Elements from first to last, and bytes.
size_t description_size(const dnnl_memory_desc_t *description);
size_t type_size(dnnl_data_type_t type);

// The scratchpad is made unusable for anyone else; the product is made, and the scratchpad checked.
void product_begin(Execution *execution);
void product_finish(Execution *execution);

// For the report.
void report_primitive(void);
void report_execution(const Product *product);
void report_short_team(void);

#endif
