// runtime.c - the stand-in for libcudart: the device, memory, copies, and launches. Streams and events: stream.c.
//
// A call that CUDA would refuse, and most that it would let pass by accident, is a fault. Only what a correct program
// must handle comes back as an error: memory that does not fit, and work that is not ready.
//
// Invariant: pinned host memory is read and written when the operation executes; pageable memory is copied at the call.
#include <ctype.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ptx.h"

Emulator emulator = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

// ---------------------------------------------------------------------------------------------------------------
// Start and end

static size_t option_size(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    char *end;
    double value = strtod(text, &end);
    size_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : *end == 'G' ? 1 << 30 : 1;
    if (value <= 0 || (*end != '\0' && unit == 1)) fail("%s=%s is not a number of bytes (such as 256M)", name, text);
    return (size_t)(value * (double)unit);
}

static void options_read(Options *options) {
    options->memory_bytes = round_up(option_size("EMULATOR_MEMORY", (size_t)1 << 30), 4096);
    options->instruction_budget = option_size("EMULATOR_BUDGET", (size_t)2000 << 20);
    const char *checks = getenv("EMULATOR_CHECKS"), *order = getenv("EMULATOR_STREAMS"),
               *target = getenv("EMULATOR_TARGET");
    options->checks = !checks || strcmp(checks, "0") != 0;
    options->compute_capability = target ? atoi(target) : 80;
    if (options->compute_capability < 80 || options->compute_capability > 120) fail("EMULATOR_TARGET is 80 … 120");
    const char *devices = getenv("EMULATOR_DEVICES"), *pageable = getenv("EMULATOR_PAGEABLE");
    if (options->n_devices == 0) options->n_devices = devices ? atoi(devices) : 1;
    if (options->n_devices < 1) fail("EMULATOR_DEVICES=%s is not a number of devices", devices);
    const char *timeout = getenv("EMULATOR_TIMEOUT");
    options->timeout = timeout ? atof(timeout) : 20;
    if (!(options->timeout > 0)) fail("EMULATOR_TIMEOUT=%s is not a number of seconds", timeout);
    options->refuses_pageable = pageable && strcmp(pageable, "0") == 0;
    options->coverage = getenv("EMULATOR_COVERAGE");
    options->report_leaks = getenv("EMULATOR_LEAKS") != NULL;
    options->print_counts = getenv("EMULATOR_COUNTS") != NULL;
    options->stream_order = 1;
    if (!order || strcmp(order, "laziest") == 0) return;
    options->stream_order = strcmp(order, "eager") == 0 ? 0 : 2;
    char *end;
    options->seed = strtoull(order, &end, 10);
    if (options->stream_order == 2 && *end != '\0') fail("EMULATOR_STREAMS is eager, laziest or a number");
}

static void report_leaks(void) {
    for (size_t i = 0; i < emulator.n_allocations; i++) {
        const Allocation *a = &emulator.allocations[i];
        if (!a->freed && !a->is_variable) fprintf(stderr, "emulator: leak: '%s', %zu bytes\n", a->name, a->n_bytes);
    }
}

__attribute__((destructor)) static void emulator_finish(void) {
    if (!emulator.started) return;
    pthread_mutex_lock(&emulator.lock);  // from now on the helpers of nccl_ranks.c rest
    stream_finish();
    if (emulator.on_end) emulator.on_end(NULL);
    if (emulator.options.report_leaks) report_leaks();
    report_coverage();
    if (!emulator.options.print_counts) return;
    EmulatorCounts *c = &emulator.counts;
    fprintf(stderr,
            "emulator: %llu launches, %llu products, %llu copies, %llu warp instructions in %.3f s: %.1f million/s\n",
            (unsigned long long)c->launches, (unsigned long long)c->matmuls, (unsigned long long)c->copies,
            (unsigned long long)c->warp_instructions, c->kernel_seconds,
            1e-6 * (double)c->warp_instructions / (c->kernel_seconds > 0 ? c->kernel_seconds : 1));
}

static void emulator_start(void) {
    emulator.started = true;
    options_read(&emulator.options);
    emulator.random = emulator.options.seed;
    emulator.next_serial = 1;
    emulator.streams[0] = stream_create(0, true, 0);
    memory_start();
    shadow_create(&emulator.shared, "shared", SHARED_WINDOW, 0, SHARED_BYTES + RED_ZONE, true);
}

