// flags.h - the command line: one table defines every flag.
//
// Letters mean what they mean in llm.c wherever both have the flag. A wrong flag or value prints one line that says
// what is wrong and a usage line, and exits with 2.
#ifndef FLAGS_H
#define FLAGS_H

#include "error.h"
#include "number.h"

typedef struct {
    const char *model, *train, *validation, *output, *schedule, *precision, *attention, *device, *prompt, *tokenizer;
    const char *tune, *offload, *update, *swap_directory;
    int64_t save_every, resume, B, T, tokens_per_step, steps, warmup, validate_every, validation_batches;
    int64_t sample_every, sample_length, hellaswag, overfit, recompute, recompute_layers, head_chunks, zero;
    int64_t seed, vocabulary, max_length, ranks;
    double lr, final_fraction, decay, clip, temperature, headroom, device_memory, host_memory;
    bool plan, help;
    bool model_given, validation_given;
} Options;

typedef enum { FLAG_INTEGER, FLAG_REAL, FLAG_SIZE, FLAG_TEXT, FLAG_CHOICE, FLAG_SWITCH } FlagKind;

typedef struct {
    char letter;  // 0: long form only
    const char *name;
    FlagKind kind;
    size_t field;          // offset in Options
    const char *standard;  // default; NULL: none
    double low, high;      // of numbers
    const char *choices;   // of FLAG_CHOICE: "a|b|c"
    const char *help;
} Flag;

#define FLAG_FIELD(name) offsetof(Options, name)
#define FLAG_MAX 9007199254740992.0  // 2^53

