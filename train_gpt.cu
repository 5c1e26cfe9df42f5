// train_gpt.cu - a GPT-2 trainer that knows where every byte goes.
//
// Read it from top to bottom: configuration, the layer, the model, the training step, evaluation and samples, the
// plan, the run. Everything it calls is in dev/, one idea per file (README.md gives an order for reading).
//
// The same text is C11 (gcc -x c) and C++17 (g++, nvcc). One invariant carries the program: nothing in a step depends
// on the values of tensors, so the step can be run on a device that does nothing (PLAN), and the memory it would take
// is known to the byte before anything is reserved.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <signal.h>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "dev/checkpoint.h"
#include "dev/devices.h"
#include "dev/flags.h"
#include "dev/kernels/attention.h"
#include "dev/kernels/bias.h"
#include "dev/kernels/classifier.h"
#include "dev/kernels/encoder.h"
#include "dev/kernels/gelu.h"
#include "dev/kernels/layernorm.h"
#include "dev/kernels/matmul.h"
#include "dev/kernels/residual.h"
#include "dev/log.h"
#include "dev/memory.h"
#include "dev/plan.h"
#include "dev/sampler.h"
#include "dev/schedule.h"
#include "dev/stash.h"
#include "dev/tune.h"
#include "dev/update.h"

// ---------------------------------------------------------------------------------------------------------------
// State

// One of two micro-batches: while the device works on the one, the host reads the other and sends it.
typedef struct {
    int32_t *tokens, *host_tokens;  // on the device and the host: tokens (B,T), targets (B,T), sorted positions (2BT+1)
    DeviceEvent *filled, *drained;
} BatchSlot;

// Everything a micro-batch reads and leaves besides activations.
typedef struct {
    BatchSlot slots[2];
    int at;                     // the slot in use
    int32_t *tokens, *targets;  // its (B,T), on the device
    size_t n_distinct;          // tokens among them
    int32_t *counts;            // (V) scratch of the host
    float *losses;              // (B,T) on the device
    double *results;            // on the device: RESULT_LOSS, RESULT_NORM
    double *host_results;       // copied, once the host needs them; summed over the ranks
    double *all_results;        // (N, RESULTS + 2) of every rank
    uint16_t *window;           // (T+1) as read from the file
} Batch;

enum { RESULT_LOSS, RESULT_NORM, RESULTS };  // sum of the step's losses; square of the norm of its gradients

// What a layer computes on its way forward. Which of it is kept for the backward is layer_take()'s decision.
typedef struct {
    void *ln1, *qkv, *atty, *saved;  // (B,T,C) (B,T,3C) (B,T,C); attention's log-sum-exp or probabilities
    void *residual, *ln2;            // (B,T,C) the stream between attention and MLP; its LayerNorm
    void *fch, *gelu;                // (B,T,4C) before and after the GELU
    void *out;                       // (B,T,C) the stream after the layer
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (B,T)
    size_t mark;                     // the stack before the layer
} Layer;

typedef struct {
    Options options;
    Config config;
    Ranks ranks;
    Device device;
    Memory memory;
    Ledger plan;
    Budget budget;
    Store store;
    Stash stash;
    Batch batch;
    Layer *layers;
    void *encoded;    // (B,T,C) the stream before the first layer
    void *dresidual;  // (B,T,C) the stream's gradient, alive from the first forward to the encoder's backward
    Loader train, validation;
    bool train_random, validation_random;  // uniform tokens instead of a file
    Tokenizer tokenizer;
    int32_t *prompt;
    size_t n_prompt;
    Schedule schedule;
    Log log;
    char checkpoint[PATH_MAX];  // that the weights come from
    CheckpointHeader position;  // of that checkpoint
    int64_t step, updates, tokens;  // attempted and applied steps, tokens trained on
    int skipped_in_a_row;
    bool stop;           // a rank was interrupted; all know
    double loss_scale;   // of fp16: what the loss is multiplied by, so that small gradients don't vanish; else 1
    int64_t good_steps;  // since it changed
    double matmul_rate;  // measured, operations per second
    size_t saved_peak;   // device bytes that the same run would peak at without the memory flags
    bool reported[PHASES];
} Trainer;

enum { SKIPS_IN_A_ROW = 10, SKIPS_OF_FP16 = 40, DEFAULT_STEPS = 500 };
// Loss scaling, PyTorch's GradScaler's constants: the scale doubles after so many good steps, halves after a bad one.
enum { LOSS_SCALE_FIRST = 65536, LOSS_SCALE_GOOD_STEPS = 2000 };

// The only variable global: a signal handler has nowhere else to write.
static volatile sig_atomic_t interrupted = 0;

// ---------------------------------------------------------------------------------------------------------------
// The layer
//
//     in ---> LN1 -> qkv -> attention -> projection -(+)-> residual ---> LN2 -> fc -> GELU -> projection -(+)-> out
//       \____________________________________________/             \_________________________________________/

static const void *tensor_weights(const Store *store, size_t block, int tensor) {
    return number_at_const(store->type, store_weights(store, block), store_layout(store, block)->tensors[tensor].offset);
}

static float *tensor_gradients(Store *store, size_t block, int tensor) {
    return store_gradients(store, block) + store_layout(store, block)->tensors[tensor].offset;
}

// Takes those of a layer's buffers that are kept at a level (`kept`), or all the others, as scratch. A level of
// LEVEL_BLOCKS or more keeps none of them. `out` is not among them.
static void layer_take(Trainer *m, Layer *a, size_t B, size_t T, int level, bool kept) {
    size_t rows = B * T, size = number_size(m->config.type), C = m->config.shape.C;
    const size_t saved = attention_saved_bytes(m->config.attention, m->config.type, B, T, m->config.shape.NH);
    const struct {
        void **pointer;
        size_t n_bytes;
        int dropped_at;  // level from which on it is recomputed
        const char *owner;
    } takes[] = {
        {&a->ln1, rows * C * size, 2, "ln1"},
        {(void **)&a->ln1_mean, rows * sizeof(float), 3, "ln1 mean"},
        {(void **)&a->ln1_rstd, rows * sizeof(float), 3, "ln1 rstd"},
        {&a->qkv, rows * 3 * C * size, 3, "qkv"},
        {&a->saved, saved, 3, "attention statistics"},
        {&a->atty, rows * C * size, 3, "attention"},
        {&a->residual, rows * C * size, 3, "residual"},
        {&a->ln2, rows * C * size, 2, "ln2"},
        {(void **)&a->ln2_mean, rows * sizeof(float), 3, "ln2 mean"},
        {(void **)&a->ln2_rstd, rows * sizeof(float), 3, "ln2 rstd"},
        {&a->fch, rows * 4 * C * size, 3, "fc"},
        {&a->gelu, rows * 4 * C * size, 1, "gelu"},
    };
    for (size_t i = 0; i < sizeof(takes) / sizeof(takes[0]); i++) {
        if ((level < takes[i].dropped_at) != kept) continue;
        *takes[i].pointer = memory_push(&m->memory, TIER_DEVICE, kept ? KIND_ACTIVATIONS : KIND_SCRATCH,
                                        takes[i].n_bytes, takes[i].owner);
    }
}

// From `in` to a->gelu: everything that a backward needs.
static void layer_forward_to_gelu(Trainer *m, size_t l, size_t B, size_t T, const void *in, const Layer *a) {
    Device *device = &m->device;
    Memory *memory = &m->memory;
    const Store *store = &m->store;
    Number type = m->config.type;
    size_t rows = B * T, C = m->config.shape.C, block = l + 1;
    layernorm_forward(device, type, a->ln1, a->ln1_mean, a->ln1_rstd, in, tensor_weights(store, block, TENSOR_LN1W),
                      tensor_weights(store, block, TENSOR_LN1B), rows, C);
    matmul_forward(device, memory, type, a->qkv, a->ln1, tensor_weights(store, block, TENSOR_QKVW),
                   tensor_weights(store, block, TENSOR_QKVB), rows, C, 3 * C);
    attention_forward(device, memory, type, m->config.attention, a->atty, a->saved, a->qkv, B, T, C,
                      m->config.shape.NH);
    matmul_forward(device, memory, type, a->residual, a->atty, tensor_weights(store, block, TENSOR_ATTPROJW),
                   tensor_weights(store, block, TENSOR_ATTPROJB), rows, C, C);
    layernorm_forward_residual(device, type, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual, in, a->residual,
                               tensor_weights(store, block, TENSOR_LN2W), tensor_weights(store, block, TENSOR_LN2B),
                               rows, C);
    matmul_forward(device, memory, type, a->fch, a->ln2, tensor_weights(store, block, TENSOR_FCW),
                   tensor_weights(store, block, TENSOR_FCB), rows, C, 4 * C);
    gelu_forward(device, type, a->gelu, a->fch, rows * 4 * C);
}