void emulator_enter(void) {
    pthread_mutex_lock(&emulator.lock);
    if (!emulator.started) emulator_start();
    if (emulator.in_host_function) fail("a host function of a stream calls the CUDA API");
}

EmulatorCounts emulator_counts(void) {
    API_ENTER;
    return emulator.counts;
}

void emulator_reset_counts(void) {
    API_ENTER;
    uint64_t live = emulator.counts.live_bytes;
    emulator.counts = (EmulatorCounts){.live_bytes = live};
}

void emulator_on_fault(void (*handler)(const char *message)) { emulator.on_fault = handler; }

static cudaError_t error(cudaError_t code) {
    if (code != cudaSuccess) emulator.last_error = code;
    return code;
}

// ---------------------------------------------------------------------------------------------------------------
// Allocations

cudaError_t cudaMalloc(void **pointer, size_t n_bytes) {
    API_ENTER;
    *pointer = NULL;
    device_use();
    if (n_bytes == 0) return cudaSuccess;
    *pointer = (void *)(uintptr_t)memory_allocate(n_bytes, "", false);
    return *pointer ? cudaSuccess : error(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *pointer) {
    API_ENTER;
    if (!pointer) return cudaSuccess;
    emulator.counts.device_synchronisations++;
    stream_synchronise_all();
    memory_free((uint64_t)(uintptr_t)pointer);
    return cudaSuccess;
}

static void host_range_add(void *pointer, size_t n_bytes, bool registered) {
    if (memory_is_pinned(pointer, 1)) fail("invalid argument: host memory %p is pinned already", pointer);
    emulator.host_ranges = grown(emulator.host_ranges, emulator.n_host_ranges, sizeof(HostRange));
    emulator.host_ranges[emulator.n_host_ranges++] = (HostRange){(uintptr_t)pointer, n_bytes, registered};
    emulator.counts.host_allocations++;
}

static HostRange host_range_remove(void *pointer, bool registered, const char *call) {
    for (size_t i = 0; i < emulator.n_host_ranges; i++) {
        HostRange range = emulator.host_ranges[i];
        if (range.base != (uintptr_t)pointer || range.registered != registered) continue;
        emulator.host_ranges[i] = emulator.host_ranges[--emulator.n_host_ranges];
        host_forget(pointer, range.n_bytes);
        return range;
    }
    fail("invalid argument: %s: %p is not such host memory", call, pointer);
}

// Not from malloc: a page of its own, and a fault after the end.
cudaError_t cudaHostAlloc(void **pointer, size_t n_bytes, unsigned int flags) {
    API_ENTER;
    (void)flags;
    *pointer = NULL;
    device_use();
    if (n_bytes == 0) return cudaSuccess;
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return error(cudaErrorMemoryAllocation);
    memset(memory, 0xff, n_bytes);
    host_range_add(memory, n_bytes, false);
    *pointer = memory;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t n_bytes) { return cudaHostAlloc(pointer, n_bytes, 0); }

cudaError_t cudaFreeHost(void *pointer) {
    API_ENTER;
    if (!pointer) return cudaSuccess;
    emulator.counts.device_synchronisations++;
    stream_synchronise_all();
    HostRange range = host_range_remove(pointer, false, "cudaFreeHost");
    munmap(pointer, range.n_bytes);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t n_bytes, unsigned int flags) {
    API_ENTER;
    (void)flags;
    device_use();
    if (!pointer || n_bytes == 0 || memory_is_device(pointer)) fail("invalid argument: cudaHostRegister: %p", pointer);
    host_range_add(pointer, n_bytes, true);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
    API_ENTER;
    stream_synchronise_all();
    host_range_remove(pointer, true, "cudaHostUnregister");
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    API_ENTER;
    *total_bytes = emulator.options.memory_bytes;
    *free_bytes = *total_bytes - emulator.counts.live_bytes;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    API_ENTER;
    memset(attributes, 0, sizeof(*attributes));
    bool is_device = memory_is_device(pointer), is_pinned = memory_is_pinned(pointer, 1);
    attributes->type = is_device ? cudaMemoryTypeDevice : is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    if (is_device) attributes->devicePointer = (void *)(uintptr_t)pointer;
    if (is_pinned) attributes->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Copies: rows of `width` bytes; a plain copy has one

typedef struct Copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    bool to_device, from_device;
    char *staged;  // pageable source, copied at the call; freed by the copy
} Copy;

static size_t copy_extent(size_t pitch, const Copy *c) {
    return c->height > 0 ? pitch * (c->height - 1) + c->width : 0;
}

static void copy_run(void *payload) {
    Copy *c = payload;
    if (c->from_device) memory_check(c->from, copy_extent(c->from_pitch, c), "cudaMemcpy's source");
    if (c->to_device) memory_check(c->to, copy_extent(c->to_pitch, c), "cudaMemcpy's destination");
    for (size_t y = 0; y < c->height; y++) {
        const char *from = c->from + y * c->from_pitch;
        char *to = c->to + y * c->to_pitch;
        if (c->from_device) shadow_touch((uint64_t)(uintptr_t)from, c->width, ACCESS_READ, "cudaMemcpy's source");
        if (c->to_device) shadow_touch((uint64_t)(uintptr_t)to, c->width, ACCESS_WRITE, "cudaMemcpy's destination");
        memmove(c->to_device ? memory_data(to) : to, c->from_device ? memory_data(from) : from, c->width);
    }
    free(c->staged);
}

// Which sides are on the device, by the pointers; the kind must agree.
static void copy_check_kind(Copy *c, enum cudaMemcpyKind kind) {
    static const char *const NAMES[] = {"HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"};
    c->to_device = memory_is_device(c->to);
    c->from_device = memory_is_device(c->from);
    if ((unsigned)kind > cudaMemcpyDefault) fail("invalid argument: cudaMemcpy: kind %d", (int)kind);
    if (kind == cudaMemcpyDefault) return;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device == c->to_device && from_device == c->from_device) return;
    fail("invalid argument: cudaMemcpy%s: the destination is %s memory, the source is %s memory", NAMES[kind],
         c->to_device ? "device" : "host", c->from_device ? "device" : "host");
}