static const Flag FLAGS[] = {
    {'e', "model", FLAG_TEXT, FLAG_FIELD(model), "d4", 0, 0, NULL,
     "dN (depth), LxCxNH (layers, channels, heads) or a checkpoint's file"},
    {'i', "train-data", FLAG_TEXT, FLAG_FIELD(train), "data/train.bin", 0, 0, NULL,
     "token files to train on (glob), or: random"},
    {'j', "validation-data", FLAG_TEXT, FLAG_FIELD(validation), "data/val.bin", 0, 0, NULL,
     "token files to validate on (glob), or: random"},
    {'o', "output", FLAG_TEXT, FLAG_FIELD(output), NULL, 0, 0, NULL,
     "directory for steps.csv, memory.csv and checkpoints"},
    {'n', "save-every", FLAG_INTEGER, FLAG_FIELD(save_every), "0", 0, FLAG_MAX, NULL,
     "steps between checkpoints, and one at the end (0: none)"},
    {'y', "resume", FLAG_INTEGER, FLAG_FIELD(resume), "0", 0, 1, NULL,
     "1: go on from the newest good checkpoint in -o"},
    {'b', "batch", FLAG_INTEGER, FLAG_FIELD(B), "8", 1, 1 << 20, NULL, "sequences per micro-batch (B)"},
    {'t', "length", FLAG_INTEGER, FLAG_FIELD(T), "256", 1, 1 << 20, NULL, "tokens per sequence (T)"},
    {'d', "tokens-per-step", FLAG_INTEGER, FLAG_FIELD(tokens_per_step), "0", 0, FLAG_MAX, NULL,
     "tokens per step, a multiple of B T: gradients are accumulated (0: B T)"},
    {'x', "steps", FLAG_INTEGER, FLAG_FIELD(steps), "-1", -1, FLAG_MAX, NULL,
     "steps in all (-1: 500, or one epoch if that is less)"},
    {'k', "schedule", FLAG_CHOICE, FLAG_FIELD(schedule), "cosine", 0, 0, "cosine|linear|constant|wsd",
     "learning rate after the warm-up"},
    {'l', "lr", FLAG_REAL, FLAG_FIELD(lr), "0.001", 0, 1e6, NULL, "learning rate, highest"},
    {'u', "warmup", FLAG_INTEGER, FLAG_FIELD(warmup), "20", 0, FLAG_MAX, NULL, "steps of linear warm-up"},
    {'q', "final-fraction", FLAG_REAL, FLAG_FIELD(final_fraction), "0.1", 0, 1, NULL,
     "last learning rate as a fraction of the highest"},
    {'c', "decay", FLAG_REAL, FLAG_FIELD(decay), "0.1", 0, 1e6, NULL, "weight decay of matrices and embeddings"},
    {'v', "validate-every", FLAG_INTEGER, FLAG_FIELD(validate_every), "100", 0, FLAG_MAX, NULL,
     "steps between validations, and one at the end (0: none)"},
    {'m', "validation-batches", FLAG_INTEGER, FLAG_FIELD(validation_batches), "20", 1, FLAG_MAX, NULL,
     "batches per validation at most"},
    {'s', "sample-every", FLAG_INTEGER, FLAG_FIELD(sample_every), "0", 0, FLAG_MAX, NULL,
     "steps between samples (0: one at the end)"},
    {'g', "sample-length", FLAG_INTEGER, FLAG_FIELD(sample_length), "-1", -1, 1 << 20, NULL,
     "tokens of a sample with its prompt, at most T (0: no samples, -1: T)"},
    {'h', "hellaswag", FLAG_INTEGER, FLAG_FIELD(hellaswag), "0", 0, 1, NULL,
     "HellaSwag evaluation (not built yet); -h alone: this help"},
    {'a', "overfit", FLAG_INTEGER, FLAG_FIELD(overfit), "0", 0, 1, NULL, "1: train on the first batch only"},
    {'p', "precision", FLAG_CHOICE, FLAG_FIELD(precision), "auto", 0, 0, "auto|fp32|bf16|fp16",
     "compute type; auto: bf16 where the processor multiplies it; fp16: with loss scaling"},
    {'r', "recompute", FLAG_INTEGER, FLAG_FIELD(recompute), "0", 0, 3, NULL,
     "in the backward: 0 nothing, 1 GELU, 2 and LayerNorms, 3 whole blocks"},
    {0, "recompute-layers", FLAG_INTEGER, FLAG_FIELD(recompute_layers), "-1", -1, 1 << 20, NULL,
     "apply -r to the first N layers only (-1: all)"},
    {0, "attention", FLAG_CHOICE, FLAG_FIELD(attention), "fused", 0, 0, "fused|plain",
     "fused keeps no T x T matrix, plain does"},
    {0, "head-chunks", FLAG_INTEGER, FLAG_FIELD(head_chunks), "1", 1, 1 << 20, NULL,
     "compute the logits in N parts, one after the other"},
    {'z', "zero", FLAG_INTEGER, FLAG_FIELD(zero), "0", 0, 3, NULL,
     "ZeRO: share among ranks 0 nothing, 1 optimizer states, 2 and gradients, 3 and weights"},
    {0, "offload", FLAG_TEXT, FLAG_FIELD(offload), NULL, 0, 0, NULL,
     "KIND=host|disk[,...]: where optimizer, gradients, weights, activations (of -r 3) live"},
    {0, "update", FLAG_CHOICE, FLAG_FIELD(update), "auto", 0, 0, "auto|host|device",
     "where AdamW runs; auto: on the host if the states are there or on the disk"},
    {0, "swap-dir", FLAG_TEXT, FLAG_FIELD(swap_directory), NULL, 0, 0, NULL,
     "directory of the swap file of --offload KIND=disk (default: -o, else the current directory)"},
    {0, "clip", FLAG_REAL, FLAG_FIELD(clip), "1", 0, 1e30, NULL, "largest norm of the gradients (0: any)"},
    {0, "seed", FLAG_INTEGER, FLAG_FIELD(seed), "1337", 0, FLAG_MAX, NULL, "of weights, order of data and samples"},
    {0, "vocab", FLAG_INTEGER, FLAG_FIELD(vocabulary), "0", 0, 1 << 24, NULL,
     "vocabulary (0: the data's: 257 for byte tokens, 50257 for GPT-2's)"},
    {0, "max-length", FLAG_INTEGER, FLAG_FIELD(max_length), "0", 0, 1 << 20, NULL, "learned positions (0: T)"},
    {0, "prompt", FLAG_TEXT, FLAG_FIELD(prompt), NULL, 0, 0, NULL,
     "start of samples (default: the start of the validation data)"},
    {0, "temperature", FLAG_REAL, FLAG_FIELD(temperature), "0.8", 0, 1e6, NULL, "of samples (0: most likely token)"},
    {0, "tokenizer", FLAG_TEXT, FLAG_FIELD(tokenizer), NULL, 0, 0, NULL, "llm.c's tokenizer file, to print samples"},
    {0, "plan", FLAG_SWITCH, FLAG_FIELD(plan), NULL, 0, 0, NULL,
     "print the memory of every phase and exit; runs nothing"},
    {0, "device", FLAG_TEXT, FLAG_FIELD(device), "auto", 0, 0, NULL,
     "auto, cpu, cuda, or plan:NAME: --plan for a device that need not be there (cpu h200 h100 a100 rtx4090 rtx3090)"},
    {0, "tune", FLAG_TEXT, FLAG_FIELD(tune), NULL, 0, 0, NULL,
     "cuda: time the library's algorithms for each product and keep the choice in this file"},
    {0, "device-memory", FLAG_SIZE, FLAG_FIELD(device_memory), "0", 0, 1e18, NULL,
     "memory of the device, e.g. 2GiB (0: what is available)"},
    {0, "host-memory", FLAG_SIZE, FLAG_FIELD(host_memory), "0", 0, 1e18, NULL,
     "memory of the host that this rank may use (0: its part of what is available)"},
    {0, "ranks", FLAG_INTEGER, FLAG_FIELD(ranks), "0", 0, 1 << 16, NULL,
     "with --plan: plan for so many ranks (0: those that were started)"},
    {0, "headroom", FLAG_REAL, FLAG_FIELD(headroom), "10", 0, 99, NULL,
     "per cent of the memory to leave free"},
    {0, "help", FLAG_SWITCH, FLAG_FIELD(help), NULL, 0, 0, NULL, "prints this and exits"},
};

