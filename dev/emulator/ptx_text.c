// ptx_text.c - the text of a PTX module: its functions (as text, decoded when launched), variables and source files.
//
// Invariant: nothing here looks into a function's body; a module that is never used costs one pass over its text.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>

#include "ptx.h"

// ---------------------------------------------------------------------------------------------------------------
// Slices of text

bool text_is(Text text, const char *word) { return strlen(word) == text.n && memcmp(text.start, word, text.n) == 0; }

bool text_starts(Text text, const char *word) {
    size_t n = strlen(word);
    return text.n >= n && memcmp(text.start, word, n) == 0;
}

static bool text_same(Text a, Text b) { return a.n == b.n && memcmp(a.start, b.start, a.n) == 0; }

Text text_trim(Text text) {
    while (text.n > 0 && isspace((unsigned char)text.start[0])) text.start++, text.n--;
    while (text.n > 0 && isspace((unsigned char)text.start[text.n - 1])) text.n--;
    return text;
}

size_t text_find(Text text, char c) {
    const char *found = memchr(text.start, c, text.n);
    return found ? (size_t)(found - text.start) : text.n;
}

static Text text_from(Text text, size_t i) { return (Text){text.start + i, text.n - i}; }

size_t text_split(Text text, Text *parts, size_t most) {
    size_t n = 0, begin = 0;
    int depth = 0;
    text = text_trim(text);
    if (text.n == 0) return 0;
    for (size_t i = 0; i <= text.n; i++) {
        char c = i < text.n ? text.start[i] : ',';
        if (c == '{' || c == '[' || c == '(') depth++;
        if (c == '}' || c == ']' || c == ')') depth--;
        if (c != ',' || (depth > 0 && i < text.n)) continue;
        if (n == most) fail("PTX: more than %zu operands in '%.*s'", most, (int)text.n, text.start);
        parts[n++] = text_trim((Text){text.start + begin, i - begin});
        begin = i + 1;
    }
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Types and declarations

static const struct {
    const char *name;
    size_t n_bytes;
} TYPE_TABLE[TYPES] = {
    [TYPE_NONE] = {"", 0},     [TYPE_PRED] = {"pred", 0},     [TYPE_B8] = {"b8", 1},   [TYPE_B16] = {"b16", 2},
    [TYPE_B32] = {"b32", 4},   [TYPE_B64] = {"b64", 8},       [TYPE_U8] = {"u8", 1},   [TYPE_U16] = {"u16", 2},
    [TYPE_U32] = {"u32", 4},   [TYPE_U64] = {"u64", 8},       [TYPE_S8] = {"s8", 1},   [TYPE_S16] = {"s16", 2},
    [TYPE_S32] = {"s32", 4},   [TYPE_S64] = {"s64", 8},       [TYPE_F16] = {"f16", 2}, [TYPE_F16X2] = {"f16x2", 4},
    [TYPE_BF16] = {"bf16", 2}, [TYPE_BF16X2] = {"bf16x2", 4}, [TYPE_F32] = {"f32", 4}, [TYPE_F64] = {"f64", 8},
    [TYPE_TF32] = {"tf32", 4},
};

Type type_named(Text name) {
    for (int t = 1; t < TYPES; t++) {
        if (text_is(name, TYPE_TABLE[t].name)) return (Type)t;
    }
    return TYPE_NONE;
}

size_t type_bytes(Type type) { return TYPE_TABLE[type].n_bytes; }

Parameter declaration_parse(Text text, size_t *align, Type *type) {
    Parameter parameter = {{NULL, 0}, 0, 0};
    *align = 0;
    *type = TYPE_NONE;
    text = text_trim(text);
    while (text.n > 0) {
        size_t n = 0;
        while (n < text.n && !isspace((unsigned char)text.start[n]) && text.start[n] != '[') n++;
        Text word = {text.start, n};
        text = text_trim(text_from(text, n));
        if (text_is(word, ".align") || text_is(word, ".ptr")) {
            if (text_is(word, ".align")) *align = strtoul(text.start, NULL, 10);
            if (!isdigit((unsigned char)(text.n ? text.start[0] : 0))) continue;
            size_t digits = 0;
            while (digits < text.n && isdigit((unsigned char)text.start[digits])) digits++;
            text = text_trim(text_from(text, digits));
        } else if (word.n > 0 && word.start[0] == '.') {
            Type named = type_named(text_from(word, 1));
            if (named != TYPE_NONE) *type = named;
        } else if (word.n > 0) {
            parameter.name = word;
        }
        if (text.n > 0 && text.start[0] == '[') {
            size_t end = text_find(text, ']');
            parameter.n_bytes = (uint32_t)strtoul(text.start + 1, NULL, 10);
            if (end == 1) parameter.n_bytes = 0;
            if (parameter.n_bytes == 0) parameter.offset = 1;  // "name[]": the size is not here
            text = text_trim(text_from(text, end < text.n ? end + 1 : end));
            parameter.n_bytes *= (uint32_t)type_bytes(*type);
            if (*align == 0) *align = type_bytes(*type);
            return parameter;
        }
    }
    parameter.n_bytes = (uint32_t)type_bytes(*type);
    if (*align == 0) *align = type_bytes(*type);
    return parameter;
}

static size_t parameters_parse(Text list, Parameter **parameters, uint32_t *n_bytes) {
    Text parts[512];
    size_t n = text_split(list, parts, 512);
    *parameters = checked_alloc((n + 1) * sizeof(Parameter));
    uint32_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        size_t align;
        Type type;
        Parameter p = declaration_parse(parts[i], &align, &type);
        offset = (uint32_t)round_up(offset, align > 0 ? align : 1);
        (*parameters)[i] = (Parameter){p.name, offset, p.n_bytes};
        offset += p.n_bytes;
    }
    *n_bytes = offset;
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Functions

static int32_t directive_threads(Text header) {
    static const char *const NAMES[] = {".maxntid", ".reqntid"};
    for (int i = 0; i < 2; i++) {
        const char *found = memmem(header.start, header.n, NAMES[i], strlen(NAMES[i]));
        if (!found) continue;
        int32_t threads = 1;
        char *end = (char *)found + strlen(NAMES[i]);
        do threads *= (int32_t)strtol(end + 1, &end, 10);
        while (*end == ',');
        return threads;
    }
    return 0;
}

// header: ".visible .entry name( parameters ) directives" or ".func (result) name( parameters )".
static void module_add_function(Module *module, Text header, Text body) {
    const char *entry = memmem(header.start, header.n, ".entry", 6), *func = memmem(header.start, header.n, ".func", 5);
    const char *word = entry ? entry : func;
    Text rest = text_trim((Text){word + (entry ? 6 : 5), (size_t)(header.start + header.n - word) - (entry ? 6 : 5)});
    Function function = {.module = module, .is_entry = entry != NULL, .body = body};
    function.most_threads = directive_threads(header);
    function.dynamic_limit = SHARED_DEFAULT;
    if (rest.n > 0 && rest.start[0] == '(') {
        size_t end = text_find(rest, ')'), align;
        Type type;
        function.result = declaration_parse((Text){rest.start + 1, end - 1}, &align, &type);
        rest = text_trim(text_from(rest, end + 1));
    }
    size_t open = text_find(rest, '('), close = text_find(rest, ')');
    Text name = text_trim((Text){rest.start, open});
    function.name = strndup(name.start, name.n);
    function.pretty = report_demangle(function.name);
    Text list = open < close && close < rest.n ? (Text){rest.start + open + 1, close - open - 1} : (Text){"", 0};
    function.n_parameters = parameters_parse(list, &function.parameters, &function.parameter_bytes);
    emulator.functions = grown(emulator.functions, emulator.n_functions, sizeof(Function *));
    emulator.functions[emulator.n_functions] = checked_alloc(sizeof(Function));
    *emulator.functions[emulator.n_functions++] = function;
}

Function *module_function(const Module *module, Text name) {
    for (size_t i = 0; i < emulator.n_functions; i++) {
        Function *f = emulator.functions[i];
        if (f->module == module && text_is(name, f->name)) return f;
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------
// Variables

Variable *module_variable(const Module *module, Text name) {
    for (size_t i = 0; i < emulator.n_variables; i++) {
        Variable *v = &emulator.variables[i];
        if (v->module == module && text_same(name, v->name)) return v;
    }
    return NULL;
}

// One initial value: a number, or the address of a variable, perhaps as generic(name) or name+4.
static uint64_t initial_value(const Module *module, Text word) {
    if (text_starts(word, "generic(")) word = (Text){word.start + 8, word.n - 9};
    if (text_starts(word, "0f") || text_starts(word, "0d")) return strtoull(word.start + 2, NULL, 16);
    if (word.n > 0 && (isdigit((unsigned char)word.start[0]) || word.start[0] == '-')) {
        return word.start[0] == '-' ? (uint64_t)strtoll(word.start, NULL, 0) : strtoull(word.start, NULL, 0);
    }
    size_t plus = text_find(word, '+');
    Variable *variable = module_variable(module, text_trim((Text){word.start, plus}));
    if (!variable) fail("PTX: the initial value '%.*s' is not understood", (int)word.n, word.start);
    return variable->address + (plus < word.n ? strtoull(word.start + plus + 1, NULL, 0) : 0);
}

static void variable_initialise(Variable *variable, Type type) {
    char *data = memory_data((const void *)variable->address);
    memset(data, 0, variable->n_bytes);
    shadow_set_state(&emulator.global, variable->address, variable->n_bytes, VALID);
    Text list = text_trim(variable->initial);
    if (list.n == 0) return;
    if (list.start[0] == '{') list = (Text){list.start + 1, list.n - 2};
    size_t element = type_bytes(type), offset = 0;
    while (list.n > 0 && offset + element <= variable->n_bytes) {
        size_t end = text_find(list, ',');
        uint64_t value = initial_value(variable->module, text_trim((Text){list.start, end}));
        memcpy(data + offset, &value, element);
        offset += element;
        list = text_from(list, end < list.n ? end + 1 : end);
    }
}

// ".visible .global .align 4 .b8 name[64] = {…}", also without the initial value.
static void module_add_variable(Module *module, Text text) {
    static const struct {
        const char *word;
        Space space;
    } SPACES_OF[] = {{".global", SPACE_GLOBAL}, {".const", SPACE_CONST}, {".shared", SPACE_SHARED}};
    size_t equals = text_find(text, '=');
    Text head = {text.start, equals};
    Variable variable = {.module = module, .space = SPACE_GENERIC};
    for (int i = 0; i < 3; i++) {
        if (memmem(head.start, head.n, SPACES_OF[i].word, strlen(SPACES_OF[i].word))) {
            variable.space = SPACES_OF[i].space;
        }
    }
    if (variable.space == SPACE_GENERIC) return;
    Type type;
    Parameter declared = declaration_parse(head, &variable.align, &type);
    variable.name = declared.name;
    variable.n_bytes = declared.n_bytes;
    variable.is_dynamic = variable.space == SPACE_SHARED && declared.offset == 1;
    if (equals < text.n) variable.initial = text_from(text, equals + 1);
    if (variable.space != SPACE_SHARED) {
        char name[64];
        snprintf(name, sizeof(name), "variable %.*s", (int)variable.name.n, variable.name.start);
        variable.address = memory_allocate(variable.n_bytes, name, true);
        if (variable.address == 0) fail("PTX: %s does not fit into the device's memory", name);
    }
    emulator.variables = grown(emulator.variables, emulator.n_variables, sizeof(Variable));
    emulator.variables[emulator.n_variables++] = variable;
    if (variable.space != SPACE_SHARED) variable_initialise(&emulator.variables[emulator.n_variables - 1], type);
}

// ---------------------------------------------------------------------------------------------------------------
// The module

static void module_add_file(Module *module, Text line) {
    char *end;
    size_t number = strtoul(line.start + 5, &end, 10);
    const char *open = strchr(end, '"'), *close = open ? strchr(open + 1, '"') : NULL;
    if (!close || number > 100000) return;
    while (module->n_files <= number) {
        module->files = grown(module->files, module->n_files, sizeof(char *));
        module->files[module->n_files++] = NULL;
    }
    module->files[number] = strndup(open + 1, (size_t)(close - open - 1));
}

static size_t skip_braces(const char *text, size_t n, size_t i) {
    int depth = 0;
    for (; i < n; i++) {
        if (text[i] == '/' && i + 1 < n && text[i + 1] == '/') {
            while (i < n && text[i] != '\n') i++;
        }
        if (text[i] == '"') {
            for (i++; i < n && text[i] != '"'; i++) {
            }
        }
        if (text[i] == '{') depth++;
        if (text[i] == '}' && --depth == 0) return i;
    }
    fail("PTX: a brace is not closed");
}

static bool is_line_directive(Text text) {
    return text_starts(text, ".version") || text_starts(text, ".target") || text_starts(text, ".address_size") ||
           text_starts(text, ".file");
}

// The end of the statement that begins at i: a newline, a semicolon, or a body in braces.
static size_t statement_end(const Module *module, size_t i) {
    const char *text = module->text;
    Text rest = {text + i, module->n_text - i};
    if (is_line_directive(rest)) return i + text_find(rest, '\n');
    bool has_value = false;
    for (size_t j = i; j < module->n_text; j++) {
        if (text[j] == '=') has_value = true;
        if (text[j] == ';') return j;
        if (text[j] != '{') continue;
        j = skip_braces(text, module->n_text, j);
        if (!has_value) return j;
    }
    return module->n_text;
}

void module_parse(Module *module) {
    if (module->is_parsed) return;
    module->is_parsed = true;
    for (size_t i = 0; i < module->n_text;) {
        if (module->text[i] == '/' && module->text[i + 1] == '/') {
            while (i < module->n_text && module->text[i] != '\n') i++;
            continue;
        }
        if (isspace((unsigned char)module->text[i]) || module->text[i] == ';') {
            i++;
            continue;
        }
        size_t end = statement_end(module, i);
        Text all = {module->text + i, end - i};
        size_t brace = text_find(all, '{');
        bool is_code = memmem(all.start, brace, ".entry", 6) || memmem(all.start, brace, ".func", 5);
        if (text_starts(all, ".file")) module_add_file(module, all);
        if (is_code && brace < all.n) {
            module_add_function(module, (Text){all.start, brace}, text_from(all, brace + 1));
        } else if (!is_code && !is_line_directive(all) && !text_starts(all, ".section")) {
            module_add_variable(module, all);
        }
        i = end + 1;
    }
}