// All of it or nothing: CUDA refuses a copy that leaves pinned memory on its way.
static bool host_is_pinned(const char *pointer, size_t n_bytes, const char *side) {
    bool first = memory_is_pinned(pointer, 1), last = memory_is_pinned(pointer + n_bytes - 1, 1);
    if (!memory_is_pinned(pointer, n_bytes) && (first || last)) {
        fail("invalid argument: cudaMemcpy's %s: %zu bytes at %p are partly pinned host memory", side, n_bytes,
             (const void *)pointer);
    }
    return first;
}

static void copy_push(Copy c, enum cudaMemcpyKind kind, cudaStream_t stream, bool waits) {
    if (c.width == 0 || c.height == 0) return;
    if (c.to_pitch < c.width || c.from_pitch < c.width) {
        fail("invalid argument: cudaMemcpy2D: a pitch is less than the width");
    }
    copy_check_kind(&c, kind);
    size_t to_bytes = copy_extent(c.to_pitch, &c), from_bytes = copy_extent(c.from_pitch, &c);
    if (c.from_device) memory_check(c.from, from_bytes, "cudaMemcpy's source");
    if (c.to_device) memory_check(c.to, to_bytes, "cudaMemcpy's destination");
    emulator.counts.copies++;
    emulator.counts.copied_bytes += c.width * c.height;
    bool is_pageable_source = !c.from_device && !host_is_pinned(c.from, from_bytes, "source");
    bool is_pageable_target = !c.to_device && !host_is_pinned(c.to, to_bytes, "destination");
    if (!waits && (is_pageable_source || is_pageable_target)) {
        emulator.counts.pageable_copies++;
        if (emulator.options.refuses_pageable) {
            fail(
                "pageable memory: cudaMemcpyAsync of %zu bytes: the host's side is not pinned, so the host waits "
                "(EMULATOR_PAGEABLE=0)",
                c.width * c.height);
        }
    }
    char name[96];
    snprintf(name, sizeof(name), "cudaMemcpy of %zu bytes", c.width * c.height);
    if (!c.from_device && !is_pageable_source) host_touch(stream, c.from, from_bytes, ACCESS_READ, name);
    if (!c.to_device && !is_pageable_target) host_touch(stream, c.to, to_bytes, ACCESS_WRITE, name);
    if (is_pageable_source && !waits) {
        c.staged = checked_alloc(from_bytes);
        memcpy(c.staged, c.from, from_bytes);
        c.from = c.staged;
    }
    stream_push(stream, name, copy_run, &c, sizeof(c));
    if (waits || is_pageable_target) stream_synchronise(stream);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    API_ENTER;
    copy_push((Copy){to, from, n_bytes, n_bytes, n_bytes, 1, false, false, NULL}, kind, stream, false);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind) {
    API_ENTER;
    emulator.counts.device_synchronisations++;
    copy_push((Copy){to, from, n_bytes, n_bytes, n_bytes, 1, false, false, NULL}, kind, NULL, true);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    API_ENTER;
    copy_push((Copy){to, from, to_pitch, from_pitch, width, height, false, false, NULL}, kind, stream, false);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
    API_ENTER;
    emulator.counts.device_synchronisations++;
    copy_push((Copy){to, from, to_pitch, from_pitch, width, height, false, false, NULL}, kind, NULL, true);
    return cudaSuccess;
}

