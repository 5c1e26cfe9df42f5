// ptx_decoders.c - what each PTX instruction means: its modifiers and operands.
//
// Plain arithmetic is looked up in the table of ptx_operations.c; the rest has a decoder of its own here (DECODERS).
//
// Invariant: a modifier that a decoder doesn't name is a fault; none is skipped because it looks harmless.
#include "ptx_decode.h"

static void want_operands(Decoder *d, size_t least, size_t most) {
    size_t n = d->statement.n_operands;
    if (n < least || n > most) decode_fail(d, "%zu operands", n);
}

static bool has_rest(Statement *s, const char *word) {
    for (size_t i = 0; i < s->n_rest; i++) {
        if (text_is(s->rest[i], word)) return true;
    }
    return false;
}

// Every remaining modifier must be one of the words, which are separated by spaces.
static void allow_rest(Decoder *d, const char *words) {
    Statement *s = &d->statement;
    for (size_t i = 0; i < s->n_rest; i++) {
        char word[64];
        snprintf(word, sizeof(word), " %.*s ", (int)s->rest[i].n, s->rest[i].start);
        if (!strstr(words, word)) decode_fail(d, "modifier .%.*s", (int)s->rest[i].n, s->rest[i].start);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic

static uint16_t control_bits(const Statement *s) {
    uint16_t bits = s->flush ? 0x8040 : 0;
    if (s->rounding == 'm') bits |= 0x2000;
    if (s->rounding == 'p') bits |= 0x4000;
    if (s->rounding == 'z') bits |= 0x6000;
    return bits;
}

static void decode_predicates(Decoder *d, Kind kind) {
    Statement *s = &d->statement;
    Instruction i = begin(d, kind);
    i.d = predicate(d, s->operands[0]);
    for (size_t j = 1; j < s->n_operands; j++) {
        uint64_t value;
        if (number_value(s->operands[j], &value)) {
            i.immediate = value != 0;
        } else {
            i.s[j - 1] = predicate(d, s->operands[j]);
        }
    }
    emit(d, i);
}

static void decode_arithmetic(Decoder *d) {
    Statement *s = &d->statement;
    char name[64];
    int n = snprintf(name, sizeof(name), "%.*s", (int)s->parts[0].n, s->parts[0].start);
    for (size_t j = 0; j < s->n_rest; j++) {
        if (text_is(s->rest[j], "approx") || text_is(s->rest[j], "full")) continue;
        n += snprintf(name + n, sizeof(name) - (size_t)n, ".%.*s", (int)s->rest[j].n, s->rest[j].start);
        if (n >= (int)sizeof(name)) decode_fail(d, "modifiers");
    }
    Type type = s->types[text_is(s->parts[0], "slct") ? 1 : 0];  // slct's first type is that of what it moves
    bool is_integer = type < TYPE_F16;
    if (s->saturate && is_integer) strncat(name, ".sat", sizeof(name) - strlen(name) - 1);
    const Table *row = operation_find(name, type);
    if (s->saturate && !is_integer && type != TYPE_F32) decode_fail(d, ".sat of this type");
    if (!row || s->n_types > 2 || s->n_operands < 2 || s->n_operands > 5) decode_fail(d, "not emulated");
    Instruction i = begin(d, KIND_LANES);
    i.lanes = row->lanes;
    i.control = control_bits(s);
    i.is_saturated = s->saturate && !is_integer;
    uint8_t width = (uint8_t)type_bytes(type);
    i.d_bytes = row->d_bytes ? row->d_bytes : width;
    i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    for (size_t j = 1; j < s->n_operands; j++) {
        char c = row->sources ? row->sources[j - 1] : '*';
        i.s[j - 1] = source(d, s->operands[j], c == '*' ? width : (uint8_t)(c - '0'), NULL);
    }
    for (size_t j = s->n_operands - 1; j < 4; j++) i.s[j] = i.s[0];  // a function may read sources that it doesn't use
    emit(d, i);
}

static void decode_logic(Decoder *d) {
    Statement *s = &d->statement;
    if (s->types[0] != TYPE_PRED) {
        decode_arithmetic(d);
        return;
    }
    char c = s->parts[0].start[0];
    decode_predicates(d, c == 'a'   ? KIND_PREDICATE_AND
                         : c == 'o' ? KIND_PREDICATE_OR
                         : c == 'x' ? KIND_PREDICATE_XOR
                                    : KIND_PREDICATE_NOT);
}

static void decode_pack(Decoder *d, bool is_pack) {
    Statement *s = &d->statement;
    Instruction i = begin(d, is_pack ? KIND_PACK : KIND_UNPACK);
    uint8_t width = 0, whole = (uint8_t)type_bytes(s->types[0]);
    Text list = s->operands[is_pack ? 1 : 0];
    size_t n = 1;
    for (size_t j = 0; j < list.n; j++) n += list.start[j] == ',';
    width = (uint8_t)(whole / n);
    i.n_vector = (uint8_t)registers(d, list, !is_pack, &width);
    i.d_bytes = whole;
    i.mode = (uint8_t)(whole / i.n_vector);
    if (width != i.mode) decode_fail(d, "parts of the wrong width");
    if (is_pack) {
        i.d = destination(d, s->operands[0], whole, NULL);
    } else {
        i.s[0] = source(d, s->operands[1], whole, NULL);
    }
    emit(d, i);
}

static void decode_mov(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 2, 2);
    Text from = s->operands[1];
    if (s->types[0] == TYPE_PRED) {
        decode_predicates(d, KIND_PREDICATE_MOVE);
    } else if (s->operands[0].start[0] == '{' || from.start[0] == '{') {
        decode_pack(d, from.start[0] == '{');
    } else if (text_starts(from, "%clock") || text_is(from, "%globaltimer")) {
        Instruction i = begin(d, KIND_COUNTER);
        i.d = destination(d, s->operands[0], 0, &i.d_bytes);
        emit(d, i);
    } else {
        decode_arithmetic(d);
    }
}

// add.cc and addc, sub.cc and subc, mad.cc and madc: the carry is a flag of each lane.
static void decode_carry(Decoder *d) {
    Statement *s = &d->statement;
    bool is_mad = s->parts[0].start[0] == 'm', takes = s->parts[0].n == 4, gives = has_rest(s, "cc");
    if (!takes && !gives) {
        decode_arithmetic(d);
        return;
    }
    allow_rest(d, is_mad ? " cc lo hi " : " cc ");
    want_operands(d, is_mad ? 4 : 3, is_mad ? 4 : 3);
    Instruction i = begin(d, KIND_CARRY);
    i.d_bytes = (uint8_t)type_bytes(s->types[0]);
    i.mode = (uint8_t)((s->parts[0].start[0] == 's') | takes << 1 | gives << 2 | is_mad << 3 | has_rest(s, "hi") << 4);
    if (i.d_bytes != 4 && i.d_bytes != 8) decode_fail(d, "not emulated");
    i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    for (size_t j = 1; j < s->n_operands; j++) i.s[j - 1] = source(d, s->operands[j], i.d_bytes, NULL);
    emit(d, i);
}

static void decode_setp(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 3, 4);
    Instruction i = begin(d, KIND_COMPARE);
    char name[16];
    snprintf(name, sizeof(name), "%.*s", (int)s->parts[1].n, s->parts[1].start);
    i.compare = comparison_find(name, s->types[0]);
    if (!i.compare) decode_fail(d, "not emulated");
    i.control = s->flush ? 0x8040 : 0;
    i.mode = has_rest(s, "and") ? JOIN_AND : has_rest(s, "or") ? JOIN_OR : has_rest(s, "xor") ? JOIN_XOR : JOIN_NONE;
    Text first = s->operands[0];
    size_t bar = text_find(first, '|');
    i.d = predicate(d, text_trim((Text){first.start, bar}));
    i.s[3] = bar < first.n ? predicate(d, text_trim((Text){first.start + bar + 1, first.n - bar - 1})) : NOWHERE;
    uint8_t width = (uint8_t)type_bytes(s->types[0]);
    for (int j = 0; j < 2; j++) i.s[j] = source(d, s->operands[j + 1], width, NULL);
    if (s->n_operands == 4) {
        Text joined = s->operands[3];
        i.flag = joined.start[0] == '!';
        i.s[2] = predicate(d, i.flag ? text_trim((Text){joined.start + 1, joined.n - 1}) : joined);
    }
    emit(d, i);
}

