// ptx_decode.c - the text of a function becomes instructions: operands are register offsets, labels are numbers.
//
// A statement is split into a guard, a mnemonic with its modifiers, and operands; ptx_decoders.c turns it into an
// instruction. Called functions are expanded in place. Names live in the scopes of the text's braces.
//
// Invariant: every branch has its target and every operand its register before the kernel is launched.
#include <ctype.h>
#include <stdarg.h>

#include "ptx_decode.h"

void decode_fail(Decoder *d, const char *format, ...) {
    char what[512], where[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    report_location(d->function, d->location, where, sizeof(where));
    fail("unknown instruction: %s: '%.*s'\n  in kernel %s, %s", what, (int)d->statement.all.n, d->statement.all.start,
         d->function->pretty, where);
}

// ---------------------------------------------------------------------------------------------------------------
// Registers and constants

int32_t register_new(Function *f, uint8_t n_bytes) {
    if (n_bytes == 0) return (int32_t)f->n_predicates++;
    int32_t offset = (int32_t)f->register_bytes;
    f->register_bytes += n_bytes * LANES;
    return offset;
}

int32_t constant(Decoder *d, uint64_t value, uint8_t n_bytes, bool is_dynamic_shared) {
    Function *f = d->function;
    for (size_t i = 0; i < f->n_constants; i++) {
        Constant *c = &f->constants[i];
        if (c->value == value && c->n_bytes == n_bytes && c->is_dynamic_shared == is_dynamic_shared) return c->offset;
    }
    Constant c = {value, register_new(f, n_bytes), n_bytes, is_dynamic_shared};
    f->constants = grown(f->constants, f->n_constants, sizeof(Constant));
    f->constants[f->n_constants++] = c;
    return c.offset;
}

static const char *const SPECIAL_NAMES[24] = {
    "%tid.x",       "%tid.y",       "%tid.z",   "%ntid.x",      "%ntid.y",      "%ntid.z",
    "%ctaid.x",     "%ctaid.y",     "%ctaid.z", "%nctaid.x",    "%nctaid.y",    "%nctaid.z",
    "%laneid",      "%warpid",      "%nwarpid", "%lanemask_eq", "%lanemask_le", "%lanemask_lt",
    "%lanemask_ge", "%lanemask_gt", "%smid",    "%nsmid",       "%gridid",      "%dynamic_smem_size"};

static int special_find(Text name) {
    for (int i = 0; i < 24; i++) {
        if (text_is(name, SPECIAL_NAMES[i])) return i;
    }
    return NOWHERE;
}

Name *name_find(Decoder *d, Text name) {
    for (size_t i = d->n_names; i-- > 0;) {
        Name *n = &d->names[i];
        if (n->kind != NAME_FAMILY) {
            if (n->name.n == name.n && memcmp(n->name.start, name.start, name.n) == 0) return n;
            continue;
        }
        if (name.n <= n->name.n || memcmp(n->name.start, name.start, n->name.n) != 0) continue;
        bool is_number = true;
        for (size_t j = n->name.n; j < name.n; j++) is_number &= isdigit((unsigned char)name.start[j]) != 0;
        if (is_number && strtoul(name.start + n->name.n, NULL, 10) < n->n_registers) return n;
    }
    return NULL;
}

Name *name_add(Decoder *d, Name name) {
    d->names = grown(d->names, d->n_names, sizeof(Name));
    d->names[d->n_names] = name;
    return &d->names[d->n_names++];
}

// The register behind a name, NOWHERE if it isn't one; *n_bytes becomes its width.
static int32_t register_find(Decoder *d, Text text, uint8_t *n_bytes) {
    int special = special_find(text);
    if (special != NOWHERE) {
        *n_bytes = 4;
        int32_t *index = &d->function->special[special];
        if (*index == NOWHERE) *index = register_new(d->function, 4);
        return *index;
    }
    Name *name = name_find(d, text);
    if (!name || (name->kind != NAME_REGISTER && name->kind != NAME_FAMILY)) return NOWHERE;
    size_t index = name->kind == NAME_FAMILY ? strtoul(text.start + name->name.n, NULL, 10) : 0;
    *n_bytes = name->n_bytes;
    if (name->registers[index] == NOWHERE) name->registers[index] = register_new(d->function, name->n_bytes);
    return name->registers[index];
}

// Where a shared variable of the module lies in this kernel's block; only those that it uses take room.
static uint32_t shared_place(Decoder *d, const Variable *variable) {
    for (size_t i = 0; i < d->n_placed; i++) {
        if (d->placed[i].name.start == variable->name.start) return d->placed[i].pc;
    }
    Function *f = d->function;
    uint32_t address = (uint32_t)round_up(f->static_shared_bytes, variable->align);
    f->static_shared_bytes = address + (uint32_t)variable->n_bytes;
    d->placed = grown(d->placed, d->n_placed, sizeof(Label));
    d->placed[d->n_placed++] = (Label){variable->name, address};
    return address;
}

// The value of a name of memory, or of a parameter; false: not a name.
bool symbol_value(Decoder *d, Text name, uint64_t *value, bool *is_dynamic) {
    Name *local = name_find(d, name);
    *is_dynamic = false;
    if (local && (local->kind == NAME_LOCAL || local->kind == NAME_SHARED)) return *value = local->address, true;
    for (size_t i = 0; i < d->function->n_parameters && d->expansions == 0; i++) {
        Parameter *p = &d->function->parameters[i];
        if (p->name.n == name.n && memcmp(p->name.start, name.start, name.n) == 0) return *value = p->offset, true;
    }
    Variable *variable = module_variable(d->module, name);
    if (!variable) return false;
    *is_dynamic = variable->is_dynamic;
    *value = variable->space != SPACE_SHARED ? variable->address : variable->is_dynamic ? 0 : shared_place(d, variable);
    return true;
}

bool number_value(Text text, uint64_t *value) {
    if (text.n == 0) return false;
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)text.n, text.start);
    if (word[0] == '0' && strchr("fFdD", word[1]) && word[1]) return *value = strtoull(word + 2, NULL, 16), true;
    if (!isdigit((unsigned char)word[0]) && !(word[0] == '-' && isdigit((unsigned char)word[1]))) return false;
    char *end;
    *value = word[0] == '-' ? (uint64_t)strtoll(word, &end, 0) : strtoull(word, &end, 0);
    while (*end == 'U' || *end == 'L') end++;
    return *end == '\0';
}

