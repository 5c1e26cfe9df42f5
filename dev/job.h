// job.h - what a run was asked for, and what it reads: from the command line, the data and a checkpoint to a Config.
//
// Everything that can be wrong with these is found here, before anything is planned. Wrong flags end the program with a
// usage line (exit 2), wrong files with what is wrong about them (exit 1).
#ifndef JOB_H
#define JOB_H

#include "../data/tokenizer.h"
#include "batch.h"
#include "checkpoint.h"
#include "devices.h"

enum { DEFAULT_STEPS = 500 };

typedef struct {
    Options options;
    Config config;
    Data data;
    Tokenizer tokenizer;
    int32_t *prompt;            // (3 T + 3) its n_prompt ids first
    char checkpoint[PATH_MAX];  // that the weights come from
    CheckpointHeader position;  // of that checkpoint
} Job;

// ---------------------------------------------------------------------------------------------------------------
// The model, the data, the prompt

// A checkpoint named by -e, or the newest of -o with -y 1, decides the model; otherwise -e does.
static inline void job_model(Job *job) {
    Config *config = &job->config;
    const Options *o = &job->options;
    ModelShape asked;
    memset(&asked, 0, sizeof(asked));
    const char *wrong_shape;
    bool described = layout_parse(o->model, &asked, &wrong_shape);
    if (wrong_shape) flags_fail("-e %s: %s", o->model, wrong_shape);
    if (o->resume && !o->output) flags_fail("-y 1 needs -o DIR, the directory with the checkpoints");
    if (o->resume && checkpoint_newest(o->output, job->checkpoint, sizeof(job->checkpoint), &job->position)) {
        config->load = config->resume = true;
    } else if (!described) {
        const char *wrong = checkpoint_check(o->model, &job->position);
        if (wrong) {
            die("-e %s: no model (dN or LxCxNH), and as a checkpoint it won't do: %s %s", o->model, o->model, wrong);
        }
        snprintf(job->checkpoint, sizeof(job->checkpoint), "%s", o->model);
        config->load = true;
    }
    if (!config->load) {
        config->shape = asked;
        return;
    }
    config->shape = checkpoint_shape(&job->position);
    const ModelShape *s = &config->shape;
    if (o->model_given && described && (asked.L != s->L || asked.C != s->C || asked.NH != s->NH)) {
        die("%s has a model of %zux%zux%zu, not -e %s; leave -e out or choose another -o", job->checkpoint, s->L, s->C,
            s->NH, o->model);
    }
    if (o->vocabulary && (size_t)o->vocabulary != s->V) {
        die("%s has a vocabulary of %zu, not %lld; leave --vocab out", job->checkpoint, s->V, (long long)o->vocabulary);
    }
    if (o->max_length && (size_t)o->max_length != s->maxT) {
        die("%s has %zu positions, not %lld; leave --max-length out", job->checkpoint, s->maxT,
            (long long)o->max_length);
    }
}

// Opens the data; it gives the vocabulary. A plan can do without.
static inline void job_data(Job *job) {
    const Options *o = &job->options;
    job->data.train_random = strcmp(o->train, "random") == 0;
    job->data.validation_random =
        strcmp(o->validation, "random") == 0 || (job->data.train_random && !o->validation_given);
    bool absent = o->plan && !job->data.train_random && access(o->train, R_OK) != 0 && !strpbrk(o->train, "*?[");
    size_t vocabulary = job->config.load ? job->config.shape.V : (size_t)o->vocabulary;
    if (absent) printf("%s is not there; a plan does not need it\n", o->train);
    if (!job->data.train_random && !absent) {
        loader_open(&job->data.train, o->train, job->config.T);
        if (!vocabulary) vocabulary = job->data.train.vocabulary;
    }
    if (!vocabulary) vocabulary = 257;
    if (!job->data.validation_random && o->validate_every > 0 && !(o->plan && access(o->validation, R_OK) != 0)) {
        loader_open(&job->data.validation, o->validation, job->config.T);
    }
    job->config.shape.V = vocabulary;
    job->config.shape.Vp = size_round_up(vocabulary, 128);
    if (!job->config.load) job->config.shape.maxT = o->max_length ? (size_t)o->max_length : job->config.T;
    if (job->config.T > job->config.shape.maxT) {
        die("-t %zu is longer than the model's %zu positions; take a shorter -t or a larger --max-length",
            job->config.T, job->config.shape.maxT);
    }
}