// set of pairs of fp16 or bf16: each half by itself.
static void decode_set_pair(Decoder *d, const char *name) {
    Statement *s = &d->statement;
    Type to = s->types[0];
    Instruction i = begin(d, KIND_LANES);
    i.lanes = set_pair;
    i.pair_compare = comparison_find(name, s->types[1] == TYPE_F16X2 ? TYPE_F16 : TYPE_BF16);
    i.immediate = to == TYPE_F16X2 ? 0x3c00 : to == TYPE_BF16X2 ? 0x3f80 : 0xffff;
    i.d_bytes = 4;
    if (!i.pair_compare || type_bytes(to) != 4) decode_fail(d, "not emulated");
    i.d = destination(d, s->operands[0], 4, NULL);
    for (int j = 0; j < 2; j++) i.s[j] = source(d, s->operands[j + 1], 4, NULL);
    emit(d, i);
}

// set: like setp, but the result is all ones or 1.0.
static void decode_set(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 3, 3);
    char name[16];
    snprintf(name, sizeof(name), "%.*s", (int)s->parts[1].n, s->parts[1].start);
    if (s->types[1] == TYPE_F16X2 || s->types[1] == TYPE_BF16X2) {
        decode_set_pair(d, name);
        return;
    }
    Instruction i = begin(d, KIND_COMPARE);
    i.compare = comparison_find(name, s->types[1]);
    if (!i.compare || s->n_types != 2 || type_bytes(s->types[0]) != 4) decode_fail(d, "not emulated");
    uint8_t width = (uint8_t)type_bytes(s->types[1]);
    i.d = register_new(d->function, 0);
    for (int j = 0; j < 2; j++) i.s[j] = source(d, s->operands[j + 1], width, NULL);
    Instruction choice = begin(d, KIND_SELECT);
    choice.d_bytes = 4;
    choice.lanes = select_find(4);
    choice.d = destination(d, s->operands[0], 4, NULL);
    choice.s[0] = constant(d, s->types[0] == TYPE_F32 ? 0x3f800000 : 0xffffffff, 4, false);
    choice.s[1] = constant(d, 0, 4, false);
    choice.s[2] = i.d;
    emit(d, i);
    emit(d, choice);
}