// A source: a register of this width, or a constant that becomes one. n_bytes 0: any register; *found is its width.
int32_t source(Decoder *d, Text text, uint8_t n_bytes, uint8_t *found) {
    uint8_t width = n_bytes;
    int32_t offset = register_find(d, text, &width);
    if (offset != NOWHERE) {
        if (n_bytes != 0 && width != n_bytes) decode_fail(d, "'%.*s' has the wrong width", (int)text.n, text.start);
        if (found) *found = width;
        return offset;
    }
    if (n_bytes == 0) n_bytes = 8;
    if (found) *found = n_bytes;
    uint64_t value;
    if (number_value(text, &value)) {
        if (n_bytes < 8) value &= ((uint64_t)1 << 8 * n_bytes) - 1;
        return constant(d, value, n_bytes, false);
    }
    bool is_dynamic;
    size_t plus = text_find(text, '+');
    if (!symbol_value(d, text_trim((Text){text.start, plus}), &value, &is_dynamic)) {
        decode_fail(d, "'%.*s' is not known", (int)text.n, text.start);
    }
    if (plus < text.n) value += strtoull(text.start + plus + 1, NULL, 0);
    d->has_dynamic |= is_dynamic;
    return constant(d, value, n_bytes, is_dynamic);
}

// A destination; "_" is nowhere.
int32_t destination(Decoder *d, Text text, uint8_t n_bytes, uint8_t *found) {
    if (text_is(text, "_")) return NOWHERE;
    uint8_t width = n_bytes;
    int32_t offset = register_find(d, text, &width);
    if (offset == NOWHERE || special_find(text) != NOWHERE) {
        decode_fail(d, "'%.*s' is not a register", (int)text.n, text.start);
    }
    if (found) {
        *found = width;
    } else if (width != n_bytes) {
        decode_fail(d, "'%.*s' has the wrong width", (int)text.n, text.start);
    }
    return offset;
}

int32_t predicate(Decoder *d, Text text) { return destination(d, text, 0, NULL); }

int32_t further_operand(Decoder *d, int32_t value) {
    Function *f = d->function;
    f->operands = grown(f->operands, f->n_operands, sizeof(int32_t));
    f->operands[f->n_operands++] = value;
    return (int32_t)f->n_operands - 1;
}

Instruction *emit(Decoder *d, Instruction instruction) {
    Function *f = d->function;
    instruction.location = d->location;
    f->code = grown(f->code, f->n_code, sizeof(Instruction));
    f->code[f->n_code] = instruction;
    return &f->code[f->n_code++];
}