enum { N_FLAGS = sizeof(FLAGS) / sizeof(FLAGS[0]) };

#define FLAGS_USAGE \
    "usage: train_gpt [-e MODEL] [-i DATA] [-o DIR] [-b B] [-t T] [-x STEPS] [-r 0..3] ... (-h: all flags)"

PRINTF_LIKE(1, 2)
static inline void flags_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_end(2, FLAGS_USAGE "\n", format, arguments);
    va_end(arguments);
}

static inline void flags_help(FILE *file) {
    fputs(FLAGS_USAGE "\n\n", file);
    for (int i = 0; i < N_FLAGS; i++) {
        const Flag *flag = &FLAGS[i];
        char name[64];
        snprintf(name, sizeof(name), flag->letter ? "-%c, --%s" : "%c    --%s", flag->letter ? flag->letter : ' ',
                 flag->name);
        fprintf(file, "  %-28s %s", name, flag->help);
        if (flag->choices) fprintf(file, ": %s", flag->choices);
        if (flag->standard && strcmp(flag->standard, "0") != 0 && strcmp(flag->standard, "-1") != 0) {
            fprintf(file, " [%s]", flag->standard);
        }
        fputc('\n', file);
    }
}

// "2GiB", "512MiB", "1.5G", "300000": bytes. K, M, G and T are binary with or without iB; false if it isn't a size.
static inline bool flags_parse_size(const char *text, double *bytes) {
    char *end;
    *bytes = strtod(text, &end);
    if (end == text || !(*bytes >= 0)) return false;
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++) *bytes *= 1024.0;
        end++;
        if (strncmp(end, "iB", 2) == 0) end += 2;
    } else if (*end == 'B') {
        end++;
    }
    return *end == 0;
}