static void decode_selp(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 4, 4);
    allow_rest(d, "");
    Instruction i = begin(d, KIND_SELECT);
    i.d_bytes = (uint8_t)type_bytes(s->types[0]);
    i.lanes = select_find(i.d_bytes);
    i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    for (int j = 0; j < 2; j++) i.s[j] = source(d, s->operands[j + 1], i.d_bytes, NULL);
    i.s[2] = predicate(d, s->operands[3]);
    emit(d, i);
}

static void decode_cvt(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 2, 3);
    bool is_relu = has_rest(s, "relu");
    allow_rest(d, is_relu ? " relu " : has_rest(s, "rna") ? " rna " : "");
    if (s->n_types != 2 || is_relu) decode_fail(d, "not emulated");
    Type to = s->types[0], from = s->types[1];
    if (s->saturate && to >= TYPE_F16 && to != TYPE_F32) decode_fail(d, ".sat of this type");
    Instruction i = begin(d, KIND_LANES);
    i.mode = (uint8_t)from;
    i.rounding = (uint8_t)(s->rounding ? s->rounding : 'n');
    i.flag = s->to_integral;
    i.is_saturated = s->saturate;
    bool is_short = to == TYPE_F16 || to == TYPE_BF16 || to == TYPE_F16X2 || to == TYPE_BF16X2;
    i.control = (uint16_t)(is_short || s->to_integral ? (s->flush ? 0x8040 : 0) : control_bits(s));
    i.d = destination(d, s->operands[0], 0, &i.d_bytes);
    uint64_t unused;
    uint8_t width = number_value(s->operands[1], &unused) ? (uint8_t)type_bytes(from) : 0;
    i.s[0] = source(d, s->operands[1], width == 1 ? 2 : width, &width);
    i.n_vector = width;
    if (s->n_operands == 3) i.s[1] = source(d, s->operands[2], 4, NULL);
    bool is_pair = to == TYPE_F16X2 || to == TYPE_BF16X2;
    i.lanes = is_pair == (s->n_operands == 3) ? conversion_find(to, i.d_bytes, from, width) : NULL;
    if (!i.lanes) decode_fail(d, "not emulated");
    emit(d, i);
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

static void decode_cvta(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 2, 2);
    Instruction i = begin(d, KIND_CONVERT_ADDRESS);
    i.flag = has_rest(s, "to");
    allow_rest(d, " to ");
    i.d_bytes = (uint8_t)type_bytes(s->types[0]);
    i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    i.s[0] = source(d, s->operands[1], i.d_bytes, NULL);
    emit(d, i);
}