// An instruction of this kind with the statement's guard.
Instruction begin(Decoder *d, Kind kind) {
    Statement *s = &d->statement;
    Instruction i = {.kind = (uint8_t)kind, .guard = NOWHERE, .d = NOWHERE, .s = {NOWHERE, NOWHERE, NOWHERE, NOWHERE}};
    if (s->guard.n > 0) i.guard = predicate(d, s->guard);
    i.guard_negated = s->guard_negated;
    i.type = (uint8_t)s->types[0];
    i.element = (uint8_t)type_bytes(s->types[0]);
    i.space = (uint8_t)s->space;
    i.operands = (uint32_t)d->function->n_operands;
    return i;
}

Text address_base(Text text) {
    text = text_trim((Text){text.start + 1, text.n - 2});
    return text_trim((Text){text.start, text_find(text, '+')});
}

// "[%rd1+16]" to s[0] and the immediate.
void address(Decoder *d, Instruction *i, Text text) {
    if (text.n < 2 || text.start[0] != '[') decode_fail(d, "'%.*s' is not an address", (int)text.n, text.start);
    text = text_trim((Text){text.start + 1, text.n - 2});
    size_t split = text_find(text, '+');
    if (split == text.n) {
        for (size_t j = 1; j < text.n; j++) {
            if (text.start[j] == '-') split = j;
        }
    }
    Text base = text_trim((Text){text.start, split}), rest = {text.start + split, text.n - split};
    if (rest.n > 0) {
        char word[64];
        rest = text_trim(rest.start[0] == '+' ? (Text){rest.start + 1, rest.n - 1} : rest);
        snprintf(word, sizeof(word), "%.*s", (int)rest.n, rest.start);
        i->immediate = strtoll(word, NULL, 0);
    }
    uint8_t width;
    i->s[0] = source(d, base, 0, &width);
    i->is_wide = width == 8;
}

// "{%f1, %f2}" or "%f1": adds the registers to the operand list.
uint32_t registers(Decoder *d, Text text, bool is_destination, uint8_t *width) {
    Text parts[16];
    size_t n = 1;
    parts[0] = text;
    if (text.n > 0 && text.start[0] == '{') n = text_split((Text){text.start + 1, text.n - 2}, parts, 16);
    uint8_t constant_width = *width ? *width : 4;
    for (size_t j = 0; j < n; j++) {
        uint8_t found = 0;
        uint64_t unused;
        int32_t r = is_destination ? destination(d, parts[j], 0, &found)
                                   : source(d, parts[j], number_value(parts[j], &unused) ? constant_width : 0, &found);
        if (r != NOWHERE) *width = found;
        further_operand(d, r);
    }
    return (uint32_t)n;
}

// ---------------------------------------------------------------------------------------------------------------
// Statements

void add_fixup(Decoder *d, Text name, uint32_t instruction, int32_t operand) {
    d->fixups = grown(d->fixups, d->n_fixups, sizeof(Fixup));
    d->fixups[d->n_fixups++] = (Fixup){name, instruction, operand, false};
}

void add_label(Decoder *d, Text name) {
    d->labels = grown(d->labels, d->n_labels, sizeof(Label));
    d->labels[d->n_labels++] = (Label){name, (uint32_t)d->function->n_code};
}

void scope_open(Decoder *d) {
    if (d->n_scopes == 64) decode_fail(d, "braces nested too deeply");
    d->scopes[d->n_scopes++] = (Scope){d->n_names, d->n_labels, d->n_fixups};
}

// Branches to labels of this scope are resolved; the others are left to the scope around.
void scope_close(Decoder *d) {
    Scope *scope = &d->scopes[--d->n_scopes];
    for (size_t i = scope->n_fixups; i < d->n_fixups; i++) {
        Fixup *f = &d->fixups[i];
        for (size_t j = scope->n_labels; j < d->n_labels && !f->is_resolved; j++) {
            Label *label = &d->labels[j];
            if (label->name.n != f->name.n || memcmp(label->name.start, f->name.start, f->name.n) != 0) continue;
            f->is_resolved = true;
            if (f->operand == NOWHERE) {
                d->function->code[f->instruction].target = label->pc;
            } else {
                d->function->operands[f->operand] = (int32_t)label->pc;
            }
        }
        if (!f->is_resolved && d->n_scopes == 0) decode_fail(d, "label '%.*s'", (int)f->name.n, f->name.start);
    }
    for (size_t i = scope->n_names; i < d->n_names; i++) free(d->names[i].registers);
    d->n_names = scope->n_names;
    d->n_labels = scope->n_labels;
}