typedef struct Fill {
    char *to;
    size_t pitch, width, height;
    int value;
} Fill;

static void fill_run(void *payload) {
    const Fill *f = payload;
    memory_check(f->to, f->pitch * (f->height - 1) + f->width, "cudaMemset");
    for (size_t y = 0; y < f->height; y++) {
        shadow_touch((uint64_t)(uintptr_t)(f->to + y * f->pitch), f->width, ACCESS_WRITE, "cudaMemset");
        memset(memory_data(f->to + y * f->pitch), f->value, f->width);
    }
}

static void fill_push(Fill f, cudaStream_t stream) {
    if (f.width == 0 || f.height == 0) return;
    if (f.pitch < f.width) fail("invalid argument: cudaMemset2D: the pitch is less than the width");
    memory_check(f.to, f.pitch * (f.height - 1) + f.width, "cudaMemset");
    emulator.counts.copies++;
    emulator.counts.copied_bytes += f.width * f.height;
    char name[96];
    snprintf(name, sizeof(name), "cudaMemset of %zu bytes", f.width * f.height);
    stream_push(stream, name, fill_run, &f, sizeof(f));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t stream) {
    API_ENTER;
    fill_push((Fill){to, n_bytes, n_bytes, 1, value}, stream);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t n_bytes) { return cudaMemsetAsync(to, value, n_bytes, NULL); }

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    API_ENTER;
    fill_push((Fill){to, pitch, width, height, value}, stream);
    return cudaSuccess;
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(to, pitch, value, width, height, NULL);
}

