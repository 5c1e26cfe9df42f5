// ptx.h - PTX text, what it is decoded to, and the state of what runs.
//
// A register of a warp is 32 lanes side by side: 64 bytes for 16 bits each, 128 for 32, 256 for 64; a predicate is a
// mask of lanes. Constants and special registers (%tid.x) are registers as well, filled before a launch or a block.
// Functions that are called are expanded at the call; there is no call stack.
//
// Invariant: an instruction is either decoded completely, every modifier understood, or the launch fails by name.
#ifndef PTX_H
#define PTX_H

#include "order.h"

__extension__ typedef unsigned __int128 Wide;
__extension__ typedef __int128 SignedWide;

typedef enum {
    TYPE_NONE, TYPE_PRED,
    TYPE_B8, TYPE_B16, TYPE_B32, TYPE_B64,
    TYPE_U8, TYPE_U16, TYPE_U32, TYPE_U64,
    TYPE_S8, TYPE_S16, TYPE_S32, TYPE_S64,
    TYPE_F16, TYPE_F16X2, TYPE_BF16, TYPE_BF16X2, TYPE_F32, TYPE_F64, TYPE_TF32,
    TYPES
} Type;

typedef enum { SPACE_GENERIC, SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACES } Space;

typedef enum {
    KIND_NOTHING, KIND_LANES, KIND_COMPARE, KIND_SELECT,
    KIND_PREDICATE_MOVE, KIND_PREDICATE_NOT, KIND_PREDICATE_AND, KIND_PREDICATE_OR, KIND_PREDICATE_XOR,
    KIND_PACK, KIND_UNPACK, KIND_CARRY, KIND_CONVERT_ADDRESS, KIND_IS_SPACE, KIND_COUNTER,
    KIND_LOAD, KIND_STORE, KIND_LOAD_PARAM, KIND_ATOMIC,
    KIND_COPY_ASYNC, KIND_COPY_COMMIT, KIND_COPY_WAIT, KIND_LOAD_MATRIX, KIND_MMA,
    KIND_BRANCH, KIND_BRANCH_INDEX, KIND_EXIT, KIND_TRAP, KIND_PRINT, KIND_ASSERT,
    KIND_BARRIER, KIND_SYNCWARP, KIND_FENCE,
    KIND_SHUFFLE, KIND_VOTE, KIND_MATCH, KIND_REDUCE, KIND_ACTIVE_MASK, KIND_YIELD
} Kind;

enum { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_POPC, BARRIER_AND, BARRIER_OR };
enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { JOIN_NONE, JOIN_AND, JOIN_OR, JOIN_XOR };
enum { ATOMIC_ADD, ATOMIC_MIN, ATOMIC_MAX, ATOMIC_INC, ATOMIC_DEC, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_EXCH,
       ATOMIC_CAS };

struct Instruction;
// Computes all 32 lanes of `d` from up to four sources.
typedef void LanesFunction(void *d, const void *const *s, const struct Instruction *instruction);
// Compares all 32 lanes.
typedef uint32_t CompareFunction(const void *a, const void *b);

enum { NOWHERE = -1 };  // no guard, no destination

typedef struct Instruction {
    uint8_t kind, type;
    uint8_t element;       // bytes that a load, store or atomic moves for one register
    uint8_t d_bytes;       // of a lane of the destination register
    uint8_t space;
    uint8_t n_vector;      // registers moved by a load or store
    uint8_t mode;          // of what the kind names: SHUFFLE_, VOTE_, BARRIER_, ATOMIC_, JOIN_, bits, rounding
    bool is_read_only;     // ld.global.nc
    bool guard_negated, is_strong, is_saturated, flag, is_wide;  // is_wide: the address register has 64 bits
    uint8_t rounding;      // cvt to an integer: 'n', 'z', 'm', 'p'
    uint16_t control;      // MXCSR bits to set for rounding and flushing; 0: none
    int32_t guard;         // predicate, or NOWHERE
    int32_t d, s[4];       // offsets into a warp's registers, or predicates, or NOWHERE
    union {
        LanesFunction *lanes;
        CompareFunction *compare;
    };
    int64_t immediate;     // of an address, or a constant that the kind needs
    CompareFunction *pair_compare;
    uint32_t operands;     // first of the further operands in the kernel's list
    uint32_t n_operands;
    uint32_t target;       // of a branch
    uint32_t location;
} Instruction;

