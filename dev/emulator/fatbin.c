// fatbin.c - what the objects that nvcc made register before main(): PTX text, kernels and variables.
//
// nvcc's --no-compress leaves the PTX as text in the object's fat binary, so a program carries all that it needs.
//
// Invariant: a kernel that has no PTX here can't be launched, and the message says how to compile it.
#include "ptx.h"

// The wrapper that an object passes to __cudaRegisterFatBinary (fatbinary_section.h).
typedef struct FatBinaryWrapper {
    int32_t magic, version;
    const char *data;
    const void *more;
} FatBinaryWrapper;

enum { WRAPPER_MAGIC = 0x466243b1, KIND_PTX = 1 };
#define CONTAINER_MAGIC 0xba55ed50u

typedef struct Container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t n_bytes;  // of the entries after the header
} Container;

typedef struct Entry {
    uint16_t kind, unused;
    uint32_t header_bytes;
    uint64_t n_bytes;
    uint32_t compressed_bytes, unused2;
    uint16_t minor, major;
    uint32_t architecture;
} Entry;

// A pair that nvcc's start-up code registers: a pointer of the host and the name on the device.
typedef struct Registered {
    size_t module;
    const void *host;
    const char *name;
} Registered;

static void module_add(const char *text, size_t n_text) {
    emulator.modules = grown(emulator.modules, emulator.n_modules, sizeof(Module *));
    emulator.modules[emulator.n_modules] = checked_alloc(sizeof(Module));
    *emulator.modules[emulator.n_modules++] = (Module){.text = text, .n_text = n_text};
}

// The newest PTX that the interpreter knows, sm_80 or older; a module without text if there is none.
void **__cudaRegisterFatBinary(void *argument) {
    const FatBinaryWrapper *wrapper = argument;
    Container container;
    memcpy(&container, wrapper->data, sizeof(container));
    if (wrapper->magic != WRAPPER_MAGIC || container.magic != CONTAINER_MAGIC) fail("a fat binary of an unknown kind");
    const char *entry_start = wrapper->data + container.header_bytes, *end = entry_start + container.n_bytes;
    const char *text = NULL;
    size_t n_text = 0;
    uint32_t best = 0;
    while (entry_start < end) {
        Entry entry;
        memcpy(&entry, entry_start, sizeof(entry));
        const char *data = entry_start + entry.header_bytes;
        bool is_text = entry.kind == KIND_PTX && entry.n_bytes > 0 && memmem(data, entry.n_bytes, ".version", 8);
        if (is_text && entry.architecture >= best && entry.architecture <= 80) {
            best = entry.architecture;
            text = data;
            n_text = strnlen(data, entry.n_bytes);
        }
        entry_start = data + entry.n_bytes;
    }
    module_add(text, n_text);
    return (void **)emulator.n_modules;  // the number of the module, from 1
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

// 10 parameters: those that nvcc's code passes.
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp_size) {
    (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    emulator.host_functions = grown(emulator.host_functions, emulator.n_host_functions, sizeof(Registered));
    emulator.host_functions[emulator.n_host_functions++] = (Registered){(size_t)(void *)handle - 1, host, name};
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t n_bytes,
                       int is_constant, int is_global) {
    (void)device, (void)external, (void)n_bytes, (void)is_constant, (void)is_global;
    emulator.host_variables = grown(emulator.host_variables, emulator.n_host_variables, sizeof(Registered));
    emulator.host_variables[emulator.n_host_variables++] = (Registered){(size_t)(void *)handle - 1, host, name};
}

static const Registered *registered_find(const Registered *list, size_t n, const void *host) {
    for (size_t i = 0; i < n; i++) {
        if (list[i].host == host) return &list[i];
    }
    return NULL;
}

static Module *module_loaded(const Registered *registered) {
    Module *module = emulator.modules[registered->module];
    if (!module->text) {
        fail("no PTX for %s: compile with nvcc -gencode arch=compute_80,code=compute_80 --no-compress -lineinfo",
             registered->name);
    }
    module_parse(module);
    return module;
}

Function *function_of_host(const void *host) {
    const Registered *registered = registered_find(emulator.host_functions, emulator.n_host_functions, host);
    if (!registered) return NULL;
    Function *function = module_function(module_loaded(registered), (Text){registered->name, strlen(registered->name)});
    if (!function) fail("the PTX has no kernel %s", registered->name);
    return function;
}

Variable *variable_of_host(const void *host) {
    const Registered *registered = registered_find(emulator.host_variables, emulator.n_host_variables, host);
    if (!registered) return NULL;
    Variable *variable = module_variable(module_loaded(registered), (Text){registered->name, strlen(registered->name)});
    if (!variable) fail("the PTX has no variable %s", registered->name);
    return variable;
}