// The rest, from a->gelu to a->out.
static void layer_forward_out(Trainer *m, size_t l, size_t B, size_t T, const Layer *a) {
    size_t rows = B * T, C = m->config.shape.C;
    matmul_forward(&m->device, &m->memory, m->config.type, a->out, a->gelu,
                   tensor_weights(&m->store, l + 1, TENSOR_FCPROJW), tensor_weights(&m->store, l + 1, TENSOR_FCPROJB),
                   rows, 4 * C, C);
    residual_forward(&m->device, m->config.type, a->out, a->residual, a->out, rows * C);
}

// Makes again what the layer's level did not keep; the same operations on the same values give the same bits.
static void layer_recompute(Trainer *m, size_t l, size_t B, size_t T, const void *in, Layer *a) {
    const Store *store = &m->store;
    int level = config_level(&m->config, l);
    size_t rows = B * T, C = m->config.shape.C;
    layer_take(m, a, B, T, level, false);
    if (level >= LEVEL_BLOCKS) {
        layer_forward_to_gelu(m, l, B, T, in, a);
        return;
    }
    if (level >= 2) {
        layernorm_recompute(&m->device, m->config.type, a->ln1, a->ln1_mean, a->ln1_rstd, in,
                            tensor_weights(store, l + 1, TENSOR_LN1W), tensor_weights(store, l + 1, TENSOR_LN1B),
                            rows, C);
        layernorm_recompute(&m->device, m->config.type, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual,
                            tensor_weights(store, l + 1, TENSOR_LN2W), tensor_weights(store, l + 1, TENSOR_LN2B),
                            rows, C);
    }
    if (level >= 1) gelu_forward(&m->device, m->config.type, a->gelu, a->fch, rows * 4 * C);
}

// One product of the layer backwards: dweight and dbias from dout and in, then din. din may be in: it is written last.
// bias < 0: its gradient is there already.
static void layer_backward_matmul(Trainer *m, size_t l, int weight, int bias, void *din, const void *dout,
                                  const void *in, size_t rows, size_t IC, size_t OC, bool add) {
    Number type = m->config.type;
    Store *store = &m->store;
    if (bias >= 0) {
        bias_backward(&m->device, &m->memory, type, tensor_gradients(store, l + 1, bias), dout, rows, OC, add);
    }
    matmul_backward_weight(&m->device, &m->memory, type, tensor_gradients(store, l + 1, weight), dout, in, rows, IC,
                           OC, add);
    matmul_backward_input(&m->device, &m->memory, type, din, dout, tensor_weights(store, l + 1, weight), rows, IC, OC);
}

// m->dresidual: the gradient of a->out becomes the gradient of `in`. Gradients of activations take the place of the
// activations they belong to, as soon as those are no longer needed.
static void layer_backward(Trainer *m, size_t l, size_t B, size_t T, const void *in, Layer *a, bool add) {
    Device *device = &m->device;
    Memory *memory = &m->memory;
    Store *store = &m->store;
    Number type = m->config.type;
    size_t rows = B * T, C = m->config.shape.C, size = number_size(type), block = l + 1;
    layer_recompute(m, l, B, T, in, a);

    void *dgelu = a->gelu, *dfch = a->gelu, *dln2 = a->ln2, *dln1 = a->ln1;
    layer_backward_matmul(m, l, TENSOR_FCPROJW, TENSOR_FCPROJB, dgelu, m->dresidual, a->gelu, rows, 4 * C, C, add);
    gelu_backward_bias(device, memory, type, dfch, tensor_gradients(store, block, TENSOR_FCB), dgelu, a->fch, rows,
                       4 * C, add);
    layer_backward_matmul(m, l, TENSOR_FCW, -1, dln2, dfch, a->ln2, rows, C, 4 * C, add);
    layernorm_backward(device, memory, type, m->dresidual, tensor_gradients(store, block, TENSOR_LN2W),
                       tensor_gradients(store, block, TENSOR_LN2B), dln2, a->residual, a->ln2_mean, a->ln2_rstd,
                       tensor_weights(store, block, TENSOR_LN2W), rows, C, true, add);

    void *datty = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * C * size, "dattention");
    void *dqkv = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * 3 * C * size, "dqkv");
    layer_backward_matmul(m, l, TENSOR_ATTPROJW, TENSOR_ATTPROJB, datty, m->dresidual, a->atty, rows, C, C, add);
    attention_backward(device, memory, type, m->config.attention, dqkv, datty, a->qkv, a->atty, a->saved, B, T, C,
                       m->config.shape.NH);
    layer_backward_matmul(m, l, TENSOR_QKVW, TENSOR_QKVB, dln1, dqkv, a->ln1, rows, C, 3 * C, add);
    layernorm_backward(device, memory, type, m->dresidual, tensor_gradients(store, block, TENSOR_LN1W),
                       tensor_gradients(store, block, TENSOR_LN1B), dln1, in, a->ln1_mean, a->ln1_rstd,
                       tensor_weights(store, block, TENSOR_LN1W), rows, C, true, add);
}

// ---------------------------------------------------------------------------------------------------------------
// The model

// From m->batch.tokens to the residual stream after the last layer. keep: for a backward; every layer leaves on the
// stack what its level keeps. Otherwise two buffers of the stream and one layer's scratch serve for all layers.
static const void *model_forward(Trainer *m, size_t B, size_t T, bool keep) {
    Memory *memory = &m->memory;
    size_t C = m->config.shape.C, n_bytes = B * T * C * number_size(m->config.type);
    Kind kind = keep ? KIND_ACTIVATIONS : KIND_SCRATCH;
    const bool away = keep && stash_is_away(&m->stash);
    void *x = away ? stash_begin(&m->stash, 0) : memory_push(memory, TIER_DEVICE, kind, n_bytes, "encoder");
    void *spare = keep ? NULL : memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer");
    store_weights_begin(&m->store, 0, 1);
    encoder_forward(&m->device, m->config.type, x, m->batch.tokens, tensor_weights(&m->store, 0, TENSOR_WTE),
                    tensor_weights(&m->store, 0, TENSOR_WPE), B, T, C);
    if (away) stash_written(&m->stash, 0);
    m->encoded = x;
    for (size_t l = 0; l < m->config.shape.L; l++) {
        Layer *a = &m->layers[l];
        int level = keep ? config_level(&m->config, l) : LEVEL_BLOCKS;
        a->mark = memory_mark(memory, TIER_DEVICE);
        a->out = away ? stash_begin(&m->stash, l + 1)
                 : keep ? memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer") : spare;
        store_weights_begin(&m->store, l + 1, l + 1 < m->config.shape.L ? (int64_t)l + 2 : NO_BLOCK);
        layer_take(m, a, B, T, level, true);
        size_t mark = memory_mark(memory, TIER_DEVICE);
        layer_take(m, a, B, T, level, false);
        layer_forward_to_gelu(m, l, B, T, x, a);
        layer_forward_out(m, l, B, T, a);
        store_weights_done(&m->store, l + 1);
        if (away) stash_written(&m->stash, l + 1);
        memory_release(memory, TIER_DEVICE, mark);
        spare = x;
        x = a->out;
    }
    return x;
}