static void decode_isspacep(Decoder *d) {
    Instruction i = begin(d, KIND_IS_SPACE);
    i.d = predicate(d, d->statement.operands[0]);
    i.s[0] = source(d, d->statement.operands[1], 8, NULL);
    emit(d, i);
}

static const char *const CACHE_WORDS =
    " weak relaxed acquire release volatile cta gpu sys cluster ca cg cs lu cv wb wt nc v2 v4 L1::evict_normal "
    "L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::64B L2::128B L2::256B L2::cache_hint ";

static void decode_load_store(Decoder *d) {
    Statement *s = &d->statement;
    bool is_load = s->parts[0].start[0] == 'l';
    bool has_hint = has_rest(s, "L2::cache_hint");
    want_operands(d, 2, has_hint ? 3 : 2);
    allow_rest(d, CACHE_WORDS);
    Instruction i = begin(d, is_load ? KIND_LOAD : KIND_STORE);
    i.is_strong = has_rest(s, "relaxed") || has_rest(s, "acquire") || has_rest(s, "release");  // volatile is no excuse
    i.is_read_only = has_rest(s, "nc");
    bool is_release = has_rest(s, "release"), is_acquire = has_rest(s, "acquire");
    address(d, &i, s->operands[is_load ? 1 : 0]);
    i.operands = (uint32_t)d->function->n_operands;
    uint8_t width = (uint8_t)type_bytes(s->types[0]);
    i.n_vector = (uint8_t)registers(d, s->operands[is_load ? 0 : 1], is_load, &width);
    size_t wanted = has_rest(s, "v4") ? 4 : has_rest(s, "v2") ? 2 : 1;
    if (i.n_vector != wanted || s->n_types != 1) decode_fail(d, "vector of the wrong length");
    i.d_bytes = width;
    if (s->space == SPACE_PARAM) {
        Text base = address_base(s->operands[is_load ? 1 : 0]);
        Name *local = name_find(d, base);
        bool is_variable = (local && local->kind == NAME_LOCAL) || d->expansions > 0;
        i.kind = is_variable ? i.kind : KIND_LOAD_PARAM;
        i.space = is_variable ? SPACE_LOCAL : SPACE_PARAM;
        i.flag = true;  // no check whether it was written
    }
    if (is_release) {
        emit(d, (Instruction){.kind = KIND_FENCE, .guard = i.guard, .guard_negated = i.guard_negated, .mode = 1});
    }
    emit(d, i);
    if (is_acquire) {
        emit(d, (Instruction){.kind = KIND_FENCE, .guard = i.guard, .guard_negated = i.guard_negated, .mode = 1});
    }
    d->function->has_fences |= is_release || is_acquire;
}