static void classify_part(Statement *s, Text part) {
    static const struct {
        const char *name;
        Space space;
    } NAMES[] = {{"global", SPACE_GLOBAL},      {"const", SPACE_CONST},      {"shared", SPACE_SHARED},
                 {"local", SPACE_LOCAL},        {"param", SPACE_PARAM},      {"shared::cta", SPACE_SHARED},
                 {"param::entry", SPACE_PARAM}, {"param::func", SPACE_PARAM}};
    Type type = type_named(part);
    if (type != TYPE_NONE) {
        if (s->n_types < 3) s->types[s->n_types++] = type;
        return;
    }
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (!text_is(part, NAMES[i].name)) continue;
        if (s->space == SPACE_GENERIC) s->space = NAMES[i].space;
        return;
    }
    bool is_rounding = part.n >= 2 && part.n <= 3 && part.start[0] == 'r' && strchr("nzmp", part.start[1]);
    if (is_rounding && (part.n == 2 || part.start[2] == 'i')) {
        s->rounding = part.start[1];
        s->to_integral = part.n == 3;
    } else if (text_is(part, "ftz")) {
        s->flush = true;
    } else if (text_is(part, "sat")) {
        s->saturate = true;
    } else if (!text_is(part, "uni")) {
        s->rest[s->n_rest++] = part;
    }
}

static void statement_split(Decoder *d, Text text) {
    Statement *s = &d->statement;
    memset(s, 0, sizeof(*s));
    s->all = text;
    if (text.start[0] == '@') {
        size_t n = 1;
        while (n < text.n && !isspace((unsigned char)text.start[n])) n++;
        s->guard_negated = text.start[1] == '!';
        s->guard = (Text){text.start + 1 + s->guard_negated, n - 1 - s->guard_negated};
        text = text_trim((Text){text.start + n, text.n - n});
    }
    size_t n = 0;
    while (n < text.n && !isspace((unsigned char)text.start[n])) n++;
    for (size_t i = 0, begin_part = 0; i <= n; i++) {
        if (i < n && text.start[i] != '.') continue;
        if (s->n_parts == MOST_PARTS) decode_fail(d, "modifiers");
        s->parts[s->n_parts++] = (Text){text.start + begin_part, i - begin_part};
        begin_part = i + 1;
    }
    for (size_t i = 1; i < s->n_parts; i++) classify_part(s, s->parts[i]);
    s->n_operands = text_split((Text){text.start + n, text.n - n}, s->operands, MOST_OPERANDS);
}

static void decode_statement(Decoder *d, Text text) {
    statement_split(d, text);
    decoder_find(d->statement.parts[0])(d);
}

// ".reg .f32 %f<10>", ".reg .pred p, q"
static void declare_registers(Decoder *d, Text text) {
    text = text_trim((Text){text.start + 4, text.n - 4});
    size_t n = 0;
    while (n < text.n && !isspace((unsigned char)text.start[n])) n++;
    Type type = type_named((Text){text.start + 1, n - 1});
    uint8_t n_bytes = type == TYPE_PRED ? 0 : type_bytes(type) == 1 ? 2 : (uint8_t)type_bytes(type);
    if (type == TYPE_NONE) decode_fail(d, "register type");
    Text parts[64];
    size_t n_parts = text_split((Text){text.start + n, text.n - n}, parts, 64);
    for (size_t j = 0; j < n_parts; j++) {
        size_t open = text_find(parts[j], '<');
        Name name = {.kind = open < parts[j].n ? NAME_FAMILY : NAME_REGISTER, .n_bytes = n_bytes, .n_registers = 1};
        name.name = (Text){parts[j].start, open};
        if (name.kind == NAME_FAMILY) name.n_registers = (uint32_t)strtoul(parts[j].start + open + 1, NULL, 10);
        name.registers = checked_alloc((name.n_registers + 1) * sizeof(int32_t));
        for (uint32_t r = 0; r < name.n_registers; r++) name.registers[r] = NOWHERE;
        name_add(d, name);
    }
}

// ".local .align 16 .b8 name[16]", ".param .b32 param0", ".shared …": memory of the thread or the block.
static void declare_memory(Decoder *d, Text text, bool is_shared) {
    size_t align;
    Type type;
    Parameter declared = declaration_parse(text, &align, &type);
    uint32_t *top = is_shared ? &d->function->static_shared_bytes : &d->function->local_bytes;
    *top = (uint32_t)round_up(*top, align > 16 || is_shared ? align : 16);
    name_add(d, (Name){.kind = is_shared ? NAME_SHARED : NAME_LOCAL, .name = declared.name, .address = *top});
    *top += declared.n_bytes;
}