// Final LayerNorm, logits and losses of all rows, in chunks. gradient: the gradients of the head's weights, and
// m->dresidual, the gradient of `residual`, scaled by `scale`; add: to what earlier micro-batches left.
static void model_head(Trainer *m, size_t B, size_t T, const void *residual, float scale, bool gradient, bool add) {
    Device *device = &m->device;
    Memory *memory = &m->memory;
    Store *store = &m->store;
    const ModelShape *s = &m->config.shape;
    Number type = m->config.type;
    size_t rows = B * T, C = s->C, size = number_size(type);
    size_t mark = memory_mark(memory, TIER_DEVICE), chunk = ceil_div(rows, size_min(rows, m->config.head_chunks));
    float *mean = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf mean");
    float *rstd = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf rstd");
    void *lnf = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * C * size, "lnf");
    void *logits = memory_push(memory, TIER_DEVICE, KIND_LOGITS, chunk * s->Vp * size, "logits");
    store_weights_begin(store, 0, gradient ? (int64_t)s->L : NO_BLOCK);
    if (gradient) store_gradients_begin(store, 0, (int64_t)s->L);
    const void *wte = tensor_weights(store, 0, TENSOR_WTE), *lnfw = tensor_weights(store, 0, TENSOR_LNFW);
    layernorm_forward(device, type, lnf, mean, rstd, residual, lnfw, tensor_weights(store, 0, TENSOR_LNFB), rows, C);
    for (size_t row = 0; row < rows; row += chunk) {
        size_t n = size_min(chunk, rows - row);
        void *x = number_at(type, lnf, row * C);  // becomes its own gradient, like the logits
        matmul_forward(device, memory, type, logits, x, wte, NULL, n, C, s->Vp);
        classifier(device, type, m->batch.losses + row, logits, m->batch.targets + row, n, s->V, s->Vp, scale,
                   gradient);
        if (!gradient) continue;
        matmul_backward_weight(device, memory, type, tensor_gradients(store, 0, TENSOR_WTE), logits, x, n, C, s->Vp,
                               add || row > 0);
        matmul_backward_input(device, memory, type, x, logits, wte, n, C, s->Vp);
    }
    if (gradient) {
        layernorm_backward(device, memory, type, m->dresidual, tensor_gradients(store, 0, TENSOR_LNFW),
                           tensor_gradients(store, 0, TENSOR_LNFB), lnf, residual, mean, rstd, lnfw, rows, C, false,
                           add);
    }
    store_weights_done(store, 0);
    memory_release(memory, TIER_DEVICE, mark);
}