static void decode_atomic(Decoder *d) {
    static const char *const NAMES[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"};
    Statement *s = &d->statement;
    bool is_red = s->parts[0].start[0] == 'r';
    want_operands(d, is_red ? 2 : 3, is_red ? 2 : 4);
    Instruction i = begin(d, KIND_ATOMIC);
    i.mode = 255;
    for (int n = 0; n < 10; n++) {
        if (has_rest(s, NAMES[n])) i.mode = (uint8_t)n;
    }
    allow_rest(d, " add min max inc dec and or xor exch cas relaxed acquire release acq_rel cta gpu sys noftz ");
    bool is_float = i.type >= TYPE_F16;
    if (i.mode == 255 || (is_float && i.mode != ATOMIC_ADD)) decode_fail(d, "not emulated");
    bool is_release = has_rest(s, "release") || has_rest(s, "acq_rel");
    bool is_acquire = has_rest(s, "acquire") || has_rest(s, "acq_rel");
    i.d_bytes = (uint8_t)type_bytes(s->types[0]);
    if (!is_red) i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    address(d, &i, s->operands[is_red ? 0 : 1]);
    for (size_t j = is_red ? 1 : 2, k = 1; j < s->n_operands; j++, k++) {
        i.s[k] = source(d, s->operands[j], i.d_bytes, NULL);
    }
    Instruction fence = {.kind = KIND_FENCE, .guard = i.guard, .guard_negated = i.guard_negated, .mode = 1};
    if (is_release) emit(d, fence);
    emit(d, i);
    if (is_acquire) emit(d, fence);
    d->function->has_fences |= is_release || is_acquire;
}

static void decode_copy(Decoder *d) {
    Statement *s = &d->statement;
    if (!has_rest(s, "async") || has_rest(s, "bulk") || has_rest(s, "mbarrier")) decode_fail(d, "not emulated");
    if (has_rest(s, "commit_group")) {
        emit(d, begin(d, KIND_COPY_COMMIT));
        return;
    }
    if (has_rest(s, "wait_group") || has_rest(s, "wait_all")) {
        Instruction i = begin(d, KIND_COPY_WAIT);
        uint64_t n = 0;
        i.flag = has_rest(s, "wait_all");
        if (!i.flag && !number_value(s->operands[0], &n)) decode_fail(d, "group count");
        i.immediate = (int64_t)n;
        emit(d, i);
        return;
    }
    bool has_hint = has_rest(s, "L2::cache_hint");
    want_operands(d, 3, has_hint ? 5 : 4);
    allow_rest(d, " async ca cg L2::64B L2::128B L2::256B L2::cache_hint global ");
    Instruction i = begin(d, KIND_COPY_ASYNC), from = i;
    uint64_t n;
    if (!number_value(s->operands[2], &n) || (n != 4 && n != 8 && n != 16)) decode_fail(d, "copy size");
    if (has_rest(s, "cg") && n != 16) decode_fail(d, "copy size");
    address(d, &i, s->operands[0]);
    address(d, &from, s->operands[1]);
    i.n_vector = (uint8_t)n;
    i.s[1] = from.s[0];
    i.s[2] = s->n_operands > (has_hint ? 4u : 3u) ? source(d, s->operands[3], 4, NULL) : NOWHERE;
    i.flag = from.is_wide;
    i.operands = (uint32_t)further_operand(d, (int32_t)from.immediate);
    emit(d, i);
}

static void decode_ldmatrix(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 2, 2);
    allow_rest(d, " sync aligned m8n8 x1 x2 x4 trans ");
    Instruction i = begin(d, KIND_LOAD_MATRIX);
    i.flag = has_rest(s, "trans");
    address(d, &i, s->operands[1]);
    i.operands = (uint32_t)d->function->n_operands;
    uint8_t width = 4;
    i.n_vector = (uint8_t)registers(d, s->operands[0], true, &width);
    size_t wanted = has_rest(s, "x4") ? 4 : has_rest(s, "x2") ? 2 : 1;
    if (!has_rest(s, "m8n8") || s->types[0] != TYPE_B16 || i.n_vector != wanted || width != 4) decode_fail(d, "shape");
    emit(d, i);
}

// mma.sync.aligned.SHAPE.row.col.D.A.B.C
static void decode_mma(Decoder *d) {
    static const struct {
        const char *shape;
        uint8_t k, n_a, n_b;
    } SHAPES[] = {{"m16n8k16", 16, 4, 2}, {"m16n8k8", 8, 2, 1}};
    Statement *s = &d->statement;
    want_operands(d, 4, 4);
    allow_rest(d, " sync aligned m16n8k16 m16n8k8 row col ");
    Type types[4];
    size_t n_types = 0;
    for (size_t j = 1; j < s->n_parts; j++) {
        Type type = type_named(s->parts[j]);
        if (type != TYPE_NONE && n_types < 4) types[n_types++] = type;
    }
    if (n_types != 4 || types[1] != types[2] || types[0] != types[3]) decode_fail(d, "types");
    bool is_half = types[1] == TYPE_F16, is_wide = types[0] == TYPE_F32;
    if (!(types[1] == TYPE_BF16 && is_wide) && !(is_half && (is_wide || types[0] == TYPE_F16))) decode_fail(d, "types");
    Instruction i = begin(d, KIND_MMA);
    for (int j = 0; j < 2; j++) {
        if (!has_rest(s, SHAPES[j].shape)) continue;
        i.mode = SHAPES[j].k;
        uint32_t wanted[4] = {is_wide ? 4 : 2, SHAPES[j].n_a, SHAPES[j].n_b, is_wide ? 4 : 2};
        i.operands = (uint32_t)d->function->n_operands;
        for (int q = 0; q < 4; q++) {
            uint8_t width = 4;
            if (registers(d, s->operands[q], q == 0, &width) != wanted[q] || width != 4) decode_fail(d, "fragments");
        }
    }
    if (i.mode == 0) decode_fail(d, "shape");
    i.type = (uint8_t)types[1];
    i.flag = is_wide;
    emit(d, i);
}

