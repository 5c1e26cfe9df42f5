// objects.c - what is the same for every kind of handle, the settings, and what is said at the end.
//
// Every call names the handle's kind, so a handle that is wrong, or dead, ends the process where it is used.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "standin.h"

#define OBJECT_MAGIC 0x6f6e65444e4e2121u

static const char *const KIND_NAMES[OBJECTS] = {
    "an engine", "a stream", "a memory", "attributes", "post-operations", "a primitive descriptor", "a primitive",
};

static Settings the_settings;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Object *objects;
static atomic_long n_primitives, n_executions, n_sums, n_bf16, n_fp32, n_short;

const Settings *settings(void) { return &the_settings; }

_Noreturn void standin_die(const char *format, ...) {
    static const char FIRST[] = "onednn stand-in: ";
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    memcpy(message, FIRST, sizeof(FIRST));
    int n = vsnprintf(message + sizeof(FIRST) - 1, sizeof(message) - sizeof(FIRST), format, arguments);
    va_end(arguments);
    size_t length = strlen(message);
    message[length++] = '\n';
    if (n < 0 || write(STDERR_FILENO, message, length) < 0) _exit(STANDIN_STATUS);
    _exit(STANDIN_STATUS);
}

// ---------------------------------------------------------------------------------------------------------------
// Settings

typedef struct {
    const char *name;
    int isa;
} IsaName;

static const IsaName CLAIMS[] = {
    {"avx2", dnnl_cpu_isa_avx2},
    {"avx512", dnnl_cpu_isa_avx512_core},
    {"bf16", dnnl_cpu_isa_avx512_core_bf16},
    {"amx", dnnl_cpu_isa_avx512_core_amx},
};
static const IsaName LIMITS[] = {
    {"SSE41", dnnl_cpu_isa_sse41},
    {"AVX", dnnl_cpu_isa_avx},
    {"AVX2", dnnl_cpu_isa_avx2},
    {"AVX512_CORE", dnnl_cpu_isa_avx512_core},
    {"AVX512_CORE_VNNI", dnnl_cpu_isa_avx512_core_vnni},
    {"AVX512_CORE_BF16", dnnl_cpu_isa_avx512_core_bf16},
    {"AVX512_CORE_AMX", dnnl_cpu_isa_avx512_core_amx},
};

static int isa_named(const IsaName *names, size_t n, const char *name, int otherwise) {
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(names[i].name, name) == 0) return names[i].isa;
    }
    return otherwise;
}

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

__attribute__((constructor)) static void settings_read(void) {
    const char *isa = getenv("ONEDNN_STANDIN_ISA"), *seed = getenv("ONEDNN_STANDIN_SEED");
    the_settings.isa = isa_named(CLAIMS, sizeof(CLAIMS) / sizeof(CLAIMS[0]), isa ? isa : "bf16", 0);
    if (!the_settings.isa) standin_die("ONEDNN_STANDIN_ISA is avx2, avx512, bf16 or amx, not '%s'", isa);
    // The library takes the first of these that is not empty, and ignores values that it doesn't know.
    const char *limit = getenv("ONEDNN_MAX_CPU_ISA");
    if (!limit || !*limit) limit = getenv("DNNL_MAX_CPU_ISA");
    if (limit) the_settings.isa &= isa_named(LIMITS, sizeof(LIMITS) / sizeof(LIMITS[0]), limit, ~0);
    char *end = NULL;
    the_settings.seed = seed ? strtoull(seed, &end, 10) : 1;
    if (seed && (end == seed || *end)) standin_die("ONEDNN_STANDIN_SEED is a number, not '%s'", seed);
    the_settings.strict = is_set("ONEDNN_STANDIN_STRICT");
    the_settings.leaks = is_set("ONEDNN_STANDIN_LEAKS");
    the_settings.report = getenv("ONEDNN_STANDIN_REPORT");
}

// ---------------------------------------------------------------------------------------------------------------
// Handles

Object *object_of(const void *handle, ObjectKind kind, const char *function) {
    Object *object = (Object *)(uintptr_t)handle;
    if (!object) standin_die("%s: %s was expected, and is NULL", function, KIND_NAMES[kind]);
    if ((uintptr_t)object % _Alignof(Object) != 0 || object->magic != OBJECT_MAGIC) {
        standin_die("%s: %s was expected, and this is no handle", function, KIND_NAMES[kind]);
    }
    if (object->kind != kind) {
        standin_die("%s: %s was expected, and this is %s", function, KIND_NAMES[kind], KIND_NAMES[object->kind]);
    }
    if (object->destroyed) standin_die("%s: %s that was destroyed", function, KIND_NAMES[kind]);
    return object;
}

void *object_body(const void *handle, ObjectKind kind, const char *function) {
    return object_of(handle, kind, function)->body;
}

Object *object_open(ObjectKind kind, size_t body_size, const void *engine, const char *function) {
    Object *object = calloc(1, sizeof(*object));
    if (!object || !(object->body = calloc(1, body_size))) standin_die("%s: out of memory", function);
    object->magic = OBJECT_MAGIC;
    object->kind = kind;
    if (engine) object->engine = object_of(engine, OBJECT_ENGINE, function);
    pthread_mutex_lock(&mutex);
    if (object->engine) object->engine->users++;
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&mutex);
    return object;
}

dnnl_status_t object_close(const void *handle, ObjectKind kind, const char *function) {
    if (!handle) return dnnl_success;
    Object *object = object_of(handle, kind, function);
    if (object->users > 0) {
        standin_die("%s: %s that is still in use (%s)", function, KIND_NAMES[kind],
                    kind == OBJECT_ENGINE ? "by what was made on it" : "by a product that was not waited for");
    }
    pthread_mutex_lock(&mutex);
    if (object->engine) object->engine->users--;
    object->destroyed = true;
    free(object->body);
    object->body = NULL;
    pthread_mutex_unlock(&mutex);
    return dnnl_success;
}

// ---------------------------------------------------------------------------------------------------------------
// The end

void report_primitive(void) { n_primitives++; }
void report_short_team(void) { n_short++; }

void report_execution(const Product *product) {
    n_executions++;
    if (product->sum) n_sums++;
    if (product->a.data_type == dnnl_bf16) n_bf16++;
    else n_fp32++;
}

// Appended in one write: ranks share the file.
static void report_write(void) {
    char line[256];
    int n = snprintf(line, sizeof(line), "primitives %ld executions %ld sum %ld bf16 %ld fp32 %ld short %ld\n",
                     (long)n_primitives, (long)n_executions, (long)n_sums, (long)n_bf16, (long)n_fp32, (long)n_short);
    int file = open(the_settings.report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0 || write(file, line, (size_t)n) != n || close(file) != 0) {
        standin_die("the report can't be written to '%s'", the_settings.report);
    }
}

__attribute__((destructor)) static void settings_end(void) {
    if (the_settings.report) report_write();
    if (!the_settings.leaks) return;
    for (const Object *object = objects; object; object = object->next) {
        if (object->destroyed) continue;
        fflush(NULL);  // what the program has printed is not lost
        standin_die("%s was never destroyed", KIND_NAMES[object->kind]);
    }
}