// From m->dresidual back to the embeddings; gives the layers' activations back.
static void model_backward(Trainer *m, size_t B, size_t T, bool add) {
    const ModelShape *s = &m->config.shape;
    const bool away = stash_is_away(&m->stash);
    if (away) stash_done(&m->stash, s->L);
    for (size_t l = s->L; l-- > 0;) {
        const void *in = away ? stash_read(&m->stash, l) : l > 0 ? m->layers[l - 1].out : m->encoded;
        store_weights_begin(&m->store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        store_gradients_begin(&m->store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        layer_backward(m, l, B, T, in, &m->layers[l], add);
        store_weights_done(&m->store, l + 1);
        store_gradients_done(&m->store, l + 1);
        if (away) stash_done(&m->stash, l);
        memory_release(&m->memory, TIER_DEVICE, m->layers[l].mark);
    }
    encoder_backward(&m->device, m->config.type, tensor_gradients(&m->store, 0, TENSOR_WTE),
                     tensor_gradients(&m->store, 0, TENSOR_WPE), m->dresidual, m->batch.tokens,
                     m->batch.tokens + 2 * B * T, m->batch.n_distinct, B, T, s->maxT, s->C, add);
    store_gradients_done(&m->store, 0);
}

// ---------------------------------------------------------------------------------------------------------------
// Data

// Sequences of a step, of all ranks.
static size_t step_windows(const Trainer *m) {
    return m->config.micro_batches * m->config.B * (size_t)m->ranks.size;
}

// Global number of a window: the place in the order of training is a function of (step, index in the step) alone.
static uint64_t window_index(const Trainer *m, int64_t step, size_t index) {
    size_t per_step = step_windows(m);
    return (uint64_t)(m->options.overfit ? 0 : step) * per_step + index;
}

// Number of targets in all windows of a step (0-based): what the mean of its losses is taken over.
static size_t step_targets(const Trainer *m, int64_t step) {
    size_t windows = step_windows(m), n = 0;
    if (m->device.kind == DEVICE_PLAN || m->train_random) return windows * m->config.T;
    for (size_t i = 0; i < windows; i++) {
        size_t window = loader_shuffled_window(&m->train, (uint64_t)m->options.seed, window_index(m, step, i));
        n += loader_window_targets(&m->train, window);
    }
    return n;
}

// Tokens (B,T), targets (B,T), sorted positions (2BT+1) of a slot.
static size_t batch_bytes(const Trainer *m) { return (4 * m->config.B * m->config.T + 1) * sizeof(int32_t); }

// The slot that the host may fill next: what was sent from it has arrived.
static BatchSlot *batch_open(Trainer *m) {
    m->batch.at ^= 1;
    BatchSlot *slot = &m->batch.slots[m->batch.at];
    device_wait_event(&m->device, slot->filled);
    memory_watch(&m->memory, QUEUES, slot->host_tokens, batch_bytes(m), true);
    return slot;
}

// Sends the slot's sequences to the device, with what a backward needs; what is called from here on reads them.
static void batch_send(Trainer *m, const BatchSlot *slot, bool backward) {
    const size_t n = m->config.B * m->config.T, V = m->config.shape.V;
    int32_t *tokens = slot->host_tokens;
    const bool sort = backward && m->device.kind != DEVICE_PLAN;
    m->batch.n_distinct = sort ? encoder_sort(tokens + 2 * n, m->batch.counts, tokens, n, V) : n;
    const size_t n_numbers = backward ? 3 * n + m->batch.n_distinct + 1 : 2 * n;
    device_await(&m->device, QUEUE_FETCH, slot->drained);
    device_copy(&m->device, QUEUE_FETCH, slot->tokens, tokens, n_numbers * sizeof(int32_t));
    device_record(&m->device, QUEUE_FETCH, slot->filled);
    device_await(&m->device, QUEUE_COMPUTE, slot->filled);
    m->batch.tokens = slot->tokens;
    m->batch.targets = slot->tokens + n;
}

// Nothing that is called from here on reads the slot in use.
static void batch_done(Trainer *m) {
    device_record(&m->device, QUEUE_COMPUTE, m->batch.slots[m->batch.at].drained);
}

static void batch_train(Trainer *m, int64_t step, size_t micro_batch) {
    const uint64_t seed = (uint64_t)m->options.seed;
    const size_t T = m->config.T;
    BatchSlot *slot = batch_open(m);
    for (size_t b = 0; b < m->config.B && m->device.kind != DEVICE_PLAN; b++) {
        int32_t *tokens = slot->host_tokens + b * T, *targets = tokens + m->config.B * T;
        size_t batch = micro_batch * (size_t)m->ranks.size + (size_t)m->ranks.rank;
        uint64_t index = window_index(m, step, batch * m->config.B + b);
        if (m->train_random) {
            loader_random(seed, 1, index, T, m->config.shape.V, tokens, targets);
            continue;
        }
        size_t window = loader_shuffled_window(&m->train, seed, index);
        loader_read(&m->train, window, m->config.shape.V, m->batch.window, tokens, targets);
    }
    batch_send(m, slot, true);
}

// Validation takes the windows in their order, at most -m batches of them; what is missing from a last batch that is
// not full, or from the last round of the ranks, are rows without targets. Returns the number of targets.
static size_t batch_validation(Trainer *m, size_t batch) {
    size_t T = m->config.T, n = 0;
    BatchSlot *slot = batch_open(m);
    for (size_t b = 0; b < m->config.B && m->device.kind != DEVICE_PLAN; b++) {
        int32_t *tokens = slot->host_tokens + b * T, *targets = tokens + m->config.B * T;
        size_t window = batch * m->config.B + b;
        bool there = batch < m->config.validation_batches;
        if (there && m->validation_random) {
            loader_random((uint64_t)m->options.seed, 2, window, T, m->config.shape.V, tokens, targets);
            n += T;
        } else if (there && window < m->validation.n_windows) {
            loader_read(&m->validation, window, m->config.shape.V, m->batch.window, tokens, targets);
            n += loader_window_targets(&m->validation, window);
        } else {
            for (size_t t = 0; t < T; t++) {
                tokens[t] = 0;
                targets[t] = -1;
            }
        }
    }
    batch_send(m, slot, false);
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// The training step

// Forward and backward of the micro-batch in m->batch, the step's first or not, its last or not. scale: one over the
// number of targets of the whole step. The sum of the losses goes to the batch's results.
static void train_micro_batch(Trainer *m, float scale, bool first, bool last) {
    store_micro_batch(&m->store, first, last);
    const bool add = store_gradients_add(&m->store);
    size_t B = m->config.B, T = m->config.T, mark = memory_mark(&m->memory, TIER_DEVICE);

    memory_begin(&m->memory, PHASE_FORWARD);
    m->dresidual = memory_push(&m->memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS,
                               B * T * m->config.shape.C * number_size(m->config.type), "dresidual");
    const void *residual = model_forward(m, B, T, true);
    memory_end(&m->memory);

    memory_begin(&m->memory, PHASE_HEAD);
    model_head(m, B, T, residual, scale, true, add);
    classifier_sum(&m->device, m->batch.results + RESULT_LOSS, m->batch.losses, B * T, !first);
    memory_end(&m->memory);

    memory_begin(&m->memory, PHASE_BACKWARD);
    model_backward(m, B, T, add);
    batch_done(m);
    memory_release(&m->memory, TIER_DEVICE, mark);
    memory_end(&m->memory);
}

// The host waits for the step's loss and norm: they decide what the update does, on all ranks alike. Sums over the
// ranks are in their order. n: a count, which is summed, too.
static size_t train_results(Trainer *m, size_t n) {
    Batch *b = &m->batch;
    device_download(&m->device, b->host_results, b->results, RESULTS * sizeof(double));
    if (m->device.kind == DEVICE_PLAN || m->ranks.size == 1) return n;
    double own[RESULTS + 2] = {b->host_results[RESULT_LOSS], b->host_results[RESULT_NORM], (double)n,
                               (double)interrupted};
    ranks_gather(&m->ranks, b->all_results, own, RESULTS + 2);
    memset(own, 0, sizeof(own));
    for (int r = 0; r < m->ranks.size; r++) {
        for (int i = 0; i < RESULTS + 2; i++) own[i] += b->all_results[r * (RESULTS + 2) + i];
    }
    memcpy(b->host_results, own, RESULTS * sizeof(double));
    if (own[RESULTS + 1] > 0) m->stop = true;
    return (size_t)own[RESULTS];
}

// Clipping and AdamW. A norm that is not finite skips the update: nothing moves.
static void train_update(Trainer *m, StepRow *row) {
    memory_begin(&m->memory, PHASE_UPDATE);
    store_norm(&m->store, m->batch.results + RESULT_NORM);
    train_results(m, 0);
    bool real = m->device.kind != DEVICE_PLAN;
    double norm = real ? sqrt(m->batch.host_results[RESULT_NORM]) / m->loss_scale : 0, clip = m->options.clip;
    double lr = schedule_lr(&m->schedule, m->updates), scale = clip > 0 && norm > clip ? clip / norm : 1.0;
    AdamW update = adamw_step((float)lr, (float)m->options.decay, m->updates + 1, (float)(scale / m->loss_scale),
                              isfinite(norm));
    store_update(&m->store, &update);
    memory_end(&m->memory);
    row->norm = norm;
    row->lr = lr;
    row->skipped = !update.apply;
}

// After a step in fp16: a skipped one halves the loss scale, many good ones double it.
static void train_loss_scale(Trainer *m, bool skipped) {
    if (m->config.type != FP16 || m->device.kind == DEVICE_PLAN) return;
    if (skipped) m->loss_scale /= 2;
    m->good_steps = skipped ? 0 : m->good_steps + 1;
    if (m->good_steps < LOSS_SCALE_GOOD_STEPS) return;
    m->loss_scale *= 2;
    m->good_steps = 0;
}

// One attempted step: all micro-batches, the update; counts it.
static void train_step(Trainer *m, StepRow *row) {
    if (m->device.kind != DEVICE_PLAN) threads_check(m->device.threads);
    memory_step(&m->memory);
    m->ranks.n_sent = m->memory.disk.n_read = m->memory.disk.n_written = 0;
    size_t n_targets = step_targets(m, m->step);
    for (size_t i = 0; i < m->config.micro_batches; i++) {
        batch_train(m, m->step, i);
        train_micro_batch(m, (float)(m->loss_scale / (double)n_targets), i == 0, i + 1 == m->config.micro_batches);
    }
    train_update(m, row);
    m->step++;
    m->tokens += (int64_t)(step_windows(m) * m->config.T);
    m->updates += row->skipped ? 0 : 1;
    m->skipped_in_a_row = row->skipped ? m->skipped_in_a_row + 1 : 0;

    row->step = m->step;
    row->tokens = m->tokens;
    if (m->device.kind != DEVICE_PLAN) row->train_loss = m->batch.host_results[RESULT_LOSS] / (double)n_targets;
    row->loss_scale = m->loss_scale;  // of this step
    train_loss_scale(m, row->skipped);
    row->good_steps = m->good_steps;
    row->peak_device_bytes = m->memory.step_peak[TIER_DEVICE];
    row->peak_host_bytes = m->memory.step_peak[TIER_HOST];
    row->sent_bytes = m->ranks.n_sent;
    row->disk_read_bytes = m->memory.disk.n_read;
    row->disk_written_bytes = m->memory.disk.n_written;
}

// ---------------------------------------------------------------------------------------------------------------
// Evaluation, samples, saving

// Mean loss over the validation data, at most -m batches of it.
static double validate(Trainer *m) {
    size_t B = m->config.B, T = m->config.T, n_targets = 0, N = (size_t)m->ranks.size;
    memory_begin(&m->memory, PHASE_VALIDATION);
    for (size_t batch = 0; batch < m->config.validation_batches; batch += N) {
        size_t mark = memory_mark(&m->memory, TIER_DEVICE);
        n_targets += batch_validation(m, batch + (size_t)m->ranks.rank);
        const void *residual = model_forward(m, B, T, false);
        model_head(m, B, T, residual, 0.0f, false, false);
        classifier_sum(&m->device, m->batch.results + RESULT_LOSS, m->batch.losses, B * T, batch > 0);
        batch_done(m);
        memory_release(&m->memory, TIER_DEVICE, mark);
    }
    n_targets = train_results(m, n_targets);
    memory_end(&m->memory);
    return n_targets > 0 ? m->batch.host_results[RESULT_LOSS] / (double)n_targets : 0.0;  // PLAN has none
}

// The logits after position `last` of a sequence in the first slot's host_tokens, as fp32 on the host. `length` is how
// much of the sequence is computed: few lengths, so that few shapes of products are needed.
static void sample_logits(Trainer *m, size_t last, size_t length, float *logits, void *raw) {
    const ModelShape *s = &m->config.shape;
    Number type = m->config.type;
    Memory *memory = &m->memory;
    size_t mark = memory_mark(memory, TIER_DEVICE);
    m->batch.tokens = m->batch.slots[0].tokens;
    device_upload(&m->device, m->batch.tokens, m->batch.slots[0].host_tokens, length * sizeof(int32_t));
    const void *residual = number_at_const(type, model_forward(m, 1, length, false), last * s->C);
    float *statistics = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 2 * sizeof(float), "lnf statistics");
    void *lnf = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, s->C * number_size(type), "lnf");
    void *out = memory_push(memory, TIER_DEVICE, KIND_LOGITS, s->Vp * number_size(type), "logits");
    store_weights_begin(&m->store, 0, NO_BLOCK);
    layernorm_forward(&m->device, type, lnf, statistics, statistics + 1, residual,
                      tensor_weights(&m->store, 0, TENSOR_LNFW), tensor_weights(&m->store, 0, TENSOR_LNFB), 1, s->C);
    matmul_forward(&m->device, memory, type, out, lnf, tensor_weights(&m->store, 0, TENSOR_WTE), NULL, 1, s->C, s->Vp);
    store_weights_done(&m->store, 0);
    device_download(&m->device, raw, out, s->Vp * number_size(type));
    for (size_t v = 0; v < s->V && m->device.kind != DEVICE_PLAN; v++) logits[v] = number_get(type, raw, v);
    memory_release(memory, TIER_DEVICE, mark);
}

// Prints a sample. Its draws depend on (seed, step, position) alone, and nothing of training on them.
static void sample(Trainer *m) {
    Memory *memory = &m->memory;
    bool real = m->device.kind != DEVICE_PLAN, alone = m->ranks.size == 1;
    TextOut text;
    size_t total = m->config.sample_length, mark = memory_mark(memory, TIER_HOST), length = 0;
    memory_begin(memory, PHASE_SAMPLE);
    void *raw = NULL;
    float *logits = NULL;
    int32_t *tokens = m->batch.slots[0].host_tokens;
    if (m->n_prompt < total) {  // otherwise the prompt is all there is to print
        size_t Vp = m->config.shape.Vp;
        raw = memory_push(memory, TIER_HOST, KIND_LOGITS, Vp * number_size(m->config.type), "logits");
        logits = (float *)memory_push(memory, TIER_HOST, KIND_LOGITS, Vp * sizeof(float), "logits");
    }
    if (real) {
        printf("--- sample after step %lld\n", (long long)m->step);
        text_open(&text, stdout);
        memory_watch(memory, QUEUES, tokens, m->config.T * sizeof(int32_t), true);
        memset(tokens, 0, m->config.T * sizeof(int32_t));
        memcpy(tokens, m->prompt, m->n_prompt * sizeof(int32_t));
        size_t first = m->prompt[0] == tokenizer_end_of_text(&m->tokenizer);  // not shown
        for (size_t i = first; i < m->n_prompt; i++) tokenizer_put(&m->tokenizer, &text, m->prompt[i]);
    }
    for (size_t at = m->n_prompt; at < total && !(real && alone && interrupted); at++) {
        while (length < at) length = size_min(m->config.T, length ? 2 * length : 64);
        sample_logits(m, at - 1, length, logits, raw);
        if (!real) continue;
        double uniform = random_uniform((uint64_t)m->options.seed, 3 + (uint64_t)m->step, at);
        int id = sample_token(logits, m->config.shape.V, m->options.temperature, uniform);
        tokens[at] = id;
        tokenizer_put(&m->tokenizer, &text, id);
        fflush(stdout);
    }
    if (real) {
        text_flush(&text);
        printf("\n---\n");
    }
    memory_release(memory, TIER_HOST, mark);
    if (real && alone && interrupted) memory_abandon(memory);
    else memory_end(memory);
}

static void save(Trainer *m) {
    CheckpointHeader header;
    memset(&header, 0, sizeof(header));
    header.step = m->step;
    header.updates = m->updates;
    header.tokens = m->tokens;
    header.B = (int64_t)m->config.B;
    header.T = (int64_t)m->config.T;
    header.tokens_per_step = (int64_t)(step_windows(m) * m->config.T);
    header.seed = (uint64_t)m->options.seed;
    header.data = m->train_random || m->device.kind == DEVICE_PLAN ? 0 : m->train.fingerprint;
    header.loss_scale = m->loss_scale;
    header.good_steps = m->good_steps;
    header.tuned = tune_hash(&m->device);
    memory_begin(&m->memory, PHASE_SAVE);
    checkpoint_save(&m->store, &header, m->options.output);
    memory_end(&m->memory);
}

// ---------------------------------------------------------------------------------------------------------------
// The plan

// Takes what lives for the whole run, and gives it its first values.
static void setup(Trainer *m) {
    Memory *memory = &m->memory;
    size_t n = m->config.B * m->config.T;
    memory_begin(memory, PHASE_SETUP);
    device_events_reset(&m->device);
    store_open(&m->store, &m->device, memory, &m->ranks, m->config.shape, m->config.type, &m->config.place);
    stash_open(&m->stash, memory, m->config.place.activations, m->config.shape.L,
               n * m->config.shape.C * number_size(m->config.type));
    Batch *b = &m->batch;
    for (int i = 0; i < 2; i++) {
        BatchSlot *slot = &b->slots[i];
        const size_t n_bytes = batch_bytes(m);
        slot->tokens = (int32_t *)memory_keep(memory, TIER_DEVICE, KIND_DATA, n_bytes, "tokens, targets");
        slot->host_tokens = (int32_t *)memory_keep(memory, TIER_HOST, KIND_DATA, n_bytes, "tokens, targets");
        slot->filled = device_event(&m->device);
        slot->drained = device_event(&m->device);
    }
    b->losses = (float *)memory_keep(memory, TIER_DEVICE, KIND_DATA, n * sizeof(float), "losses");
    b->results = (double *)memory_keep(memory, TIER_DEVICE, KIND_DATA, RESULTS * sizeof(double), "results");
    b->host_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA, RESULTS * sizeof(double), "results");
    b->all_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA,
                                           (size_t)m->ranks.size * (RESULTS + 2) * sizeof(double), "results of ranks");
    b->counts = (int32_t *)memory_keep(memory, TIER_HOST, KIND_DATA, m->config.shape.V * sizeof(int32_t), "counts");
    b->window = (uint16_t *)memory_keep(memory, TIER_HOST, KIND_DATA, (m->config.T + 1) * sizeof(uint16_t), "window");
    if (m->config.load) checkpoint_load(&m->store, m->checkpoint, m->config.resume);
    else store_initialise(&m->store, (uint64_t)m->options.seed);
    memory_end(memory);
}

