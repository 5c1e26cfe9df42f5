// report.c - faults and where they happened, and which source lines were executed.
//
// Invariant: fail() does not return; it says one thing, on stderr, and ends the process with status 1.
#include <stdarg.h>
#include <sys/file.h>
#include <unistd.h>

#include "ptx.h"

void fail(const char *format, ...) {
    char message[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "emulator: %s\n", message);
    fflush(stderr);
    if (emulator.on_end) emulator.on_end(message);
    if (emulator.on_fault) emulator.on_fault(message);
    _exit(1);
}

void *checked_alloc(size_t n_bytes) {
    void *memory = calloc(1, n_bytes > 0 ? n_bytes : 1);
    if (!memory) fail("the emulator is out of host memory (%zu bytes)", n_bytes);
    return memory;
}

void *grown(void *array, size_t n, size_t item_bytes) {
    if ((n & (n - 1)) != 0 && array) return array;
    void *memory = realloc(array, (n > 0 ? 2 * n : 1) * item_bytes);
    if (!memory) fail("the emulator is out of host memory (%zu items)", n);
    return memory;
}

// ---------------------------------------------------------------------------------------------------------------
// Names and places

// The C++ library that a program made by nvcc is linked with has this; in a C program names stay as they are.
extern char *__cxa_demangle(const char *name, char *buffer, size_t *n, int *status) __attribute__((weak));

char *report_demangle(const char *name) {
    int status = 1;
    char *pretty = __cxa_demangle ? __cxa_demangle(name, NULL, NULL, &status) : NULL;
    return pretty ? pretty : strdup(name);
}

static const char *file_name(const Function *function, uint32_t file) {
    const Module *module = function->module;
    return file < module->n_files && module->files[file] ? module->files[file] : "?";
}

// "file.cu:12", and where that line was inlined: "header.h:7, inlined at file.cu:12".
void report_location(const Function *function, uint32_t location, char *text, size_t n_text) {
    size_t n = 0;
    for (uint32_t place = location, depth = 0; place < function->n_locations && depth < 8; depth++) {
        const Location *l = &function->locations[place];
        if (l->line == 0) break;
        const char *path = file_name(function, l->file), *slash = strrchr(path, '/');
        n += (size_t)snprintf(text + n, n_text - n, "%s%s:%u", depth > 0 ? ", inlined at " : "",
                              slash ? slash + 1 : path, l->line);
        place = l->caller;
        if (place == 0 || n >= n_text) return;
    }
    if (n == 0) snprintf(text, n_text, "line unknown (-lineinfo)");
}

void warp_fail(const Warp *warp, const Instruction *instruction, uint32_t lane, const char *format, ...) {
    char what[2048], where[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    const Block *block = emulator.block;
    const dim3 *size = &block->launch->block;
    uint32_t thread = warp->index * LANES + lane;
    report_location(block->function, instruction->location, where, sizeof(where));
    fail("%s\n  in kernel %s, %s\n  block (%u,%u,%u) of (%u,%u,%u), thread (%u,%u,%u) of (%u,%u,%u)", what,
         block->function->pretty, where, block->index[0], block->index[1], block->index[2], block->launch->grid.x,
         block->launch->grid.y, block->launch->grid.z, thread % size->x, thread / size->x % size->y,
         thread / (size->x * size->y), size->x, size->y, size->z);
}

// ---------------------------------------------------------------------------------------------------------------
// Coverage: lines "PATH<tab>LINE<tab>0 or 1<tab>KERNEL", appended; coverage.sh adds them up.

static void cover_function(FILE *file, const Function *function) {
    for (size_t i = 1; i < function->n_locations; i++) {
        if (function->locations[i].line == 0) continue;
        uint32_t place = (uint32_t)i;
        for (uint32_t depth = 0; place != 0 && depth < 8; place = function->locations[place].caller, depth++) {
            const Location *l = &function->locations[place];
            fprintf(file, "%s\t%u\t%d\t%s\n", file_name(function, l->file), l->line, function->executed[i],
                    function->pretty);
        }
    }
}

// A kernel that was never launched: its lines, from the text.
static void cover_text(FILE *file, const Function *function) {
    Text rest = function->body;
    while (rest.n > 0) {
        size_t n = text_find(rest, '\n');
        Text line = text_trim((Text){rest.start, n});
        unsigned number, line_number;
        const bool is_place = text_starts(line, ".loc");
        if (is_place && sscanf(line.start, ".loc %u %u", &number, &line_number) == 2 && line_number > 0) {
            fprintf(file, "%s\t%u\t0\t%s\n", file_name(function, number), line_number, function->pretty);
        }
        n = n < rest.n ? n + 1 : n;
        rest = (Text){rest.start + n, rest.n - n};
    }
}

void report_coverage(void) {
    if (!emulator.options.coverage) return;
    FILE *file = fopen(emulator.options.coverage, "a");
    if (!file) return;
    flock(fileno(file), LOCK_EX);
    for (size_t m = 0; m < emulator.n_modules; m++) module_parse(emulator.modules[m]);
    for (size_t i = 0; i < emulator.n_functions; i++) {
        const Function *function = emulator.functions[i];
        if (!function->is_entry) continue;
        if (function->is_decoded) {
            cover_function(file, function);
        } else {
            cover_text(file, function);
        }
    }
    fclose(file);
}