static uint32_t location_add(Decoder *d, Location location) {
    Function *f = d->function;
    for (size_t i = f->n_locations; i-- > 0;) {
        if (memcmp(&f->locations[i], &location, sizeof(location)) == 0) return (uint32_t)i;
    }
    f->locations = grown(f->locations, f->n_locations, sizeof(Location));
    f->locations[f->n_locations] = location;
    return (uint32_t)f->n_locations++;
}

// ".loc 2 123 5, function_name $L__info_string0, inlined_at 1 40 9"
static void decode_location(Decoder *d, Text line) {
    char word[256];
    snprintf(word, sizeof(word), "%.*s", (int)line.n, line.start);
    Location location = {0, 0, 0}, caller = {0, 0, 0};
    if (sscanf(word, ".loc %u %u", &location.file, &location.line) != 2 || location.line == 0) return;
    const char *inlined = strstr(word, "inlined_at");
    if (inlined && sscanf(inlined, "inlined_at %u %u", &caller.file, &caller.line) == 2) {
        Function *f = d->function;
        for (size_t i = f->n_locations; i-- > 1 && location.caller == 0;) {
            const Location *known = &f->locations[i];
            if (known->file == caller.file && known->line == caller.line) location.caller = (uint32_t)i;
        }
        if (location.caller == 0) location.caller = location_add(d, caller);
    }
    d->location = location_add(d, location);
}

static void decode_directive(Decoder *d, Text text) {
    d->statement.all = text;
    if (text_starts(text, ".reg")) {
        declare_registers(d, text);
    } else if (text_starts(text, ".local") || text_starts(text, ".param") || text_starts(text, ".shared")) {
        declare_memory(d, text, text_starts(text, ".shared"));
    } else if (!text_starts(text, ".pragma") && !text_starts(text, ".callprototype")) {
        decode_fail(d, "directive");
    }
}

static bool is_name_character(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

// A statement at the beginning of the text; returns how much it took.
static size_t decode_next(Decoder *d, Text text) {
    char c = text.start[0];
    if (isspace((unsigned char)c) || c == ';') return 1;
    if (c == '/' && text.n > 1 && text.start[1] == '/') return text_find(text, '\n');
    if (c == '{') return scope_open(d), 1;
    if (c == '}') return scope_close(d), 1;
    if (text_starts(text, ".loc") && text.n > 4 && isspace((unsigned char)text.start[4])) {
        size_t n = text_find(text, '\n');
        return decode_location(d, (Text){text.start, n}), n;
    }
    size_t n = 0;
    while (n < text.n && is_name_character(text.start[n])) n++;
    if (n > 0 && n < text.n && text.start[n] == ':' && text.start[n + 1] != ':') {
        Text name = {text.start, n}, rest = text_trim((Text){text.start + n + 1, text.n - n - 1});
        if (!text_starts(rest, ".branchtargets")) return add_label(d, name), n + 1;
        size_t end = text_find(rest, ';');
        name_add(d, (Name){.kind = NAME_TARGETS, .name = name, .targets = {rest.start + 14, end - 14}});
        return (size_t)(rest.start + end - text.start);
    }
    size_t end = text_find(text, ';');
    Text statement = text_trim((Text){text.start, end});
    if (c == '.') {
        decode_directive(d, statement);
    } else {
        decode_statement(d, statement);
    }
    return end + 1;
}

void decode_body(Decoder *d, Text body) {
    for (size_t i = 0; i < body.n;) i += decode_next(d, (Text){body.start + i, body.n - i});
}

void function_decode(Function *function) {
    if (function->is_decoded) return;
    Decoder d = {.function = function, .module = function->module};
    for (int i = 0; i < 24; i++) function->special[i] = NOWHERE;
    function->locations = grown(NULL, 0, sizeof(Location));
    function->locations[0] = (Location){0, 0, 0};
    function->n_locations = 1;
    scope_open(&d);
    decode_body(&d, function->body);
    memset(&d.statement, 0, sizeof(d.statement));
    emit(&d, begin(&d, KIND_EXIT));
    scope_close(&d);
    function->executed = checked_alloc(function->n_locations);
    function->register_bytes += 64;
    function->is_decoded = true;
    free(d.names);
    free(d.labels);
    free(d.placed);
    free(d.fixups);
}