// Runs everything that a run of this configuration will do, once, on PLAN; leaves what it takes in `ledger`.
static void plan(Trainer *m, const Config *config, Ledger *ledger, double *step_flops, double *step_bytes) {
    Config before = m->config;
    int64_t step = m->step, updates = m->updates, tokens = m->tokens;
    StepRow row;
    m->config = *config;
    m->device.kind = DEVICE_PLAN;
    memory_plan(&m->memory, &m->device);
    setup(m);
    m->device.flops = m->device.bytes = 0;
    train_step(m, &row);
    if (step_flops) *step_flops = m->device.flops;
    if (step_bytes) *step_bytes = m->device.bytes;
    if (config->validation_batches > 0) validate(m);
    if (config->sample_length > 0) sample(m);
    if (config->save) save(m);
    *ledger = m->memory.ledger;
    m->device.kind = m->device.real;
    m->config = before;
    m->step = step;
    m->updates = updates;
    m->tokens = tokens;
}

// Looks for flags with which the run fits; writes them to `text`. False if there are none; *least: of what it needs of
// a tier with any.
static bool plan_search(Trainer *m, Tier tier, char *text, size_t size, size_t *least) {
    Config config = m->config;
    Ledger ledger = m->plan;
    *least = budget_needed(&m->budget, &ledger, tier);
    while (plan_relax(&config, &m->budget, &ledger)) {
        plan(m, &config, &ledger, NULL, NULL);
        *least = size_min(*least, budget_needed(&m->budget, &ledger, tier));
        if (!budget_fits(&m->budget, &ledger)) continue;
        plan_flags(&config, &m->config, m->ranks.size, text, size);
        return true;
    }
    return false;
}

// Compares the plan with the budgets. What does not fit is refused (exit 1); with --plan it is only said.
static void plan_check(Trainer *m) {
    budget_open(&m->budget, &m->options, &m->device, &m->ranks);
    ranks_barrier(&m->ranks);  // before anybody reserves what others have counted as available
    bool device_fits = budget_needed(&m->budget, &m->plan, TIER_DEVICE) <= m->budget.bytes[TIER_DEVICE];
    Tier tier = device_fits && !budget_fits(&m->budget, &m->plan) ? TIER_HOST : TIER_DEVICE;
    size_t budget = m->budget.bytes[tier], needed = budget_needed(&m->budget, &m->plan, tier), least;
    char flags[256], message[1024];
    if (budget_fits(&m->budget, &m->plan)) {
        printf("fits: %.1f MiB of %.1f MiB", log_mib(needed), log_mib(budget));
        if (!m->budget.shared) {
            printf(" on the device, %.1f MiB of %.1f MiB on the host", log_mib(ledger_peak(&m->plan, TIER_HOST)),
                   log_mib(m->budget.bytes[TIER_HOST]));
        }
        printf(" (%.3g %% headroom)\n", m->options.headroom);
        return;
    }
    int n = snprintf(message, sizeof(message),
                     "does not fit%s: the plan needs %zu bytes (%.1f MiB, peak in phase %s), %zu bytes (%.1f MiB) are "
                     "usable (%.3g %% headroom). ", tier == TIER_HOST ? " in the host's memory" : "",
                     needed, log_mib(needed), PHASE_NAMES[ledger_peak_phase(&m->plan, tier)], budget,
                     log_mib(budget), m->options.headroom);
    if (plan_search(m, tier, flags, sizeof(flags), &least)) {
        snprintf(message + n, sizeof(message) - (size_t)n, "This would fit: %s", flags);
    } else {
        snprintf(message + n, sizeof(message) - (size_t)n, "No flags make it fit: the least is %.1f MiB on the %s. "
                 "Take a smaller -e, -t or --vocab", log_mib(least), TIER_NAMES[tier]);
    }
    if (!m->options.plan) die("%s", message);
    printf("%s\n", message);
}