// ---------------------------------------------------------------------------------------------------------------
// Control

static void decode_branch(Decoder *d) {
    Statement *s = &d->statement;
    if (text_is(s->parts[0], "bra")) {
        want_operands(d, 1, 1);
        emit(d, begin(d, KIND_BRANCH));
        add_fixup(d, s->operands[0], (uint32_t)d->function->n_code - 1, NOWHERE);
        return;
    }
    want_operands(d, 2, 2);
    Name *list = name_find(d, s->operands[1]);
    if (!has_rest(s, "idx") || !list || list->kind != NAME_TARGETS) decode_fail(d, "branch table");
    Text parts[512];
    size_t n = text_split(list->targets, parts, 512);
    Instruction i = begin(d, KIND_BRANCH_INDEX);
    i.s[0] = source(d, s->operands[0], 4, NULL);
    i.n_operands = (uint32_t)n;
    emit(d, i);
    for (size_t j = 0; j < n; j++) add_fixup(d, parts[j], (uint32_t)d->function->n_code - 1, further_operand(d, 0));
}

static void decode_exit(Decoder *d) {
    if (text_is(d->statement.parts[0], "ret") && d->expansions > 0) {
        emit(d, begin(d, KIND_BRANCH));
        add_fixup(d, (Text){"%return", 7}, (uint32_t)d->function->n_code - 1, NOWHERE);
        return;
    }
    emit(d, begin(d, KIND_EXIT));
}

static void decode_trap(Decoder *d) { emit(d, begin(d, KIND_TRAP)); }
static void decode_nothing(Decoder *d) { (void)d; }
static void decode_yield(Decoder *d) { emit(d, begin(d, KIND_YIELD)); }

static void decode_barrier(Decoder *d) {
    Statement *s = &d->statement;
    if (has_rest(s, "warp")) {
        want_operands(d, 1, 1);
        Instruction i = begin(d, KIND_SYNCWARP);
        i.s[0] = source(d, s->operands[0], 4, NULL);
        uint64_t mask;
        bool is_whole = number_value(s->operands[0], &mask) && (uint32_t)mask == ALL_LANES;
        d->function->has_partial_warps |= !is_whole;
        emit(d, i);
        return;
    }
    allow_rest(d, " sync arrive red popc and or aligned cta ");
    Instruction i = begin(d, KIND_BARRIER);
    bool is_red = has_rest(s, "red");
    i.mode = has_rest(s, "arrive") ? BARRIER_ARRIVE
             : !is_red             ? BARRIER_SYNC
             : has_rest(s, "popc") ? BARRIER_POPC
             : has_rest(s, "and")  ? BARRIER_AND
                                   : BARRIER_OR;
    size_t first = is_red ? 1 : 0, n = s->n_operands - first - (is_red ? 1 : 0);
    if (n < 1 || n > 2) decode_fail(d, "operands");
    i.s[0] = source(d, s->operands[first], 4, NULL);
    if (n == 2) i.s[1] = source(d, s->operands[first + 1], 4, NULL);
    if (is_red) {
        Text last = s->operands[s->n_operands - 1];
        i.flag = last.start[0] == '!';
        i.s[2] = predicate(d, i.flag ? (Text){last.start + 1, last.n - 1} : last);
        i.d_bytes = i.mode == BARRIER_POPC ? 4 : 0;
        i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    }
    d->function->has_named_barriers |= n == 2;
    emit(d, i);
}

static void decode_fence(Decoder *d) {
    allow_rest(d, " gl cta sys gpu sc acq_rel acquire release proxy alias ");
    Instruction i = begin(d, KIND_FENCE);
    i.mode = !has_rest(&d->statement, "cta");
    d->function->has_fences |= i.mode;
    emit(d, i);
}

