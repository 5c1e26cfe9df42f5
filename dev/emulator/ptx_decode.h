// ptx_decode.h - what the two halves of the decoder share: ptx_decode.c reads names and statements, ptx_decoders.c
// knows the instructions.
//
// Invariant: what is not understood in full, modifiers included, is a fault that names the instruction and its line.
#ifndef PTX_DECODE_H
#define PTX_DECODE_H

#include "ptx.h"

enum { MOST_PARTS = 16, MOST_OPERANDS = 24 };

typedef struct Statement {
    Text all, guard;
    bool guard_negated;
    Text parts[MOST_PARTS];  // "cvt", "rn", "bf16", "f32"
    size_t n_parts;
    Text operands[MOST_OPERANDS];
    size_t n_operands;
    Type types[3];
    size_t n_types;
    Space space;
    char rounding;    // 'n' 'z' 'm' 'p', 0: not given
    bool to_integral;  // .rni …
    bool flush, saturate;
    Text rest[MOST_PARTS];  // modifiers that are none of these
    size_t n_rest;
} Statement;

// What a name in scope means: a register, a family of registers (%f<10>), or memory.
typedef enum { NAME_REGISTER, NAME_FAMILY, NAME_LOCAL, NAME_SHARED, NAME_TARGETS } NameKind;
typedef struct Name {
    NameKind kind;
    Text name;
    uint8_t n_bytes;    // of a register; 0: a predicate
    int32_t *registers;  // offsets or numbers of predicates, NOWHERE before the first use
    uint32_t n_registers;
    uint32_t address;
    Text targets;
} Name;

typedef struct Label {
    Text name;
    uint32_t pc;  // or where in shared memory
} Label;

typedef struct Fixup {
    Text name;
    uint32_t instruction;
    int32_t operand;  // NOWHERE: the instruction's target
    bool is_resolved;
} Fixup;

typedef struct Scope {
    size_t n_names, n_labels, n_fixups;
} Scope;

typedef struct Decoder {
    Function *function;  // the kernel
    const Module *module;
    Text function_name;  // whose text is being read
    Name *names;
    size_t n_names;
    Label *labels, *placed;
    size_t n_labels, n_placed;
    Fixup *fixups;
    size_t n_fixups;
    Scope scopes[64];
    size_t n_scopes;
    Statement statement;
    uint32_t location;
    Location *locations;
    size_t expansions;  // depth of expanded calls
    bool has_dynamic;
} Decoder;

// Ends the process: the statement at hand is not one that the interpreter knows.
__attribute__((format(printf, 2, 3), noreturn)) void decode_fail(Decoder *d, const char *format, ...);

// Operands. A source of n_bytes 0 may have any width, which *found tells; constants become registers.
int32_t register_new(Function *f, uint8_t n_bytes);  // n_bytes 0: a predicate
int32_t constant(Decoder *d, uint64_t value, uint8_t n_bytes, bool is_dynamic_shared);
int32_t source(Decoder *d, Text text, uint8_t n_bytes, uint8_t *found);
int32_t destination(Decoder *d, Text text, uint8_t n_bytes, uint8_t *found);
int32_t predicate(Decoder *d, Text text);
void address(Decoder *d, Instruction *i, Text text);
Text address_base(Text text);
uint32_t registers(Decoder *d, Text text, bool is_destination, uint8_t *width);
bool number_value(Text text, uint64_t *value);
bool symbol_value(Decoder *d, Text name, uint64_t *value, bool *is_dynamic);
Name *name_find(Decoder *d, Text name);
Name *name_add(Decoder *d, Name name);

// Instructions.
Instruction begin(Decoder *d, Kind kind);
Instruction *emit(Decoder *d, Instruction instruction);
int32_t further_operand(Decoder *d, int32_t value);
void add_fixup(Decoder *d, Text name, uint32_t instruction, int32_t operand);
void add_label(Decoder *d, Text name);
void scope_open(Decoder *d);
void scope_close(Decoder *d);
void decode_body(Decoder *d, Text body);

// The decoder of a mnemonic; plain arithmetic's if it has none of its own.
void (*decoder_find(Text mnemonic))(Decoder *d);

#endif