// ---------------------------------------------------------------------------------------------------------------
// From flags to a configuration

// A checkpoint named by -e, or the newest of -o with -y 1, decides the model; otherwise -e does.
static void configure_model(Trainer *m) {
    Config *config = &m->config;
    const Options *o = &m->options;
    ModelShape asked;
    memset(&asked, 0, sizeof(asked));
    const char *wrong_shape;
    bool described = layout_parse(o->model, &asked, &wrong_shape);
    if (wrong_shape) flags_fail("-e %s: %s", o->model, wrong_shape);
    if (o->resume && !o->output) flags_fail("-y 1 needs -o DIR, the directory with the checkpoints");
    if (o->resume && checkpoint_newest(o->output, m->checkpoint, sizeof(m->checkpoint), &m->position)) {
        config->load = config->resume = true;
    } else if (!described) {
        const char *wrong = checkpoint_check(o->model, &m->position);
        if (wrong) {
            die("-e %s: no model (dN or LxCxNH), and as a checkpoint it won't do: %s %s", o->model, o->model, wrong);
        }
        snprintf(m->checkpoint, sizeof(m->checkpoint), "%s", o->model);
        config->load = true;
    }
    if (!config->load) {
        config->shape = asked;
        return;
    }
    config->shape = checkpoint_shape(&m->position);
    const ModelShape *s = &config->shape;
    if (o->model_given && described && (asked.L != s->L || asked.C != s->C || asked.NH != s->NH)) {
        die("%s has a model of %zux%zux%zu, not -e %s; leave -e out or choose another -o", m->checkpoint, s->L, s->C,
            s->NH, o->model);
    }
    if (o->vocabulary && (size_t)o->vocabulary != s->V) {
        die("%s has a vocabulary of %zu, not %lld; leave --vocab out", m->checkpoint, s->V, (long long)o->vocabulary);
    }
    if (o->max_length && (size_t)o->max_length != s->maxT) {
        die("%s has %zu positions, not %lld; leave --max-length out", m->checkpoint, s->maxT,
            (long long)o->max_length);
    }
}

// Opens the data; it gives the vocabulary. A plan can do without.
static void configure_data(Trainer *m) {
    const Options *o = &m->options;
    m->train_random = strcmp(o->train, "random") == 0;
    m->validation_random = strcmp(o->validation, "random") == 0 || (m->train_random && !o->validation_given);
    bool absent = o->plan && !m->train_random && access(o->train, R_OK) != 0 && !strpbrk(o->train, "*?[");
    size_t vocabulary = m->config.load ? m->config.shape.V : (size_t)o->vocabulary;
    if (absent) printf("%s is not there; a plan does not need it\n", o->train);
    if (!m->train_random && !absent) {
        loader_open(&m->train, o->train, m->config.T);
        if (!vocabulary) vocabulary = m->train.vocabulary;
    }
    if (!vocabulary) vocabulary = 257;
    if (!m->validation_random && o->validate_every > 0 && !(o->plan && access(o->validation, R_OK) != 0)) {
        loader_open(&m->validation, o->validation, m->config.T);
    }
    m->config.shape.V = vocabulary;
    m->config.shape.Vp = round_up(vocabulary, 128);
    if (!m->config.load) m->config.shape.maxT = o->max_length ? (size_t)o->max_length : m->config.T;
    if (m->config.T > m->config.shape.maxT) {
        die("-t %zu is longer than the model's %zu positions; take a shorter -t or a larger --max-length", m->config.T,
            m->config.shape.maxT);
    }
}

// The prompt: --prompt, or the first tokens of the validation data, or of the training data.
static void configure_prompt(Trainer *m) {
    const Options *o = &m->options;
    size_t T = m->config.T, room = m->config.sample_length;
    tokenizer_open(&m->tokenizer, o->tokenizer, m->config.shape.V);
    m->prompt = (int32_t *)calloc(3 * T + 3, sizeof(int32_t));
    if (!m->prompt) die("out of memory at the start");
    if (room == 0) return;
    if (o->prompt) {
        m->n_prompt = tokenizer_encode(&m->tokenizer, o->prompt, m->prompt, T);
    } else if (m->validation.n_windows > 0 || m->train.n_windows > 0) {
        const Loader *from = m->validation.n_windows > 0 ? &m->validation : &m->train;
        loader_read(from, 0, m->config.shape.V, (uint16_t *)(m->prompt + 2 * T + 1), m->prompt, m->prompt + T);
        m->n_prompt = size_min(20, size_min(T, from->n_tokens - 1));
        m->n_prompt = size_min(m->n_prompt, (room + 1) / 2);
    } else {
        m->n_prompt = 1;
    }
    if (m->n_prompt == 0) m->n_prompt = 1;
    if (m->n_prompt > room) {
        die("the prompt has %zu tokens, more than -g %zu; shorten it or take a larger -g and -t", m->n_prompt, room);
    }
}

// Steps in all: -x, or 500, or one epoch if that is less.
static int64_t configure_steps(const Trainer *m) {
    if (m->options.steps >= 0) return m->options.steps;
    size_t epoch = DEFAULT_STEPS;
    if (m->train.n_windows > 0) epoch = ceil_div(m->train.n_windows, step_windows(m));
    return (int64_t)size_min(epoch, DEFAULT_STEPS);
}

static void configure(Trainer *m) {
    const Options *o = &m->options;
    Config *config = &m->config;
    if (o->hellaswag) flags_fail("-h 1: the HellaSwag evaluation is not built yet");
    if (o->tune && m->device.real == DEVICE_CPU) flags_fail("--tune FILE chooses among the algorithms of a GPU");
    if (o->save_every && !o->output) flags_fail("-n needs -o DIR, where checkpoints go");
    config->B = (size_t)o->B;
    config->T = (size_t)o->T;
    size_t least = config->B * config->T * (size_t)m->ranks.size;
    size_t tokens = o->tokens_per_step ? (size_t)o->tokens_per_step : least;
    if (tokens % least != 0) {
        flags_fail("-d %zu is not a multiple of B T %s= %zu", tokens, m->ranks.size > 1 ? "N " : "", least);
    }
    config->micro_batches = tokens / least;
    if (o->sample_length > o->T) flags_fail("-g %d is longer than -t %d", (int)o->sample_length, (int)o->T);
    config->sample_length = o->sample_length < 0 ? config->T : (size_t)o->sample_length;
    config->attention = strcmp(o->attention, "plain") == 0 ? ATTENTION_PLAIN : ATTENTION_FUSED;
    config->recompute = (int)o->recompute;
    config->head_chunks = (size_t)o->head_chunks;
    config->save = o->output != NULL;
    bool native = m->device.real == DEVICE_CUDA || m->device.matmul->native_bf16;
    bool bf16 = strcmp(o->precision, "bf16") == 0 || (strcmp(o->precision, "auto") == 0 && native);
    config->type = bf16 ? BF16 : strcmp(o->precision, "fp16") == 0 ? FP16 : FP32;
    m->loss_scale = config->type == FP16 ? (double)LOSS_SCALE_FIRST : 1.0;
    configure_model(m);
    if (m->device.real == DEVICE_CUDA && config->shape.C / config->shape.NH > ATTENTION_HS_MOST) {
        die("heads of %zu channels: on a GPU at most %d; take more heads, or --device cpu",
            config->shape.C / config->shape.NH, ATTENTION_HS_MOST);
    }
    configure_data(m);
    configure_prompt(m);
    config->recompute_layers =
        size_min(config->shape.L, o->recompute_layers < 0 ? SIZE_MAX : (size_t)o->recompute_layers);
    placement_open(&config->place, o, m->ranks.size,
                   config->recompute >= LEVEL_BLOCKS && config->recompute_layers == config->shape.L);
    config->steps = configure_steps(m);
    size_t windows = m->validation.n_windows;
    config->validation_batches = o->validate_every > 0 ? (size_t)o->validation_batches : 0;
    if (!m->validation_random && windows > 0) {
        config->validation_batches = size_min(config->validation_batches, ceil_div(windows, config->B));
    }
    m->layers = (Layer *)calloc(config->shape.L, sizeof(Layer));
    if (!m->layers) die("out of memory at the start");
    m->schedule.kind = o->schedule;
    m->schedule.lr = o->lr;
    m->schedule.final_fraction = o->final_fraction;
    m->schedule.warmup = o->warmup;
    m->schedule.steps = config->steps;
}