// Where an instruction comes from; `caller` is the place that the line was inlined into, 0: none.
typedef struct Location {
    uint32_t file, line, caller;
} Location;

typedef struct Text {
    const char *start;
    size_t n;
} Text;

typedef struct Constant {
    uint64_t value;
    int32_t offset;
    uint8_t n_bytes;
    bool is_dynamic_shared;  // the value is added to where the dynamic shared memory begins
} Constant;

typedef struct Parameter {
    Text name;
    uint32_t offset, n_bytes;
} Parameter;

// A function or kernel as text; a kernel gets its code at the first launch.
typedef struct Function {
    struct Module *module;
    char *name, *pretty;  // as in the object; demangled
    Text body;
    bool is_entry;
    Parameter *parameters;
    size_t n_parameters;
    Parameter result;  // n_bytes 0: none
    uint32_t parameter_bytes;
    int32_t most_threads;  // .maxntid or .reqntid; 0: no limit

    bool is_decoded, has_fences, has_named_barriers;
    bool has_partial_warps;  // __syncwarp with a mask that is not a constant with all lanes
    Instruction *code;
    size_t n_code;
    int32_t *operands;
    size_t n_operands;
    Constant *constants;
    size_t n_constants;
    Location *locations;
    size_t n_locations;
    uint8_t *executed;         // for each location
    uint32_t register_bytes, n_predicates, local_bytes, static_shared_bytes;
    int32_t special[24];       // registers of %tid.x …, NOWHERE if not used
    size_t dynamic_limit;      // cudaFuncAttributeMaxDynamicSharedMemorySize
} Function;

typedef struct Variable {
    struct Module *module;
    Text name;
    Space space;
    size_t n_bytes, align;
    bool is_dynamic;   // extern shared
    Text initial;      // after '='; empty: zero
    uint64_t address;  // in the arena, once the module is loaded
    const void *host;  // its shadow in the program, for cudaMemcpyToSymbol
} Variable;

typedef struct Module {
    const char *text;
    size_t n_text;
    bool is_parsed;
    char **files;  // by number
    size_t n_files;
} Module;

// ptx_text.c
void module_parse(Module *module);  // finds functions and variables, places variables in the arena
Variable *module_variable(const Module *module, Text name);
Function *module_function(const Module *module, Text name);
bool text_is(Text text, const char *word);
bool text_starts(Text text, const char *word);
Text text_trim(Text text);
size_t text_find(Text text, char c);                      // text.n if there is none
size_t text_split(Text text, Text *parts, size_t most);  // at commas outside of brackets
Type type_named(Text name);
size_t type_bytes(Type type);
Parameter declaration_parse(Text text, size_t *align, Type *type);  // ".align 4 .b8 name[128]"

// ptx_decode.c
void function_decode(Function *function);

// ptx_operations.c
typedef struct Table {
    const char *name;     // mnemonic and the modifiers that matter
    Type type;            // B: any type of that size
    const char *sources;  // bytes of each source's register, '*': as the type; NULL: all so
    uint8_t d_bytes;      // of the result; 0: as the type
    LanesFunction *lanes;
} Table;
const Table *operation_find(const char *name, Type type);
// ptx_convert.c: conversions and comparisons; register widths may be larger than the types
LanesFunction *conversion_find(Type to, size_t to_bytes, Type from, size_t from_bytes);
CompareFunction *comparison_find(const char *name, Type type);
LanesFunction set_pair;
LanesFunction *select_find(size_t n_bytes);
void lanes_blend(void *d, const void *s, uint32_t mask, size_t n_bytes);
void lanes_fill(void *d, uint64_t value, size_t n_bytes);

// ---------------------------------------------------------------------------------------------------------------
// What runs

typedef struct Launch {
    Function *function;
    dim3 grid, block;
    size_t dynamic_shared;
    char parameters[4096];
} Launch;

// Lanes that are at the same instruction; waiting: for other lanes to get there, or at a barrier.
typedef struct Fragment {
    uint32_t pc, mask;
    bool waiting;
} Fragment;