static inline bool flags_is_choice(const char *choices, const char *value) {
    size_t n = strcspn(value, "|");
    if (value[n]) return false;  // several choices are none
    for (const char *choice = choices; choice; choice = strchr(choice, '|') ? strchr(choice, '|') + 1 : NULL) {
        if (n > 0 && strncmp(choice, value, n) == 0 && (choice[n] == '|' || choice[n] == 0)) return true;
    }
    return false;
}

static inline void flags_set(Options *options, const Flag *flag, const char *value) {
    char *field = (char *)options + flag->field, *end;
    double number = 0;
    switch (flag->kind) {
    case FLAG_SWITCH: *(bool *)(void *)field = true; return;
    case FLAG_TEXT:
        if (!*value) flags_fail("--%s needs a value", flag->name);
        *(const char **)(void *)field = value;
        return;
    case FLAG_CHOICE:
        if (!flags_is_choice(flag->choices, value)) flags_fail("--%s %s: one of %s", flag->name, value, flag->choices);
        *(const char **)(void *)field = value;
        return;
    case FLAG_SIZE:
        if (!flags_parse_size(value, &number)) flags_fail("--%s %s: a size such as 2GiB or 512MiB", flag->name, value);
        break;
    case FLAG_INTEGER:
    case FLAG_REAL:
        number = strtod(value, &end);
        if (end == value || *end || (flag->kind == FLAG_INTEGER && number != floor(number))) {
            flags_fail("--%s %s: not %s", flag->name, value,
                       flag->kind == FLAG_INTEGER ? "a whole number" : "a number");
        }
        break;
    }
    if (!(number >= flag->low && number <= flag->high)) {
        flags_fail("--%s %s: from %.10g to %.10g", flag->name, value, flag->low, flag->high);
    }
    if (flag->kind == FLAG_INTEGER) *(int64_t *)(void *)field = (int64_t)number;
    else *(double *)(void *)field = number;
}

// The flag that an argument names, as -x or --name or --name=value; NULL if there is none.
static inline const Flag *flags_find(const char *argument, const char **value) {
    *value = NULL;
    for (int i = 0; i < N_FLAGS && argument[0] == '-'; i++) {
        size_t n = strlen(FLAGS[i].name);
        if (FLAGS[i].letter && argument[1] == FLAGS[i].letter && !argument[2]) return &FLAGS[i];
        if (argument[1] != '-' || strncmp(argument + 2, FLAGS[i].name, n) != 0) continue;
        if (argument[2 + n] == '=') *value = argument + 2 + n + 1;
        if (argument[2 + n] == 0 || argument[2 + n] == '=') return &FLAGS[i];
    }
    return NULL;
}

// Fills `options` from the defaults and the command line; exits with 2 on any mistake.
static inline void flags_parse(Options *options, int argc, char **argv) {
    memset(options, 0, sizeof(*options));
    for (int i = 0; i < N_FLAGS; i++) {
        if (FLAGS[i].standard) flags_set(options, &FLAGS[i], FLAGS[i].standard);
    }
    for (int i = 1; i < argc; i++) {
        const char *value;
        const Flag *flag = flags_find(argv[i], &value);
        if (!flag) flags_fail("unknown flag %s", argv[i]);
        if (flag->letter == 'h' && argv[i][1] == 'h' && (i + 1 >= argc || argv[i + 1][0] == '-')) {
            options->help = true;
            continue;
        }
        if (flag->kind == FLAG_SWITCH && value) flags_fail("--%s takes no value", flag->name);
        if (flag->kind != FLAG_SWITCH && !value) {
            if (i + 1 >= argc) flags_fail("%s needs a value", argv[i]);
            value = argv[++i];
        }
        flags_set(options, flag, value);
        if (flag->letter == 'e') options->model_given = true;
        if (flag->letter == 'j') options->validation_given = true;
    }
    if (strncmp(options->device, "plan", 4) == 0) options->plan = true;
}

#endif