static char *symbol_address(const void *symbol, size_t n_bytes, size_t offset) {
    const Variable *variable = variable_of_host(symbol);
    if (!variable) fail("invalid argument: %p is not a variable of the device", symbol);
    if (offset > variable->n_bytes || n_bytes > variable->n_bytes - offset) {
        fail("invalid argument: %zu bytes at %zu of the variable %.*s, which has %zu", n_bytes, offset,
             (int)variable->name.n, variable->name.start, variable->n_bytes);
    }
    return (char *)(uintptr_t)variable->address + offset;
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t n_bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
    API_ENTER;
    return cudaMemcpyAsync(symbol_address(symbol, n_bytes, offset), from, n_bytes, kind, stream);
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n_bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
    API_ENTER;
    return cudaMemcpy(symbol_address(symbol, n_bytes, offset), from, n_bytes, kind);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t n_bytes, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    API_ENTER;
    return cudaMemcpyAsync(to, symbol_address(symbol, n_bytes, offset), n_bytes, kind, stream);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n_bytes, size_t offset,
                                 enum cudaMemcpyKind kind) {
    API_ENTER;
    return cudaMemcpy(to, symbol_address(symbol, n_bytes, offset), n_bytes, kind);
}
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    API_ENTER;
    *pointer = symbol_address(symbol, 0, 0);
    return cudaSuccess;
}
cudaError_t cudaGetSymbolSize(size_t *n_bytes, const void *symbol) {
    API_ENTER;
    symbol_address(symbol, 0, 0);
    *n_bytes = variable_of_host(symbol)->n_bytes;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Launches

static size_t shared_most(void) { return emulator.options.compute_capability == 80 ? 163 * 1024 : SHARED_BYTES; }

static Function *function_checked(const void *host) {
    Function *function = function_of_host(host);
    if (!function) fail("invalid argument: %p is not a kernel that nvcc compiled", host);
    function_decode(function);
    return function;
}

static void launch_check(const Function *f, dim3 grid, dim3 block, size_t shared) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > MOST_THREADS || block.z > 64) {
        fail("launch of %s: block of (%u,%u,%u) threads; 1 … 1024, z up to 64", f->pretty, block.x, block.y, block.z);
    }
    if (f->most_threads > 0 && threads > (uint64_t)f->most_threads) {
        fail("launch of %s: block of %llu threads, __launch_bounds__ says %d", f->pretty, (unsigned long long)threads,
             f->most_threads);
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) {
        fail("launch of %s: grid of (%u,%u,%u) blocks; x up to 2^31-1, y and z up to 65535, none 0", f->pretty, grid.x,
             grid.y, grid.z);
    }
    size_t limit = f->dynamic_limit;
    if (shared > limit || (limit <= SHARED_DEFAULT && shared + f->static_shared_bytes > SHARED_DEFAULT)) {
        fail(
            "launch of %s: %zu bytes of dynamic and %u of static shared memory, the limit is %zu "
            "(cudaFuncSetAttribute for more than 48 KiB)",
            f->pretty, shared, f->static_shared_bytes, limit);
    }
    if (shared + f->static_shared_bytes > shared_most()) {
        fail("launch of %s: %zu bytes of shared memory, the device has %zu", f->pretty, shared + f->static_shared_bytes,
             shared_most());
    }
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    API_ENTER;
    Function *f = function_checked(host);
    launch_check(f, grid, block, shared);
    Launch launch = {.function = f, .grid = grid, .block = block, .dynamic_shared = shared};
    if (f->parameter_bytes > sizeof(launch.parameters)) fail("launch of %s: too many parameters", f->pretty);
    for (size_t i = 0; i < f->n_parameters; i++) {
        memcpy(launch.parameters + f->parameters[i].offset, arguments[i], f->parameters[i].n_bytes);
    }
    emulator.counts.launches++;
    char name[96];
    snprintf(name, sizeof(name), "kernel %s", f->pretty);
    stream_push(stream, name, launch_run, &launch, offsetof(Launch, parameters) + f->parameter_bytes);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        cudaLaunchAttributeID id = config->attrs[i].id;
        if (id != cudaLaunchAttributeIgnore && id != cudaLaunchAttributeProgrammaticStreamSerialization) {
            fail("launch attribute %d is not emulated", (int)id);
        }
    }
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                            config->stream);
}

// kernel<<<grid, block, shared, stream>>> pushes its configuration, which the stub of the kernel pops.
static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
    API_ENTER;
    Function *f = function_checked(host);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) fail("cudaFuncSetAttribute: attribute %d", attribute);
    if (value < 0 || (size_t)value + f->static_shared_bytes > shared_most()) {
        fail("invalid argument: cudaFuncSetAttribute: %d bytes of dynamic shared memory for %s; the device has %zu",
             value, f->pretty, shared_most());
    }
    f->dynamic_limit = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
    API_ENTER;
    const Function *f = function_checked(host);
    memset(attributes, 0, sizeof(*attributes));
    attributes->sharedSizeBytes = f->static_shared_bytes;
    attributes->localSizeBytes = f->local_bytes;
    attributes->maxThreadsPerBlock = f->most_threads > 0 ? f->most_threads : MOST_THREADS;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 80;
    attributes->maxDynamicSharedSizeBytes = (int)f->dynamic_limit;
    return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) {
    (void)host, (void)config;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n_blocks, const void *host, int block,
                                                                   size_t shared, unsigned int flags) {
    API_ENTER;
    (void)flags;
    const Function *f = function_checked(host);
    size_t by_threads = block > 0 ? 2048 / (size_t)block : 0, used = shared + f->static_shared_bytes;
    size_t by_shared = used > 0 ? shared_most() / used : 32;
    size_t least = by_threads < by_shared ? by_threads : by_shared;
    *n_blocks = (int)(least < 32 ? least : 32);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, const void *host, int block, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n_blocks, host, block, shared, 0);
}
