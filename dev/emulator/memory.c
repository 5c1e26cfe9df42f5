// memory.c - device memory: allocations with red zones, regions within them, and which host memory is pinned.
//
// Addresses that the program gets lie in a range that nothing is mapped to, so the host can't touch device memory
// without a fault; the bytes are elsewhere (shadow->data). Addresses are not used again after a free.
//
//     | red zone | allocation | red zone | freed | red zone | allocation: region, region, outside … | red zone |
//
// Invariant: a live allocation's bytes are FRESH or VALID, or OUTSIDE where it has regions and none is there.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

enum { ARENA_FACTOR = 16 };  // addresses for at least this many times the device's memory

// ---------------------------------------------------------------------------------------------------------------
// The arena

static void on_segmentation_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    if (address - emulator.global.base < emulator.arena_bytes) {
        char place[256];
        memory_describe(address, place, sizeof(place));
        fail("host access to device memory: 0x%llx: %s", (unsigned long long)address, place);
    }
    signal(number, SIG_DFL);  // not ours: happens again, and ends the process
}

void memory_start(void) {
    emulator.arena_bytes = 1;  // a power of two
    while (emulator.arena_bytes < emulator.options.memory_bytes * ARENA_FACTOR) emulator.arena_bytes *= 2;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *arena = mmap(NULL, emulator.arena_bytes, PROT_NONE, flags, -1, 0);
    void *lines =
        mmap(NULL, emulator.arena_bytes / LINE_BYTES * sizeof(uint32_t), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (arena == MAP_FAILED || lines == MAP_FAILED) fail("no address space for %zu bytes", emulator.arena_bytes);
    emulator.region_of = lines;
    emulator.arena_used = RED_ZONE;
    shadow_create(&emulator.global, "global", (uint64_t)(uintptr_t)arena, emulator.arena_bytes, emulator.arena_bytes,
                  true);
    emulator.regions = grown(NULL, 0, sizeof(Region));
    memset(&emulator.regions[0], 0, sizeof(Region));
    emulator.n_regions = 1;
    struct sigaction action = {.sa_sigaction = on_segmentation_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}

char *memory_data(const void *pointer) { return shadow_data(&emulator.global, (uint64_t)(uintptr_t)pointer); }

bool memory_is_device(const void *pointer) {
    return emulator.started && (uint64_t)(uintptr_t)pointer - emulator.global.base < emulator.arena_bytes;
}

// ---------------------------------------------------------------------------------------------------------------
// Allocations

uint64_t memory_allocate(size_t n_bytes, const char *name, bool is_variable) {
    size_t taken = round_up(n_bytes, RED_ZONE);
    if (taken > emulator.options.memory_bytes - emulator.counts.live_bytes) return 0;
    if (taken + RED_ZONE > emulator.arena_bytes - emulator.arena_used) {
        fail("the emulator is out of device addresses; EMULATOR_MEMORY sets the size of the device");
    }
    Allocation allocation = {
        .base = emulator.global.base + emulator.arena_used, .n_bytes = n_bytes, .is_variable = is_variable};
    snprintf(allocation.name, sizeof(allocation.name), "%s", name);
    if (!is_variable) {
        snprintf(allocation.name, sizeof(allocation.name), "allocation %llu", (unsigned long long)++emulator.n_named);
        emulator.counts.allocations++;
    }
    emulator.arena_used += taken + RED_ZONE;
    emulator.counts.live_bytes += taken;
    emulator.allocations = grown(emulator.allocations, emulator.n_allocations, sizeof(Allocation));
    emulator.allocations[emulator.n_allocations++] = allocation;
    shadow_set_state(&emulator.global, allocation.base, n_bytes, FRESH);
    memset(memory_data((void *)(uintptr_t)allocation.base), 0xff, n_bytes);
    return allocation.base;
}

Allocation *memory_find(uint64_t address) {
    size_t low = 0, high = emulator.n_allocations;  // the first that begins beyond
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (emulator.allocations[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? &emulator.allocations[low - 1] : NULL;
}

void memory_free(uint64_t address) {
    Allocation *allocation = memory_find(address);
    if (!allocation || allocation->base != address || allocation->is_variable) {
        fail("free of a pointer that was not allocated: 0x%llx", (unsigned long long)address);
    }
    if (allocation->freed) fail("double free: 0x%llx, '%s'", (unsigned long long)address, allocation->name);
    allocation->freed = true;
    shadow_set_state(&emulator.global, address, allocation->n_bytes, FREED);
    emulator.counts.live_bytes -= round_up(allocation->n_bytes, RED_ZONE);
    emulator.counts.frees++;
    uintptr_t begin = (uintptr_t)memory_data((void *)(uintptr_t)address), page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = round_up(begin, page), end = (begin + allocation->n_bytes) / page * page;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

void memory_check(const void *pointer, size_t n_bytes, const char *what) {
    uint64_t address = (uint64_t)(uintptr_t)pointer;
    Allocation *allocation = memory_is_device(pointer) ? memory_find(address) : NULL;
    if (!allocation) fail("invalid argument: %s: %p is not device memory", what, pointer);
    char place[256];
    memory_describe(address, place, sizeof(place));
    if (allocation->freed) fail("use after free: %s: %p: %s", what, pointer, place);
    if (address - allocation->base > allocation->n_bytes ||
        n_bytes > allocation->n_bytes - (address - allocation->base)) {
        fail("invalid argument: %s: %zu bytes at %p reach beyond the allocation: %s", what, n_bytes, pointer, place);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Regions

typedef struct RegionRequest {
    uint64_t base;
    size_t n_bytes;
    char name[64];
} RegionRequest;

static uint32_t region_record(const RegionRequest *request) {
    uint32_t old = emulator.region_of[(request->base - emulator.global.base) / LINE_BYTES];
    Region *region = &emulator.regions[old];
    if (old == 0 || region->live || region->base != request->base) {
        emulator.regions = grown(emulator.regions, emulator.n_regions, sizeof(Region));
        old = (uint32_t)emulator.n_regions++;
        region = &emulator.regions[old];
    }
    *region =
        (Region){.base = request->base, .n_bytes = request->n_bytes, .live = true, .serial = stream_take_serials(0)};
    memcpy(region->name, request->name, sizeof(region->name));
    return old;
}

static void region_begin(void *payload) {
    const RegionRequest *request = payload;
    memory_check((void *)(uintptr_t)request->base, request->n_bytes, "emulator_region");
    if (request->base % LINE_BYTES != 0) fail("invalid argument: emulator_region: '%s' is not aligned", request->name);
    Allocation *allocation = memory_find(request->base);
    if (!allocation->has_regions) shadow_set_state(&emulator.global, allocation->base, allocation->n_bytes, OUTSIDE);
    allocation->has_regions = true;
    bool is_free = shadow_is_all(request->base, request->n_bytes, OUTSIDE);
    for (size_t i = 0; i < request->n_bytes && !is_free; i++) {
        if (shadow_is_all(request->base + i, 1, OUTSIDE)) continue;
        char place[256];
        memory_describe(request->base + i, place, sizeof(place));
        fail("overlapping regions: '%s', %zu bytes, begins over %s", request->name, request->n_bytes, place);
    }
    shadow_take(request->base, request->n_bytes, "the beginning of a region");
    uint32_t id = region_record(request);
    size_t first = (request->base - emulator.global.base) / LINE_BYTES;
    for (size_t i = 0; i < (request->n_bytes + LINE_BYTES - 1) / LINE_BYTES; i++) emulator.region_of[first + i] = id;
    shadow_set_state(&emulator.global, request->base, request->n_bytes, FRESH);
    // Where reads are checked nobody will see what is there.
    if (!emulator.options.checks) memset(memory_data((void *)(uintptr_t)request->base), 0xff, request->n_bytes);
}

static void region_end(void *payload) {
    uint64_t base = *(uint64_t *)payload;
    Region *region = &emulator.regions[emulator.region_of[(base - emulator.global.base) / LINE_BYTES]];
    if (!region->live || region->base != base) fail("invalid argument: emulator_region_end: no region begins there");
    shadow_take(base, region->n_bytes, "the end of a region");
    shadow_set_state(&emulator.global, base, region->n_bytes, OUTSIDE);
    region->live = false;
}

void emulator_region(void *pointer, size_t n_bytes, const char *name, void *stream) {
    API_ENTER;
    RegionRequest request = {.base = (uint64_t)(uintptr_t)pointer, .n_bytes = n_bytes};
    snprintf(request.name, sizeof(request.name), "%s", name);
    memory_check(pointer, n_bytes, "emulator_region");
    if (n_bytes > 0) stream_push(stream, "emulator_region", region_begin, &request, sizeof(request));
}

void emulator_region_end(void *pointer, void *stream) {
    API_ENTER;
    uint64_t base = (uint64_t)(uintptr_t)pointer;
    memory_check(pointer, 0, "emulator_region_end");
    stream_push(stream, "emulator_region_end", region_end, &base, sizeof(base));
}

void emulator_name(const void *pointer, const char *name) {
    API_ENTER;
    memory_check(pointer, 0, "emulator_name");
    Allocation *allocation = memory_find((uint64_t)(uintptr_t)pointer);
    snprintf(allocation->name, sizeof(allocation->name), "%s", name);
}

void memory_grant(uint64_t address, uint64_t launch) {
    if (address - emulator.global.base >= emulator.arena_bytes) return;
    uint32_t id = emulator.region_of[(address - emulator.global.base) / LINE_BYTES];
    if (id != 0) emulator.regions[id].granted = launch;
}

// ---------------------------------------------------------------------------------------------------------------
// Words for an address

static int describe_region(uint64_t address, char *text, size_t n_text) {
    size_t line = (address - emulator.global.base) / LINE_BYTES, back = 0;
    while (emulator.region_of[line - back] == 0 && back < line && back < 65536) back++;
    const Region *region = &emulator.regions[emulator.region_of[line - back]];
    if (region->n_bytes == 0) return 0;
    long long past = (long long)(address - region->base) - (long long)region->n_bytes;
    if (past >= 0) {
        return snprintf(text, n_text, "%lld bytes past the end of region '%s' (%zu bytes) of ", past, region->name,
                        region->n_bytes);
    }
    return snprintf(text, n_text, "byte %llu of %sregion '%s' (%zu bytes) of ",
                    (unsigned long long)(address - region->base), region->live ? "" : "the former ", region->name,
                    region->n_bytes);
}

void memory_describe(uint64_t address, char *text, size_t n_text) {
    Allocation *allocation = address - emulator.global.base < emulator.arena_bytes ? memory_find(address) : NULL;
    bool is_first = !allocation && address - emulator.global.base < emulator.arena_bytes && emulator.n_allocations > 0;
    if (is_first) allocation = &emulator.allocations[0];
    if (!allocation) {
        bool is_pinned = memory_is_pinned((void *)(uintptr_t)address, 1);
        snprintf(text, n_text, "%s",
                 is_pinned ? "pinned host memory" : "no device memory at all: a host or wild pointer");
        return;
    }
    const Allocation *next = allocation + !is_first;
    bool has_next = next < emulator.allocations + emulator.n_allocations;
    long long past = is_first ? INT64_MAX : (long long)(address - allocation->base) - (long long)allocation->n_bytes;
    int n = allocation->has_regions && past < 0 ? describe_region(address, text, n_text) : 0;
    if (past < 0) {
        snprintf(text + n, n_text - (size_t)n, "byte %llu of '%s' (%zu bytes%s)",
                 (unsigned long long)(address - allocation->base), allocation->name, allocation->n_bytes,
                 allocation->freed ? ", freed" : "");
    } else if (has_next && (long long)(next->base - address) < past) {
        snprintf(text, n_text, "%llu bytes before '%s' (%zu bytes)", (unsigned long long)(next->base - address),
                 next->name, next->n_bytes);
    } else {
        snprintf(text, n_text, "%lld bytes past the end of '%s' (%zu bytes)", past, allocation->name,
                 allocation->n_bytes);
    }
}

bool memory_is_pinned(const void *pointer, size_t n_bytes) {
    uintptr_t address = (uintptr_t)pointer;
    for (size_t i = 0; i < emulator.n_host_ranges; i++) {
        const HostRange *range = &emulator.host_ranges[i];
        if (address - range->base < range->n_bytes && n_bytes <= range->n_bytes - (address - range->base)) return true;
    }
    return false;
}