// The prompt: --prompt, or the first tokens of the validation data, or of the training data.
static inline void job_prompt(Job *job) {
    const Options *o = &job->options;
    size_t T = job->config.T, room = job->config.sample_length;
    tokenizer_open(&job->tokenizer, o->tokenizer, job->config.shape.V);
    job->prompt = (int32_t *)calloc(3 * T + 3, sizeof(int32_t));
    if (!job->prompt) die("out of memory at the start");
    if (room == 0) return;
    if (o->prompt) {
        job->config.n_prompt = tokenizer_encode(&job->tokenizer, o->prompt, job->prompt, T);
    } else if (job->data.validation.n_windows > 0 || job->data.train.n_windows > 0) {
        const Loader *from = job->data.validation.n_windows > 0 ? &job->data.validation : &job->data.train;
        loader_read(from, 0, job->config.shape.V, (uint16_t *)(job->prompt + 2 * T + 1), job->prompt, job->prompt + T);
        job->config.n_prompt = size_min(20, size_min(T, from->n_tokens - 1));
        job->config.n_prompt = size_min(job->config.n_prompt, (room + 1) / 2);
    } else {
        job->config.n_prompt = 1;
    }
    if (job->config.n_prompt == 0) job->config.n_prompt = 1;
    if (job->config.n_prompt > room) {
        die("the prompt has %zu tokens, more than -g %zu; shorten it or take a larger -g and -t", job->config.n_prompt,
            room);
    }
}

// Steps in all: -x, or 500, or one epoch if that is less.
static inline int64_t job_steps(const Job *job, int n_ranks) {
    if (job->options.steps >= 0) return job->options.steps;
    const size_t windows = job->data.train.n_windows, per_step = config_windows(&job->config, n_ranks);
    const size_t epoch = windows > 0 ? size_ceil_div(windows, per_step) : (size_t)DEFAULT_STEPS;
    return (int64_t)size_min(epoch, DEFAULT_STEPS);
}

// ---------------------------------------------------------------------------------------------------------------
// Where everything has its home

// One "KIND=TIER" of --offload.
static inline void job_place(Placement *place, const char *word, size_t n) {
    const struct {
        const char *name;
        Tier *tier;
    } kinds[] = {{"optimizer", &place->optimizer}, {"gradients", &place->gradients}, {"weights", &place->weights},
                 {"activations", &place->activations}};
    const char *equals = (const char *)memchr(word, '=', n);
    size_t length = equals ? (size_t)(equals - word) : n, rest = n - length;
    Tier tier = rest == 5 && strncmp(equals, "=host", 5) == 0   ? TIER_HOST
                : rest == 5 && strncmp(equals, "=disk", 5) == 0 ? TIER_DISK
                                                                : TIER_DEVICE;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (length != strlen(kinds[i].name) || strncmp(word, kinds[i].name, length) != 0) continue;
        if (tier == TIER_DEVICE) break;
        if (*kinds[i].tier != TIER_DEVICE) flags_fail("--offload names %s twice", kinds[i].name);
        *kinds[i].tier = tier;
        return;
    }
    flags_fail("--offload %.*s: optimizer, gradients, weights or activations, = host or disk", (int)n, word);
}