// Puts a resumed run where its checkpoint was, and says what differs.
static void configure_position(Trainer *m) {
    const CheckpointHeader *p = &m->position;
    if (!m->config.load) return;
    printf("%s %s (step %lld)\n", m->config.resume ? "going on from" : "starting with the weights of", m->checkpoint,
           (long long)p->step);
    if (p->type != (int64_t)m->config.type) {
        printf("note: it was trained in %s, this run is in %s\n", number_name((Number)p->type),
               number_name(m->config.type));
    }
    if (!m->config.resume) return;
    m->step = p->step;
    m->updates = p->updates;
    if (m->config.type == FP16 && p->type == FP16) {
        m->loss_scale = p->loss_scale;
        m->good_steps = p->good_steps;
    }
    m->tokens = p->tokens;
    size_t per_step = step_windows(m) * m->config.T;
    uint64_t data = m->train_random ? 0 : m->train.fingerprint;
    const char *changed = p->seed != (uint64_t)m->options.seed                                        ? "--seed"
                          : p->data != data                                                           ? "the data"
                          : p->T != (int64_t)m->config.T                                              ? "-t"
                          : p->tokens_per_step != (int64_t)per_step                                   ? "-d"
                          : p->B != (int64_t)m->config.B                                              ? "-b"
                                                                                                      : NULL;
    if (changed) printf("note: %s differs from the saved run, so this is not the run it would have been\n", changed);
}

// ---------------------------------------------------------------------------------------------------------------
// What the run says

static void print_banner(const Trainer *m) {
    const Config *c = &m->config;
    const ModelShape *s = &c->shape;
    printf("model      %zu layers, %zu channels, %zu heads, vocabulary %zu (padded to %zu), %zu positions: "
           "%zu parameters\n", s->L, s->C, s->NH, s->V, s->Vp, s->maxT, store_parameters(s));
    char text[512];
    device_describe(&m->device, c->type, text, sizeof(text));
    printf("device     %s\n", text);
    printf("threads    %s\n", m->device.threads_why);
    printf("step       %zu sequences of %zu tokens x %zu micro-batch%s", c->B, c->T, c->micro_batches,
           c->micro_batches > 1 ? "es" : "");
    if (m->ranks.size > 1) printf(" x %d ranks", m->ranks.size);
    printf(" = %zu tokens\n", step_windows(m) * c->T);
    printf("memory     -r %d on %zu of %zu layers, %s attention, %zu head chunk%s\n", c->recompute,
           c->recompute > 0 ? c->recompute_layers : 0, s->L, c->attention == ATTENTION_PLAIN ? "plain" : "fused",
           c->head_chunks, c->head_chunks > 1 ? "s" : "");
    if (m->train.n_tokens > 0) {
        printf("data       %s: %zu tokens in %zu windows\n", m->options.train, m->train.n_tokens, m->train.n_windows);
    } else if (m->train_random) {
        printf("data       uniform random tokens\n");
    }
    char offload[128];
    placement_text(&c->place, offload, sizeof(offload));
    if (m->ranks.size > 1) printf("ranks      %d, ZeRO stage %d\n", m->ranks.size, c->place.stage);
    if (offload[0]) {
        printf("offload    %s; AdamW on the %s\n", offload, c->place.update_on_host ? "host" : "device");
    }
    if (m->options.zero > 0 && m->ranks.size == 1) {
        printf("note: -z %lld has nothing to share among one rank; it saves nothing\n", (long long)m->options.zero);
    }
    fflush(stdout);
}

// Says planned and measured bytes of every phase that has occurred for the first time.
static void report_phases(Trainer *m) {
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *phase = &m->memory.ledger.phases[p];
        if (!phase->occurred || m->reported[p]) continue;
        m->reported[p] = true;
        printf("phase %-10s planned %9.2f MiB, measured %9.2f MiB; RssAnon %.1f MiB\n", PHASE_NAMES[p],
               log_mib(m->plan.phases[p].peak[TIER_DEVICE]), log_mib(phase->peak[TIER_DEVICE]),
               log_mib(device_rss_anonymous()));
    }
}

static void print_step(Trainer *m, const StepRow *r, double seconds_left) {
    const PhaseLedger *phases = m->memory.ledger.phases;
    char clipped[32] = "", eta[32] = "";
    if (m->options.clip > 0 && r->norm > m->options.clip) {
        snprintf(clipped, sizeof(clipped), " (clipped to %g)", m->options.clip);
    }
    if (m->log.terminal) snprintf(eta, sizeof(eta), " | ETA %d:%02d", (int)seconds_left / 60, (int)seconds_left % 60);
    printf("%sstep %lld/%lld | loss %.4f | norm %.3f%s | lr %.2e | %.0f ms | %.0f tokens/s | mfu %.1f %% | MiB forward "
           "%.1f head %.1f backward %.1f update %.1f, RssAnon %.1f%s%s",
           m->log.terminal ? "\r" : "", (long long)r->step, (long long)m->config.steps, r->train_loss, r->norm, clipped,
           r->lr, r->ms, r->tokens_per_second, 100.0 * r->mfu, log_mib(phases[PHASE_FORWARD].peak[TIER_DEVICE]),
           log_mib(phases[PHASE_HEAD].peak[TIER_DEVICE]), log_mib(phases[PHASE_BACKWARD].peak[TIER_DEVICE]),
           log_mib(phases[PHASE_UPDATE].peak[TIER_DEVICE]), log_mib(device_rss_anonymous()), eta,
           m->log.terminal ? "\033[K" : "");
    if (m->ranks.size > 1) printf(" | sent %.2f MiB, least %.2f", log_mib(r->sent_bytes), log_mib(plan_least_sent(&m->config, m->ranks.size)));
    if (placement_uses_disk(&m->config.place)) {
        printf(" | disk MiB read %.2f written %.2f, least %.2f", log_mib(r->disk_read_bytes),
               log_mib(r->disk_written_bytes), log_mib(plan_least_written(&m->config, m->ranks.size)));
    }
    if (!m->log.terminal) putchar('\n');
    fflush(stdout);
}

// The last lines: the peak, what the flags saved, what to try next.
static void print_end(const Trainer *m, size_t next_peak, const char *next) {
    size_t peak = ledger_peak(&m->plan, TIER_DEVICE);
    printf("peak       %.2f MiB on the device (phase %s), %.2f MiB on the host%s", log_mib(peak),
           PHASE_NAMES[ledger_peak_phase(&m->plan, TIER_DEVICE)], log_mib(ledger_peak(&m->plan, TIER_HOST)),
           m->device.real == DEVICE_CUDA ? " (pinned)" : "");
    if (ledger_peak(&m->plan, TIER_DISK)) printf(", %.2f MiB on the disk", log_mib(ledger_peak(&m->plan, TIER_DISK)));
    printf(": planned and measured alike\n");
    if (m->saved_peak > peak) {
        printf("saved      %.2f MiB by the memory flags (without them: %.2f MiB)\n", log_mib(m->saved_peak - peak),
               log_mib(m->saved_peak));
    } else {
        printf("saved      nothing: no memory flag was in use\n");
    }
    printf("next       %s   (device peak %.2f MiB)\n", next, log_mib(next_peak));
}