static void decode_shuffle(Decoder *d) {
    static const char *const NAMES[] = {"up", "down", "bfly", "idx"};
    Statement *s = &d->statement;
    want_operands(d, 5, 5);
    Instruction i = begin(d, KIND_SHUFFLE);
    i.mode = 255;
    for (int n = 0; n < 4; n++) {
        if (has_rest(s, NAMES[n])) i.mode = (uint8_t)n;
    }
    if (i.mode == 255 || !has_rest(s, "sync")) decode_fail(d, "not emulated");
    Text first = s->operands[0];
    size_t bar = text_find(first, '|');
    i.d_bytes = 4;
    i.d = destination(d, text_trim((Text){first.start, bar}), 4, NULL);
    int32_t flag = bar < first.n ? predicate(d, text_trim((Text){first.start + bar + 1, first.n - bar - 1})) : NOWHERE;
    for (int j = 0; j < 4; j++) i.s[j] = source(d, s->operands[j + 1], 4, NULL);
    i.operands = (uint32_t)further_operand(d, flag);
    emit(d, i);
}

static void decode_vote(Decoder *d) {
    static const char *const NAMES[] = {"all", "any", "uni", "ballot"};
    Statement *s = &d->statement;
    want_operands(d, 3, 3);
    allow_rest(d, " sync all any uni ballot ");
    Instruction i = begin(d, KIND_VOTE);
    for (int n = 0; n < 4; n++) {
        if (has_rest(s, NAMES[n])) i.mode = (uint8_t)n;
    }
    i.d_bytes = i.mode == VOTE_BALLOT ? 4 : 0;
    i.d = destination(d, s->operands[0], i.d_bytes, NULL);
    Text what = s->operands[1];
    i.flag = what.start[0] == '!';
    uint64_t value;
    if (number_value(what, &value)) {
        i.immediate = value != 0;
    } else {
        i.s[1] = predicate(d, i.flag ? text_trim((Text){what.start + 1, what.n - 1}) : what);
    }
    i.s[3] = source(d, s->operands[2], 4, NULL);
    emit(d, i);
}

static void decode_match(Decoder *d) {
    Statement *s = &d->statement;
    want_operands(d, 3, 3);
    Instruction i = begin(d, KIND_MATCH);
    i.flag = has_rest(s, "all");
    Text first = s->operands[0];
    size_t bar = text_find(first, '|');
    i.d_bytes = 4;
    i.d = destination(d, text_trim((Text){first.start, bar}), 4, NULL);
    i.s[1] = bar < first.n ? predicate(d, text_trim((Text){first.start + bar + 1, first.n - bar - 1})) : NOWHERE;
    i.n_vector = (uint8_t)type_bytes(s->types[0]);
    i.s[0] = source(d, s->operands[1], i.n_vector, NULL);
    i.s[3] = source(d, s->operands[2], 4, NULL);
    emit(d, i);
}