typedef struct PendingCopy {
    uint64_t to, from;
    uint32_t n_bytes, n_source, group;
    uint32_t lane;
    const Instruction *instruction;
} PendingCopy;

typedef struct Warp {
    uint32_t index;
    char *registers;
    uint32_t *predicates;
    uint32_t live;  // lanes that have not exited
    Fragment fragments[LANES];
    uint32_t n_fragments;
    bool has_waiting;  // lanes wait for other lanes of the warp
    bool went_on;      // and meanwhile others have written to memory
    bool at_barrier;
    uint32_t barrier, barrier_pc, barrier_threads;  // which, where, expected (0: all of the block)
    const Instruction *barrier_instruction;
    uint32_t carry;
    char *local;  // of each lane, local_bytes apart
    uint8_t *local_state;
    PendingCopy *copies;
    size_t n_copies;
    uint32_t group[LANES];  // of cp.async
} Warp;

typedef struct Block {
    const Launch *launch;
    Function *function;
    uint32_t index[3];
    uint32_t n_threads, n_warps;
    uint32_t dynamic_shared_at, shared_bytes;
    Warp warps[MOST_WARPS];
    struct {
        uint32_t arrived_warps;  // by bar.arrive, which does not wait
        uint32_t threads, value;
    } named[16];
    Order order;
    uint64_t budget;
    char *memory;  // registers and local memory of all warps, kept from launch to launch
    size_t n_memory;
} Block;

static inline void *warp_register(const Warp *warp, int32_t offset) { return warp->registers + offset; }

// ptx_run.c
void launch_run(void *payload);  // a Launch
__attribute__((format(printf, 4, 5), noreturn)) void warp_fail(const Warp *warp, const Instruction *instruction,
                                                               uint32_t lane, const char *format, ...);

// ptx_warp.c
void run_lanes(const Warp *warp, const Instruction *i, uint32_t mask);
void run_select(const Warp *warp, const Instruction *i, uint32_t mask);
void run_compare(Warp *warp, const Instruction *i, uint32_t mask);
void run_predicate(Warp *warp, const Instruction *i, uint32_t mask);
void run_pack(const Warp *warp, const Instruction *i, uint32_t mask);
void run_unpack(const Warp *warp, const Instruction *i, uint32_t mask);
void run_carry(Warp *warp, const Instruction *i, uint32_t mask);
void run_is_space(Warp *warp, const Instruction *i, uint32_t mask);
void run_counter(const Warp *warp, const Instruction *i, uint32_t mask);
// Shuffles, votes and the like: the lanes that may go on, of those that have arrived; and the instruction itself.
uint32_t lanes_ready(const Warp *warp, const Instruction *i, uint32_t arrived);
void run_together(Warp *warp, const Instruction *i, uint32_t mask);

static inline void set_predicate(Warp *warp, int32_t d, uint32_t value, uint32_t mask) {
    if (d != NOWHERE) warp->predicates[d] = (warp->predicates[d] & ~mask) | (value & mask);
}

// ptx_memory.c
void memory_load(Warp *warp, const Instruction *instruction, uint32_t mask);
void memory_store(Warp *warp, const Instruction *instruction, uint32_t mask);
void memory_load_parameter(Warp *warp, const Instruction *instruction, uint32_t mask);
void memory_atomic(Warp *warp, const Instruction *instruction, uint32_t mask);
void memory_convert_address(Warp *warp, const Instruction *instruction, uint32_t mask);
void copy_async(Warp *warp, const Instruction *instruction, uint32_t mask);
void copy_wait(Warp *warp, const Instruction *instruction, uint32_t mask);
void copy_check_exit(Warp *warp, const Instruction *instruction, uint32_t lanes);
void load_matrix(Warp *warp, const Instruction *instruction);
void print_lanes(Warp *warp, const Instruction *instruction, uint32_t mask);

// ptx_matrix.c
void mma_run(Warp *warp, const Instruction *instruction);

// fatbin.c
Function *function_of_host(const void *host_function);  // NULL: not registered
Variable *variable_of_host(const void *host_variable);

// report.c
void report_location(const Function *function, uint32_t location, char *text, size_t n_text);
void report_coverage(void);
char *report_demangle(const char *name);  // to be freed

#endif