// ---------------------------------------------------------------------------------------------------------------
// The run

static void on_signal(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);  // a second one ends the program at once
}

// Somebody wants the run to end; all ranks learn it at the end of the same step.
static bool stopped(const Trainer *m) { return m->ranks.size == 1 ? interrupted : m->stop; }

// Plans the run and the same run without memory flags; says so; refuses what does not fit.
static void prepare(Trainer *m) {
    double flops, bytes;
    Ledger other;
    plan(m, &m->config, &m->plan, &flops, &bytes);
    Config without = m->config;
    without.recompute = 0;
    without.head_chunks = 1;
    memset(&without.place, 0, sizeof(without.place));
    plan(m, &without, &other, NULL, NULL);
    m->saved_peak = ledger_peak(&other, TIER_DEVICE);
    log_table(&m->plan, "planned, MiB");
    printf("a step     %.3g floating-point operations, %.3g bytes moved\n", flops, bytes);
    plan_check(m);
    fflush(stdout);
}

// After a step: validation, the log, a sample, a checkpoint, as they fall due.
static void train_after_step(Trainer *m, StepRow *row) {
    const Options *o = &m->options;
    bool last = m->step == m->config.steps;
    if (row->skipped) {
        printf("%sstep %lld skipped: its gradients are not finite; nothing was updated\n", m->log.terminal ? "\n" : "",
               (long long)m->step);
    }
    if (m->config.validation_batches && (last || m->step % o->validate_every == 0) && !stopped(m)) {
        row->val_loss = validate(m);
        row->validated = true;
        printf("%sstep %lld | validation loss %.4f\n", m->log.terminal ? "\n" : "", (long long)m->step, row->val_loss);
    }
    log_step(&m->log, row);
    bool finite = isfinite(row->train_loss);
    if (m->skipped_in_a_row >= SKIPS_IN_A_ROW && !(finite && m->config.type == FP16)) {
        die("%d steps in a row had gradients that are not finite (last loss %g%s). Lower -l, or go on from an earlier "
            "checkpoint", m->skipped_in_a_row, row->train_loss,
            finite ? "" : ": the forward itself gives NaN or infinity, so this is no overflow of gradients");
    }
    if (m->skipped_in_a_row >= SKIPS_OF_FP16) {
        die("gradients overflow fp16 at every loss scale down to %g, while the loss is finite (%g). Lower -l, or use "
            "-p bf16", row->loss_scale, row->train_loss);
    }
    bool due = o->sample_every > 0 && m->step % o->sample_every == 0;
    if (m->config.sample_length && (due || last) && !stopped(m)) sample(m);
    if (o->save_every > 0 && (last || m->step % o->save_every == 0) && !stopped(m)) save(m);
}

static void train(Trainer *m) {
    double started = device_seconds();
    int64_t first = m->step;
    while (m->step < m->config.steps && !stopped(m)) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        double start = device_seconds();
        train_step(m, &row);
        double seconds = device_seconds() - start;
        row.ms = 1e3 * seconds;
        row.tokens_per_second = (double)(step_windows(m) * m->config.T) / seconds;
        row.mfu = row.tokens_per_second * plan_flops_per_token(&m->config) / (m->matmul_rate * m->ranks.size);
        report_phases(m);
        double per_step = (device_seconds() - started) / (double)(m->step - first);
        print_step(m, &row, per_step * (double)(m->config.steps - m->step));
        train_after_step(m, &row);
        report_phases(m);
    }
    if (m->log.terminal) putchar('\n');
    if (!stopped(m)) return;
    if (m->config.save) save(m);
    printf("interrupted after step %lld; %s\n", (long long)m->step,
           m->config.save ? "saved, go on with -y 1" : "nothing saved, since there is no -o");
}

// A command that needs less memory than this one, and its peak.
static size_t suggest(Trainer *m, char *text, size_t size) {
    Config next = m->config;
    Ledger ledger;
    if (next.recompute < LEVEL_BLOCKS || next.recompute_layers < next.shape.L) {
        next.recompute = LEVEL_BLOCKS;
        next.recompute_layers = next.shape.L;
    }
    next.head_chunks = size_max(next.head_chunks, 8);
    plan(m, &next, &ledger, NULL, NULL);
    int n = snprintf(text, size, "./train_gpt -e %s ", m->options.model);
    plan_flags(&next, &m->config, m->ranks.size, text + n, size - (size_t)n);
    return ledger_peak(&ledger, TIER_DEVICE);
}

// From the command line to a configuration.
static Trainer *trainer_open(int argc, char **argv) {
    Trainer *m = (Trainer *)calloc(1, sizeof(Trainer));
    if (!m) die("out of memory at the start");
    ranks_open(&m->ranks);  // first, so that a wrong flag ends all ranks
    flags_parse(&m->options, argc, argv);
    if (m->options.help) {
        flags_help(stdout);
        ranks_end();
        exit(0);
    }
    if (m->options.ranks && m->options.ranks != m->ranks.size) {
        if (!m->options.plan || m->ranks.size > 1) {
            flags_fail("--ranks %lld is for a --plan in one process; scripts/launch.sh starts ranks",
                       (long long)m->options.ranks);
        }
        ranks_plan(&m->ranks, (int)m->options.ranks);
    }
    device_open(&m->device, m->options.device, &m->options.device_memory, &m->ranks);
    ranks_open_device(&m->ranks, &m->device);
    configure(m);
    return m;
}

// Reserves what m->plan says and fills it; nothing is allocated afterwards.
static void trainer_start(Trainer *m) {
    matmul_create(&m->device);
    const char *beside = m->options.output ? m->options.output : ".", *swap = m->options.swap_directory;
    memory_reserve(&m->memory, &m->device, &m->plan, swap ? swap : beside, m->ranks.rank);
    if (m->options.tune && m->device.real == DEVICE_CUDA) CUDA_ONLY(tune_cuda(&m->device, &m->memory, m->options.tune));
    if (m->config.resume && m->position.tuned != tune_hash(&m->device)) {
        printf("note: --tune's choices differ from the saved run's, so the bits may, too\n");
    }
    setup(m);
}

static void trainer_close(Trainer *m) {
    if (m->memory.plan) memory_unreserve(&m->memory);
    device_close(&m->device);
    ranks_close(&m->ranks);
    if (m->train.n_windows > 0) loader_close(&m->train);
    if (m->validation.n_windows > 0) loader_close(&m->validation);
    tokenizer_close(&m->tokenizer);
    log_close(&m->log);
    free(m->prompt);
    free(m->layers);
    free(m);
}

static void run(Trainer *m) {
    char next[512];
    size_t next_peak = suggest(m, next, sizeof(next));
    m->matmul_rate = device_matmul_rate(&m->device, &m->memory, m->config.type);
    printf("matmul     %.1f GFLOP/s in %s, measured; mfu is a share of this\n", m->matmul_rate * 1e-9,
           number_name(m->config.type));
    fflush(stdout);
    log_open(&m->log, m->ranks.rank == 0 ? m->options.output : NULL, m->config.resume ? m->step : -1,
             isatty(STDOUT_FILENO) == 1 && m->ranks.size == 1);
    trainer_start(m);
    const int signals[] = {SIGINT, SIGTERM, SIGUSR1};  // mpirun passes the last on
    for (int i = 0; i < 3; i++) signal(signals[i], on_signal);
    train(m);
    log_table(&m->memory.ledger, "measured, MiB");
    print_end(m, next_peak, next);
    if (m->options.output) log_memory_csv(m->options.output, &m->ranks, &m->plan, &m->memory.ledger);
}

#ifndef TRAIN_GPT_NO_MAIN
int main(int argc, char **argv) {
    threads_give_way(argv);
    Trainer *m = trainer_open(argc, argv);
    print_banner(m);
    configure_position(m);
    prepare(m);
    if (m->options.output) log_make_directory(m->options.output);
    if (m->options.output && m->options.plan) log_memory_csv(m->options.output, &m->ranks, &m->plan, NULL);
    if (!m->options.plan) run(m);
    trainer_close(m);
    ranks_end();
    return 0;
}
#endif
