// host.c - pinned host memory: what the streams and the host do with the same bytes must be ordered.
//
// Loads and stores of the host can't be seen. What is known: copies, and what a program says with
// emulator_host_reads/writes and emulator_call_reads/writes. Order is known when an operation is appended, so that is
// when a copy is checked, whenever it may execute, and a host function of which the program has said before what it
// touches; one that says it itself is checked when it executes.
//
// Invariant: of two notes on the same bytes, one of them a write, one is ordered before the other.
#include "state.h"

typedef struct HostNote {
    uintptr_t begin, end;
    AccessKind kind;
    Position position;
    Clock clock;
    char name[96];
} HostNote;

static const char *kind_name(AccessKind kind) { return kind == ACCESS_READ ? "read" : "write"; }

static bool is_conflict(const HostNote *a, const HostNote *b) {
    return a->begin < b->end && b->begin < a->end && (a->kind == ACCESS_WRITE || b->kind == ACCESS_WRITE);
}

// Whatever will race with the old note will race with this one.
static bool is_covered(const HostNote *old, const HostNote *by) {
    return old->begin >= by->begin && old->end <= by->end && clock_is_after(&by->clock, old->position) &&
           (by->kind == ACCESS_WRITE || old->kind == ACCESS_READ);
}

static void note_add(const HostNote *note) {
    if (!emulator.options.checks) return;
    size_t kept = 0;
    for (size_t i = 0; i < emulator.n_host_notes; i++) {
        const HostNote *old = &emulator.host_notes[i];
        if (is_conflict(old, note) && !clock_is_after(&note->clock, old->position) &&
            !clock_is_after(&old->clock, note->position)) {
            fail(
                "race between streams: %s of pinned host memory %p by %s, and %s by %s in another stream, which no "
                "event orders",
                kind_name(note->kind), (void *)note->begin, note->name, kind_name(old->kind), old->name);
        }
        if (!is_covered(old, note)) emulator.host_notes[kept++] = *old;
    }
    emulator.n_host_notes = kept;
    emulator.host_notes = grown(emulator.host_notes, kept, sizeof(HostNote));
    emulator.host_notes[emulator.n_host_notes++] = *note;
}

static HostNote note_of(const void *pointer, size_t n_bytes, AccessKind kind, const char *name) {
    HostNote note = {.begin = (uintptr_t)pointer, .end = (uintptr_t)pointer + n_bytes, .kind = kind};
    snprintf(note.name, sizeof(note.name), "%s", name);
    return note;
}

void host_touch(cudaStream_t stream, const void *pointer, size_t n_bytes, AccessKind kind, const char *name) {
    HostNote note = note_of(pointer, n_bytes, kind, name);
    note.position = stream_next(stream, &note.clock);
    note_add(&note);
}

void host_forget(const void *pointer, size_t n_bytes) {
    uintptr_t begin = (uintptr_t)pointer;
    size_t kept = 0;
    for (size_t i = 0; i < emulator.n_host_notes; i++) {
        const HostNote *note = &emulator.host_notes[i];
        if (note->end <= begin || note->begin >= begin + n_bytes) emulator.host_notes[kept++] = *note;
    }
    emulator.n_host_notes = kept;
}

// The host itself comes after what it has waited for, and before all that it appends from now on.
static void host_access(const void *pointer, size_t n_bytes, AccessKind kind) {
    HostNote note = note_of(pointer, n_bytes, kind, "a host function");
    if (n_bytes == 0 || !emulator.started || !emulator.options.checks) return;
    if (emulator.in_host_function && stream_executing(&note.position, &note.clock)) {
        note_add(&note);
        return;
    }
    for (size_t i = 0; i < emulator.n_host_notes; i++) {
        const HostNote *old = &emulator.host_notes[i];
        if (!is_conflict(old, &note) || clock_is_after(&emulator.host_clock, old->position)) continue;
        fail("race with the host: %s of pinned host memory %p, and %s by %s, for which the host has not waited",
             kind_name(kind), pointer, kind_name(old->kind), old->name);
    }
}

void emulator_host_reads(const void *pointer, size_t n_bytes) {
    pthread_mutex_lock(&emulator.lock);
    host_access(pointer, n_bytes, ACCESS_READ);
    pthread_mutex_unlock(&emulator.lock);
}

void emulator_host_writes(const void *pointer, size_t n_bytes) {
    pthread_mutex_lock(&emulator.lock);
    host_access(pointer, n_bytes, ACCESS_WRITE);
    pthread_mutex_unlock(&emulator.lock);
}

static void call_access(cudaStream_t stream, const void *pointer, size_t n_bytes, AccessKind kind) {
    if (memory_is_pinned(pointer, n_bytes)) host_touch(stream, pointer, n_bytes, kind, "a host function");
}

void emulator_call_reads(void *stream, const void *pointer, size_t n_bytes) {
    API_ENTER;
    call_access(stream, pointer, n_bytes, ACCESS_READ);
}

void emulator_call_writes(void *stream, const void *pointer, size_t n_bytes) {
    API_ENTER;
    call_access(stream, pointer, n_bytes, ACCESS_WRITE);
}