static void decode_redux(Decoder *d) {
    static const char *const NAMES[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    Statement *s = &d->statement;
    want_operands(d, 3, 3);
    Instruction i = begin(d, KIND_REDUCE);
    i.mode = 255;
    for (int n = 0; n < 8; n++) {
        if (has_rest(s, NAMES[n])) i.mode = (uint8_t)n;
    }
    if (i.mode == 255 || type_bytes(s->types[0]) != 4) decode_fail(d, "not emulated");
    i.d_bytes = 4;
    i.d = destination(d, s->operands[0], 4, NULL);
    i.s[0] = source(d, s->operands[1], 4, NULL);
    i.s[3] = source(d, s->operands[2], 4, NULL);
    emit(d, i);
}

static void decode_activemask(Decoder *d) {
    Instruction i = begin(d, KIND_ACTIVE_MASK);
    i.d_bytes = 4;
    i.d = destination(d, d->statement.operands[0], 4, NULL);
    emit(d, i);
}

// Where a variable of the .param space lies in the thread's local memory.
static uint32_t parameter_address(Decoder *d, Text name) {
    uint64_t value;
    bool unused;
    if (!symbol_value(d, name, &value, &unused)) decode_fail(d, "argument '%.*s'", (int)name.n, name.start);
    return (uint32_t)value;
}

// vprintf and __assertfail: the operands are where the arguments lie.
static void decode_call_library(Decoder *d, Kind kind, const Text *arguments, size_t n_arguments) {
    Instruction i = begin(d, kind);
    for (size_t j = 0; j < n_arguments; j++) further_operand(d, (int32_t)parameter_address(d, arguments[j]));
    i.n_operands = (uint32_t)n_arguments;
    emit(d, i);
}

// A call becomes the function's body; parameters are the caller's variables of the .param space.
static void expand_call(Decoder *d, const Function *callee, const Text *arguments, Text result) {
    Instruction skip = begin(d, KIND_BRANCH);
    skip.guard_negated = !skip.guard_negated;
    Name names[65];
    size_t n_names = 0;
    for (size_t j = 0; j < callee->n_parameters; j++) {
        names[n_names++] = (Name){
            .kind = NAME_LOCAL, .name = callee->parameters[j].name, .address = parameter_address(d, arguments[j])};
    }
    if (callee->result.n_bytes > 0) {
        names[n_names++] =
            (Name){.kind = NAME_LOCAL, .name = callee->result.name, .address = parameter_address(d, result)};
    }
    scope_open(d);
    if (skip.guard != NOWHERE) {
        emit(d, skip);
        add_fixup(d, (Text){"%return", 7}, (uint32_t)d->function->n_code - 1, NOWHERE);
    }
    for (size_t j = 0; j < n_names; j++) name_add(d, names[j]);
    Statement saved = d->statement;
    d->expansions++;
    decode_body(d, callee->body);
    d->expansions--;
    d->statement = saved;
    add_label(d, (Text){"%return", 7});
    scope_close(d);
}

// call (result), name, (arguments)
static void decode_call(Decoder *d) {
    Statement *s = &d->statement;
    size_t n = 0;
    Text result = {"", 0}, list = {"", 0}, arguments[64];
    if (s->n_operands > 0 && s->operands[0].start[0] == '(') result = s->operands[n++];
    if (n == s->n_operands) decode_fail(d, "call");
    Text name = s->operands[n++];
    if (n < s->n_operands) list = s->operands[n];
    size_t n_arguments = list.n > 2 ? text_split((Text){list.start + 1, list.n - 2}, arguments, 64) : 0;
    if (result.n > 2) result = text_trim((Text){result.start + 1, result.n - 2});
    if (text_is(name, "vprintf") || text_is(name, "__assertfail")) {
        decode_call_library(d, text_is(name, "vprintf") ? KIND_PRINT : KIND_ASSERT, arguments, n_arguments);
        return;
    }
    const Function *callee = module_function(d->module, name);
    if (!callee || callee->is_entry || n_arguments != callee->n_parameters) {
        decode_fail(d, "call of a function that has no text here, or by pointer");
    }
    if (d->expansions == 16) decode_fail(d, "calls nested too deeply, or recursive");
    expand_call(d, callee, arguments, result);
}

static const struct {
    const char *name;
    void (*decode)(Decoder *d);
} DECODERS[] = {
    {"mov", decode_mov},
    {"and", decode_logic},
    {"or", decode_logic},
    {"xor", decode_logic},
    {"not", decode_logic},
    {"add", decode_carry},
    {"addc", decode_carry},
    {"sub", decode_carry},
    {"subc", decode_carry},
    {"mad", decode_carry},
    {"madc", decode_carry},
    {"setp", decode_setp},
    {"set", decode_set},
    {"selp", decode_selp},
    {"cvt", decode_cvt},
    {"cvta", decode_cvta},
    {"isspacep", decode_isspacep},
    {"ld", decode_load_store},
    {"ldu", decode_load_store},
    {"st", decode_load_store},
    {"atom", decode_atomic},
    {"red", decode_atomic},
    {"cp", decode_copy},
    {"ldmatrix", decode_ldmatrix},
    {"mma", decode_mma},
    {"bra", decode_branch},
    {"brx", decode_branch},
    {"ret", decode_exit},
    {"exit", decode_exit},
    {"trap", decode_trap},
    {"brkpt", decode_trap},
    {"bar", decode_barrier},
    {"barrier", decode_barrier},
    {"membar", decode_fence},
    {"fence", decode_fence},
    {"shfl", decode_shuffle},
    {"vote", decode_vote},
    {"match", decode_match},
    {"redux", decode_redux},
    {"activemask", decode_activemask},
    {"call", decode_call},
    {"nanosleep", decode_yield},
    {"prefetch", decode_nothing},
    {"prefetchu", decode_nothing},
    {"createpolicy", decode_nothing},
    {"griddepcontrol", decode_nothing},
    {"pmevent", decode_nothing},
};

void (*decoder_find(Text mnemonic))(Decoder *d) {
    for (size_t i = 0; i < sizeof(DECODERS) / sizeof(DECODERS[0]); i++) {
        if (text_is(mnemonic, DECODERS[i].name)) return DECODERS[i].decode;
    }
    return decode_arithmetic;
}