// What does not make sense is refused, with the reason.
static inline void job_placement(Placement *place, const Options *o, int n_ranks, bool keeps_inputs_only) {
    memset(place, 0, sizeof(*place));
    place->optimizer = place->gradients = place->weights = place->activations = TIER_DEVICE;
    place->stage = n_ranks > 1 ? (int)o->zero : 0;
    for (const char *word = o->offload; word && *word;) {
        size_t n = strcspn(word, ",");
        job_place(place, word, n);
        word += n + (word[n] == ',');
        if (!*word && word[-1] == ',') flags_fail("--offload ends with a comma");
    }
    if (place->activations != TIER_DEVICE && !keeps_inputs_only) {
        flags_fail("--offload activations: sends away the inputs of layers, which are all that -r 3 keeps; add -r 3 "
                   "for all layers");
    }
    place->update_on_host = strcmp(o->update, "auto") == 0 ? place->optimizer != TIER_DEVICE
                                                           : strcmp(o->update, "host") == 0;
    if (place->update_on_host && place->optimizer == TIER_DEVICE) {
        flags_fail("--update host: the states are on the device, where the update is; add --offload optimizer=host");
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The whole

// What a step takes: sequences, micro-batches, and the technique of each part.
static inline void job_step(Job *job, const Device *device, int n_ranks) {
    const Options *o = &job->options;
    Config *config = &job->config;
    config->B = (size_t)o->B;
    config->T = (size_t)o->T;
    const size_t least = config->B * config->T * (size_t)n_ranks;
    const size_t tokens = o->tokens_per_step ? (size_t)o->tokens_per_step : least;
    if (tokens % least != 0) {
        flags_fail("-d %zu is not a multiple of B T %s= %zu", tokens, n_ranks > 1 ? "N " : "", least);
    }
    config->micro_batches = tokens / least;
    if (o->sample_length > o->T) flags_fail("-g %d is longer than -t %d", (int)o->sample_length, (int)o->T);
    config->sample_length = o->sample_length < 0 ? config->T : (size_t)o->sample_length;
    config->attention = strcmp(o->attention, "plain") == 0 ? ATTENTION_PLAIN : ATTENTION_FUSED;
    config->recompute = (Level)o->recompute;
    config->head_chunks = (size_t)o->head_chunks;
    config->save = o->output != NULL;
    const bool native = device_multiplies_bf16(device), automatic = strcmp(o->precision, "auto") == 0;
    const bool bf16 = strcmp(o->precision, "bf16") == 0 || (automatic && native);
    config->dtype = bf16 ? BF16 : strcmp(o->precision, "fp16") == 0 ? FP16 : FP32;
}

// How it trains: what a plan does not depend on.
static inline void job_recipe(Job *job) {
    const Options *o = &job->options;
    Config *config = &job->config;
    config->seed = (uint64_t)o->seed;
    config->overfit = o->overfit != 0;
    config->clip = o->clip;
    config->decay = o->decay;
    config->temperature = o->temperature;
    config->schedule.kind = o->schedule;
    config->schedule.lr = o->lr;
    config->schedule.final_fraction = o->final_fraction;
    config->schedule.warmup = o->warmup;
    config->schedule.steps = config->steps;
}

// From job->options to the rest of the job.
static inline void job_open(Job *job, const Device *device, int n_ranks) {
    const Options *o = &job->options;
    Config *config = &job->config;
    if (o->hellaswag) flags_fail("-h 1: the HellaSwag evaluation is not built yet");
    if (o->tune && device->real == DEVICE_CPU) flags_fail("--tune FILE chooses among the algorithms of a GPU");
    if (o->save_every && !o->output) flags_fail("-n needs -o DIR, where checkpoints go");
    job_step(job, device, n_ranks);
    job_model(job);
    if (device->real == DEVICE_CUDA && config->shape.C / config->shape.NH > ATTENTION_HS_MOST) {
        die("heads of %zu channels: on a GPU at most %d; take more heads, or --device cpu",
            config->shape.C / config->shape.NH, ATTENTION_HS_MOST);
    }
    job_data(job);
    job_prompt(job);
    config->recompute_layers =
        size_min(config->shape.L, o->recompute_layers < 0 ? SIZE_MAX : (size_t)o->recompute_layers);
    job_placement(&config->place, o, n_ranks,
                  config->recompute >= LEVEL_BLOCKS && config->recompute_layers == config->shape.L);
    config->steps = job_steps(job, n_ranks);
    const size_t windows = job->data.validation.n_windows;
    config->validation_batches = o->validate_every > 0 ? (size_t)o->validation_batches : 0;
    if (!job->data.validation_random && windows > 0) {
        config->validation_batches = size_min(config->validation_batches, size_ceil_div(windows, config->B));
    }
    job_recipe(job);
}

static inline void job_close(Job *job) {
    if (job->data.train.n_windows > 0) loader_close(&job->data.train);
    if (job->data.validation.n_windows > 0) loader_close(&job->data.validation);
    tokenizer_close(&job->tokenizer);
    free(job->prompt);
}

#endif
