// train_gpt.cu - a GPT-2 trainer that knows where every byte goes.
//
// Read it from top to bottom: the state, the layer, the model, the training step, evaluation and samples, the plan, the
// run. Everything it calls is in dev/, one idea per file (README.md gives an order for reading).
//
// The same text is C11 (gcc -x c) and C++17 (g++, nvcc). One invariant carries the program: nothing in a step depends
// on the values of tensors, so the step can be run on a device that does nothing (PLAN), and the memory it would take
// is known to the byte before anything is reserved.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <signal.h>

#include "dev/batch.h"
#include "dev/checkpoint.h"
#include "dev/config.h"
#include "dev/devices.h"
#include "dev/job.h"
#include "dev/kernels/attention.h"
#include "dev/kernels/bias.h"
#include "dev/kernels/classifier.h"
#include "dev/kernels/encoder.h"
#include "dev/kernels/gelu.h"
#include "dev/kernels/layernorm.h"
#include "dev/kernels/matmul.h"
#include "dev/kernels/residual.h"
#include "dev/levels.h"
#include "dev/log.h"
#include "dev/memory.h"
#include "dev/plan.h"
#include "dev/report.h"
#include "dev/sample.h"
#include "dev/tune.h"
#include "dev/update.h"

// ---------------------------------------------------------------------------------------------------------------
// State

enum { RESULT_LOSS, RESULT_NORM, RESULTS };  // sum of the step's losses; square of the norm of its gradients

// What a training step works on. A run has one, and so has each of its plans.
typedef struct {
    Config config;
    Device *device;
    Memory *memory;
    Ranks *ranks;
    const Data *data;
    const Tokenizer *tokenizer;  // for samples; NULL: nothing is shown
    const int32_t *prompt;       // (config.n_prompt)
    const char *checkpoint;      // the file that the weights come from; NULL: none is read
    const char *output;          // the directory of checkpoints; NULL: none is written

    Store store;      // weights, gradients, master weights, moments, and activations that live away
    Batch batch;      // tokens and targets of a micro-batch, its losses
    Layer *layers;    // (L) where their activations are
    void *encoded;    // (B,T,C) the stream before the first layer
    void *dresidual;  // (B,T,C) the stream's gradient, alive from the first forward to the encoder's backward
    double *results;                      // on the device: RESULT_LOSS, RESULT_NORM
    double *host_results, *all_results;   // copied, summed over the ranks; (N, RESULTS + 2) of every rank

    int64_t step, updates, tokens;  // attempted and applied steps, tokens trained on
    int skipped_in_a_row;
    double loss_scale;   // of fp16: what the loss is multiplied by, so that small gradients don't vanish; else 1
    int64_t good_steps;  // since it changed
    bool stop;           // a rank was interrupted; all know
} Trainer;

// Loss scaling, PyTorch's GradScaler's constants: the scale doubles after so many good steps, halves after a bad one.
enum { LOSS_SCALE_FIRST = 65536, LOSS_SCALE_GOOD_STEPS = 2000 };

// The only variable global: a signal handler has nowhere else to write.
static volatile sig_atomic_t interrupted = 0;

// ---------------------------------------------------------------------------------------------------------------
// The layer
//
//     in ---> LN1 -> qkv -> attention -> projection -(+)-> residual ---> LN2 -> fc -> GELU -> projection -(+)-> out
//       \____________________________________________/             \_________________________________________/
//
// Its buffers, and which of them are kept for the backward: levels.h. Block l + 1 of the store is layer l.

static const void *tensor_weights(const Store *store, size_t block, int tensor) {
    const size_t offset = store_layout(store, block)->tensors[tensor].offset;
    return number_at_const(store->dtype, store_weights(store, block), offset);
}

static float *tensor_gradients(Store *store, size_t block, int tensor) {
    return store_gradients(store, block) + store_layout(store, block)->tensors[tensor].offset;
}

// Takes those of a layer's buffers that are kept at a level (`kept`), or all the others, as scratch (levels.h).
static void layer_take(Trainer *m, Layer *a, size_t B, size_t T, Level level, bool kept) {
    const Config *c = &m->config;
    const size_t rows = B * T;
    for (int i = 0; i < N_LEVEL_BUFFERS; i++) {
        const LevelBuffer *buffer = &LEVEL_BUFFERS[i];
        void **pointer = level_buffer(a, buffer);
        size_t row_bytes = buffer->channels * c->shape.C * number_size(c->dtype) + buffer->floats * sizeof(float);
        size_t n_bytes = rows * row_bytes;
        if (pointer == &a->saved) n_bytes = attention_saved_bytes(c->attention, c->dtype, B, T, c->shape.NH);
        if (level_keeps(level, buffer) != kept) continue;
        *pointer = memory_push(m->memory, TIER_DEVICE, kept ? KIND_ACTIVATIONS : KIND_SCRATCH, n_bytes, buffer->owner);
    }
}

// From `in` to a->gelu: everything that a backward needs. in (B,T,C) is the stream before the layer:
//
//     ln1 = LN(in)   qkv = ln1 qkvw^T + qkvb   atty = attention(qkv)   residual = in + atty attprojw^T + attprojb
//     ln2 = LN(residual)   fch = ln2 fcw^T + fcb   gelu = GELU(fch)
static void layer_forward_to_gelu(Trainer *m, size_t l, size_t B, size_t T, const void *in, const Layer *a) {
    Device *device = m->device;
    Memory *memory = m->memory;
    const Store *store = &m->store;
    Dtype dtype = m->config.dtype;
    size_t rows = B * T, C = m->config.shape.C, block = l + 1;
    layernorm_forward(device, dtype, a->ln1, a->ln1_mean, a->ln1_rstd, in, tensor_weights(store, block, TENSOR_LN1W),
                      tensor_weights(store, block, TENSOR_LN1B), rows, C);
    matmul_forward(device, memory, dtype, a->qkv, a->ln1, tensor_weights(store, block, TENSOR_QKVW),
                   tensor_weights(store, block, TENSOR_QKVB), rows, C, 3 * C);
    attention_forward(device, memory, dtype, m->config.attention, a->atty, a->saved, a->qkv, B, T, C,
                      m->config.shape.NH);
    matmul_forward(device, memory, dtype, a->residual, a->atty, tensor_weights(store, block, TENSOR_ATTPROJW),
                   tensor_weights(store, block, TENSOR_ATTPROJB), rows, C, C);
    layernorm_forward_residual(device, dtype, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual, in, a->residual,
                               tensor_weights(store, block, TENSOR_LN2W), tensor_weights(store, block, TENSOR_LN2B),
                               rows, C);
    matmul_forward(device, memory, dtype, a->fch, a->ln2, tensor_weights(store, block, TENSOR_FCW),
                   tensor_weights(store, block, TENSOR_FCB), rows, C, 4 * C);
    gelu_forward(device, dtype, a->gelu, a->fch, rows * 4 * C);
}

// The rest: out (B,T,C) = residual + gelu fcprojw^T + fcprojb, the stream after the layer.
static void layer_forward_out(Trainer *m, size_t l, size_t B, size_t T, const Layer *a) {
    size_t rows = B * T, C = m->config.shape.C;
    matmul_forward(m->device, m->memory, m->config.dtype, a->out, a->gelu,
                   tensor_weights(&m->store, l + 1, TENSOR_FCPROJW), tensor_weights(&m->store, l + 1, TENSOR_FCPROJB),
                   rows, 4 * C, C);
    residual_forward(m->device, m->config.dtype, a->out, a->residual, a->out, rows * C);
}

// Makes again what the layer's level did not keep; the same operations on the same values give the same bits.
static void layer_recompute(Trainer *m, size_t l, size_t B, size_t T, const void *in, Layer *a) {
    const Store *store = &m->store;
    const Level level = config_level(&m->config, l);
    size_t rows = B * T, C = m->config.shape.C;
    layer_take(m, a, B, T, level, false);
    if (level_recomputes(level, LEVEL_BLOCKS)) {
        layer_forward_to_gelu(m, l, B, T, in, a);
        return;
    }
    if (level_recomputes(level, LEVEL_LAYERNORMS)) {
        layernorm_recompute(m->device, m->config.dtype, a->ln1, a->ln1_mean, a->ln1_rstd, in,
                            tensor_weights(store, l + 1, TENSOR_LN1W), tensor_weights(store, l + 1, TENSOR_LN1B),
                            rows, C);
        layernorm_recompute(m->device, m->config.dtype, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual,
                            tensor_weights(store, l + 1, TENSOR_LN2W), tensor_weights(store, l + 1, TENSOR_LN2B),
                            rows, C);
    }
    if (level_recomputes(level, LEVEL_GELU)) gelu_forward(m->device, m->config.dtype, a->gelu, a->fch, rows * 4 * C);
}

// One product of the layer backwards: dweight and dbias from dout and in, then din. din may be in: it is written last.
// bias < 0: its gradient is there already.
static void layer_backward_matmul(Trainer *m, size_t l, int weight, int bias, void *din, const void *dout,
                                  const void *in, size_t rows, size_t IC, size_t OC, bool add) {
    Dtype dtype = m->config.dtype;
    Store *store = &m->store;
    if (bias >= 0) {
        bias_backward(m->device, m->memory, dtype, tensor_gradients(store, l + 1, bias), dout, rows, OC, add);
    }
    matmul_backward_weight(m->device, m->memory, dtype, tensor_gradients(store, l + 1, weight), dout, in, rows, IC,
                           OC, add);
    matmul_backward_input(m->device, m->memory, dtype, din, dout, tensor_weights(store, l + 1, weight), rows, IC, OC);
}

// m->dresidual: the gradient of a->out becomes the gradient of `in`. Both branches add to it, the MLP first. Gradients
// of activations take the place of the activations they belong to, as soon as those are no longer needed: dgelu that of
// gelu, dln2 that of ln2, dln1 that of ln1. Only datty and dqkv get memory.
static void layer_backward(Trainer *m, size_t l, size_t B, size_t T, const void *in, Layer *a, bool add) {
    Device *device = m->device;
    Memory *memory = m->memory;
    Store *store = &m->store;
    Dtype dtype = m->config.dtype;
    size_t rows = B * T, C = m->config.shape.C, size = number_size(dtype), block = l + 1;
    layer_recompute(m, l, B, T, in, a);

    // The MLP.
    void *dgelu = a->gelu, *dfch = a->gelu, *dln2 = a->ln2, *dln1 = a->ln1;
    layer_backward_matmul(m, l, TENSOR_FCPROJW, TENSOR_FCPROJB, dgelu, m->dresidual, a->gelu, rows, 4 * C, C, add);
    gelu_backward_bias(device, memory, dtype, dfch, tensor_gradients(store, block, TENSOR_FCB), dgelu, a->fch, rows,
                       4 * C, add);
    layer_backward_matmul(m, l, TENSOR_FCW, -1, dln2, dfch, a->ln2, rows, C, 4 * C, add);
    layernorm_backward(device, memory, dtype, m->dresidual, tensor_gradients(store, block, TENSOR_LN2W),
                       tensor_gradients(store, block, TENSOR_LN2B), dln2, a->residual, a->ln2_mean, a->ln2_rstd,
                       tensor_weights(store, block, TENSOR_LN2W), rows, C, true, add);

    // Attention. What is pushed here goes with the layer's activations (model_backward).
    void *datty = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * C * size, "dattention");
    void *dqkv = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * 3 * C * size, "dqkv");
    layer_backward_matmul(m, l, TENSOR_ATTPROJW, TENSOR_ATTPROJB, datty, m->dresidual, a->atty, rows, C, C, add);
    attention_backward(device, memory, dtype, m->config.attention, dqkv, datty, a->qkv, a->atty, a->saved, B, T, C,
                       m->config.shape.NH);
    layer_backward_matmul(m, l, TENSOR_QKVW, TENSOR_QKVB, dln1, dqkv, a->ln1, rows, C, 3 * C, add);
    layernorm_backward(device, memory, dtype, m->dresidual, tensor_gradients(store, block, TENSOR_LN1W),
                       tensor_gradients(store, block, TENSOR_LN1B), dln1, in, a->ln1_mean, a->ln1_rstd,
                       tensor_weights(store, block, TENSOR_LN1W), rows, C, true, add);
}

// ---------------------------------------------------------------------------------------------------------------
// The model

// From m->batch.tokens to the residual stream after the last layer. keep: for a backward; every layer leaves on the
// stack what its level keeps. Otherwise two buffers of the stream and one layer's scratch serve for all layers.
static const void *model_forward(Trainer *m, size_t B, size_t T, bool keep) {
    Memory *memory = m->memory;
    size_t C = m->config.shape.C, n_bytes = B * T * C * number_size(m->config.dtype);
    Kind kind = keep ? KIND_ACTIVATIONS : KIND_SCRATCH;
    const bool away = keep && store_stream_is_away(&m->store);
    void *x = away ? store_stream_begin(&m->store, 0) : memory_push(memory, TIER_DEVICE, kind, n_bytes, "encoder");
    void *spare = keep ? NULL : memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer");
    store_weights_begin(&m->store, 0, 1);
    encoder_forward(m->device, m->config.dtype, x, m->batch.tokens, tensor_weights(&m->store, 0, TENSOR_WTE),
                    tensor_weights(&m->store, 0, TENSOR_WPE), B, T, C);
    if (away) store_stream_written(&m->store, 0);
    m->encoded = x;
    for (size_t l = 0; l < m->config.shape.L; l++) {
        Layer *a = &m->layers[l];
        const Level level = keep ? config_level(&m->config, l) : LEVEL_BLOCKS;
        a->mark = memory_mark(memory, TIER_DEVICE);
        a->out = away ? store_stream_begin(&m->store, l + 1)
                 : keep ? memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer") : spare;
        store_weights_begin(&m->store, l + 1, l + 1 < m->config.shape.L ? (int64_t)l + 2 : NO_BLOCK);
        layer_take(m, a, B, T, level, true);
        size_t mark = memory_mark(memory, TIER_DEVICE);
        layer_take(m, a, B, T, level, false);
        layer_forward_to_gelu(m, l, B, T, x, a);
        layer_forward_out(m, l, B, T, a);
        store_weights_done(&m->store, l + 1);
        if (away) store_stream_written(&m->store, l + 1);
        memory_release(memory, TIER_DEVICE, mark);
        spare = x;
        x = a->out;
    }
    return x;
}

// Final LayerNorm, logits and losses of all rows, in --head-chunks chunks of rows: the logits (rows,Vp) would be the
// largest buffer of all, and only a chunk of them exists at a time. The head is tied: its weights are the embedding's,
// wte (Vp,C), whose gradient gets this part here and the encoder's at the end of the backward.
//
// gradient: also the gradients of the head's weights, and m->dresidual, the gradient of `residual`, scaled by `scale`;
// add: to what earlier micro-batches left.
static void model_head(Trainer *m, size_t B, size_t T, const void *residual, float scale, bool gradient, bool add) {
    Device *device = m->device;
    Memory *memory = m->memory;
    Store *store = &m->store;
    const ModelShape *s = &m->config.shape;
    Dtype dtype = m->config.dtype;
    size_t rows = B * T, C = s->C, size = number_size(dtype);
    size_t mark = memory_mark(memory, TIER_DEVICE), chunk = ceil_div(rows, size_min(rows, m->config.head_chunks));
    float *mean = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf mean");
    float *rstd = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf rstd");
    void *lnf = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * C * size, "lnf");
    void *logits = memory_push(memory, TIER_DEVICE, KIND_LOGITS, chunk * s->Vp * size, "logits");
    store_weights_begin(store, 0, gradient ? (int64_t)s->L : NO_BLOCK);
    if (gradient) store_gradients_begin(store, 0, (int64_t)s->L);
    const void *wte = tensor_weights(store, 0, TENSOR_WTE), *lnfw = tensor_weights(store, 0, TENSOR_LNFW);
    layernorm_forward(device, dtype, lnf, mean, rstd, residual, lnfw, tensor_weights(store, 0, TENSOR_LNFB), rows, C);
    for (size_t row = 0; row < rows; row += chunk) {
        size_t n = size_min(chunk, rows - row);
        void *x = number_at(dtype, lnf, row * C);  // becomes its own gradient, like the logits
        matmul_forward(device, memory, dtype, logits, x, wte, NULL, n, C, s->Vp);
        classifier(device, dtype, m->batch.losses + row, logits, m->batch.targets + row, n, s->V, s->Vp, scale,
                   gradient);
        if (!gradient) continue;
        matmul_backward_weight(device, memory, dtype, tensor_gradients(store, 0, TENSOR_WTE), logits, x, n, C, s->Vp,
                               add || row > 0);
        matmul_backward_input(device, memory, dtype, x, logits, wte, n, C, s->Vp);
    }
    if (gradient) {
        layernorm_backward(device, memory, dtype, m->dresidual, tensor_gradients(store, 0, TENSOR_LNFW),
                           tensor_gradients(store, 0, TENSOR_LNFB), lnf, residual, mean, rstd, lnfw, rows, C, false,
                           add);
    }
    store_weights_done(store, 0);
    memory_release(memory, TIER_DEVICE, mark);
}

// From m->dresidual back to the embeddings. Each layer gives its activations back as soon as it is done, so memory
// falls as the backward goes down; what lives away (weights, gradients, the stream) is sent for one block ahead.
static void model_backward(Trainer *m, size_t B, size_t T, bool add) {
    const ModelShape *s = &m->config.shape;
    const bool away = store_stream_is_away(&m->store);
    if (away) store_stream_done(&m->store, s->L);
    for (size_t l = s->L; l-- > 0;) {
        const void *in = away ? store_stream_read(&m->store, l) : l > 0 ? m->layers[l - 1].out : m->encoded;
        store_weights_begin(&m->store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        store_gradients_begin(&m->store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        layer_backward(m, l, B, T, in, &m->layers[l], add);
        store_weights_done(&m->store, l + 1);
        store_gradients_done(&m->store, l + 1);
        if (away) store_stream_done(&m->store, l);
        memory_release(m->memory, TIER_DEVICE, m->layers[l].mark);
    }
    encoder_backward(m->device, m->config.dtype, tensor_gradients(&m->store, 0, TENSOR_WTE),
                     tensor_gradients(&m->store, 0, TENSOR_WPE), m->dresidual, m->batch.tokens,
                     batch_positions(&m->batch), m->batch.n_distinct, B, T, s->maxT, s->C, add);
    store_gradients_done(&m->store, 0);
}

// ---------------------------------------------------------------------------------------------------------------
// The training step

// Forward and backward of the micro-batch in m->batch, the step's first or not, its last or not. scale: one over the
// number of targets of the whole step. The sum of the losses goes to the batch's results.
static void train_micro_batch(Trainer *m, float scale, bool first, bool last) {
    store_micro_batch(&m->store, first, last);
    const bool add = store_gradients_add(&m->store);
    size_t B = m->config.B, T = m->config.T, mark = memory_mark(m->memory, TIER_DEVICE);

    memory_begin(m->memory, PHASE_FORWARD);
    m->dresidual = memory_push(m->memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS,
                               B * T * m->config.shape.C * number_size(m->config.dtype), "dresidual");
    const void *residual = model_forward(m, B, T, true);
    memory_end(m->memory);

    memory_begin(m->memory, PHASE_HEAD);
    model_head(m, B, T, residual, scale, true, add);
    classifier_sum(m->device, m->results + RESULT_LOSS, m->batch.losses, B * T, !first);
    memory_end(m->memory);

    memory_begin(m->memory, PHASE_BACKWARD);
    model_backward(m, B, T, add);
    batch_done(&m->batch);
    memory_release(m->memory, TIER_DEVICE, mark);
    memory_end(m->memory);
}

// What the host needs to know of a step or a validation: sums over all ranks. On PLAN, nothing: zeros.
typedef struct {
    double loss, square;  // of the norm of the gradients, times the loss scale
    size_t n;             // a count
} Results;

// The host waits for the loss and the norm: they decide what the update does, on all ranks alike. Sums over the ranks
// are in their order. n: a count of this rank.
static Results train_results(Trainer *m, size_t n) {
    Results sum = {0, 0, 0};
    device_download(m->device, m->host_results, m->results, RESULTS * sizeof(double));
    if (!host_reads(m->device, m->host_results, RESULTS * sizeof(double))) return sum;
    const double own[RESULTS + 2] = {m->host_results[RESULT_LOSS], m->host_results[RESULT_NORM], (double)n,
                                     (double)interrupted};
    ranks_gather(m->ranks, m->all_results, own, RESULTS + 2);
    double interrupted_ranks = 0;
    for (int r = 0; r < m->ranks->size; r++) {
        const double *of_rank = m->all_results + r * (RESULTS + 2);
        sum.loss += of_rank[RESULT_LOSS];
        sum.square += of_rank[RESULT_NORM];
        sum.n += (size_t)of_rank[RESULTS];
        interrupted_ranks += of_rank[RESULTS + 1];
    }
    if (m->ranks->size > 1 && interrupted_ranks > 0) m->stop = true;
    return sum;
}

// Clipping and AdamW. The norm is that of all gradients of all ranks; where it is above --clip they are scaled down to
// it, by AdamW itself (gradient_scale), which undoes the loss scale as well. A norm that is not finite skips the
// update: nothing moves. Returns the step's sum of losses.
static double train_update(Trainer *m, StepRow *row) {
    memory_begin(m->memory, PHASE_UPDATE);
    update_norm(&m->store, m->results + RESULT_NORM);
    const Results results = train_results(m, 0);
    const double norm = sqrt(results.square) / m->loss_scale, clip = m->config.clip;
    const double lr = schedule_lr(&m->config.schedule, m->updates), scale = clip > 0 && norm > clip ? clip / norm : 1.0;
    AdamW update = adamw_step((float)lr, (float)m->config.decay, m->updates + 1, (float)(scale / m->loss_scale),
                              isfinite(norm));
    update_blocks(&m->store, &update);
    memory_end(m->memory);
    row->norm = norm;
    row->lr = lr;
    row->skipped = !update.apply;
    return results.loss;
}

// After a step in fp16: a skipped one halves the loss scale, many good ones double it.
static void train_loss_scale(Trainer *m, bool skipped) {
    if (m->config.dtype != FP16) return;
    if (skipped) m->loss_scale /= 2;
    m->good_steps = skipped ? 0 : m->good_steps + 1;
    if (m->good_steps < LOSS_SCALE_GOOD_STEPS) return;
    m->loss_scale *= 2;
    m->good_steps = 0;
}

// One attempted step: all micro-batches, the update; counts it. A micro-batch's losses are scaled by the targets of the
// whole step, so that the gradients of micro-batches and ranks simply add up.
static void train_step(Trainer *m, StepRow *row) {
    threads_check(m->device->threads);
    memory_step(m->memory);
    m->ranks->n_sent = m->memory->disk.n_read = m->memory->disk.n_written = 0;
    const size_t n_targets = batch_step_targets(&m->batch, m->step);
    for (size_t i = 0; i < m->config.micro_batches; i++) {
        batch_train(&m->batch, m->step, i);
        train_micro_batch(m, (float)(m->loss_scale / (double)n_targets), i == 0, i + 1 == m->config.micro_batches);
    }
    row->train_loss = train_update(m, row) / (double)n_targets;
    m->step++;
    m->tokens += (int64_t)config_tokens(&m->config, m->ranks->size);
    m->updates += row->skipped ? 0 : 1;
    m->skipped_in_a_row = row->skipped ? m->skipped_in_a_row + 1 : 0;

    row->step = m->step;
    row->tokens = m->tokens;
    row->loss_scale = m->loss_scale;  // of this step
    train_loss_scale(m, row->skipped);
    row->good_steps = m->good_steps;
    row->peak_device_bytes = m->memory->step_peak[TIER_DEVICE];
    row->peak_host_bytes = m->memory->step_peak[TIER_HOST];
    row->sent_bytes = m->ranks->n_sent;
    row->disk_read_bytes = m->memory->disk.n_read;
    row->disk_written_bytes = m->memory->disk.n_written;
}

// ---------------------------------------------------------------------------------------------------------------
// Evaluation, samples, saving

// Mean loss over the validation data, at most -m batches of it.
static double validate(Trainer *m) {
    const size_t B = m->config.B, T = m->config.T, N = (size_t)m->ranks->size;
    size_t n_targets = 0;
    memory_begin(m->memory, PHASE_VALIDATION);
    for (size_t batch = 0; batch < m->config.validation_batches; batch += N) {
        size_t mark = memory_mark(m->memory, TIER_DEVICE);
        n_targets += batch_validation(&m->batch, batch + (size_t)m->ranks->rank);
        const void *residual = model_forward(m, B, T, false);
        model_head(m, B, T, residual, 0.0f, false, false);
        classifier_sum(m->device, m->results + RESULT_LOSS, m->batch.losses, B * T, batch > 0);
        batch_done(&m->batch);
        memory_release(m->memory, TIER_DEVICE, mark);
    }
    const Results results = train_results(m, n_targets);
    memory_end(m->memory);
    return results.n > 0 ? results.loss / (double)results.n : 0.0;
}

// The logits after position `last` of a sequence, whose first `length` tokens are on the host, as fp32 there; raw: room
// for them in the compute type. `length` is how much of it is computed: few lengths, so that few shapes of products are
// needed.
static void sample_logits(Trainer *m, const int32_t *sequence, size_t last, size_t length, float *logits, void *raw) {
    const ModelShape *s = &m->config.shape;
    Dtype dtype = m->config.dtype;
    Memory *memory = m->memory;
    size_t mark = memory_mark(memory, TIER_DEVICE);
    m->batch.tokens = (int32_t *)(void *)m->batch.slots[0].data;
    device_upload(m->device, m->batch.tokens, sequence, length * sizeof(int32_t));
    const void *residual = number_at_const(dtype, model_forward(m, 1, length, false), last * s->C);
    float *statistics = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 2 * sizeof(float), "lnf statistics");
    void *lnf = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, s->C * number_size(dtype), "lnf");
    void *out = memory_push(memory, TIER_DEVICE, KIND_LOGITS, s->Vp * number_size(dtype), "logits");
    store_weights_begin(&m->store, 0, NO_BLOCK);
    layernorm_forward(m->device, dtype, lnf, statistics, statistics + 1, residual,
                      tensor_weights(&m->store, 0, TENSOR_LNFW), tensor_weights(&m->store, 0, TENSOR_LNFB), 1, s->C);
    matmul_forward(m->device, memory, dtype, out, lnf, tensor_weights(&m->store, 0, TENSOR_WTE), NULL, 1, s->C, s->Vp);
    store_weights_done(&m->store, 0);
    device_download(m->device, raw, out, s->Vp * number_size(dtype));
    if (host_reads(m->device, raw, s->Vp * number_size(dtype)) &&
        host_writes(m->device, logits, s->Vp * sizeof(float))) {
        for (size_t v = 0; v < s->V; v++) logits[v] = number_get(dtype, raw, v);
    }
    memory_release(memory, TIER_DEVICE, mark);
}

// Shows a sample of config.sample_length tokens, the prompt among them. A single rank that is interrupted stops.
static void sample(Trainer *m) {
    const Config *c = &m->config;
    Memory *memory = m->memory;
    SampleText text;
    size_t total = c->sample_length, mark = memory_mark(memory, TIER_HOST), length = 0, V = c->shape.V;
    memory_begin(memory, PHASE_SAMPLE);
    void *raw = NULL;
    float *logits = NULL;
    int32_t *tokens = m->batch.host_tokens[0];
    if (c->n_prompt < total) {  // otherwise the prompt is all there is to print
        raw = memory_push(memory, TIER_HOST, KIND_LOGITS, c->shape.Vp * number_size(c->dtype), "logits");
        logits = (float *)memory_push(memory, TIER_HOST, KIND_LOGITS, c->shape.Vp * sizeof(float), "logits");
    }
    if (host_writes(m->device, tokens, c->T * sizeof(int32_t))) {
        memset(tokens, 0, c->T * sizeof(int32_t));
        memcpy(tokens, m->prompt, c->n_prompt * sizeof(int32_t));
    }
    sample_begin(&text, m->tokenizer, m->step, m->prompt, c->n_prompt);
    const bool alone = m->ranks->size == 1;
    for (size_t position = c->n_prompt; position < total && !(alone && interrupted); position++) {
        while (length < position) length = size_min(c->T, length ? 2 * length : 64);
        sample_logits(m, tokens, position - 1, length, logits, raw);
        if (!host_reads(m->device, logits, V * sizeof(float))) continue;
        const double uniform = sample_uniform(c->seed, m->step, position);
        tokens[position] = sample_token(logits, V, c->temperature, uniform);
        sample_show(&text, tokens[position]);
    }
    sample_end(&text);
    memory_release(memory, TIER_HOST, mark);
    if (alone && interrupted) memory_abandon(memory);
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
    header.tokens_per_step = (int64_t)config_tokens(&m->config, m->ranks->size);
    header.seed = m->config.seed;
    header.data = m->data->train_random ? 0 : m->data->train.fingerprint;
    header.loss_scale = m->loss_scale;
    header.good_steps = m->good_steps;
    header.tuned = tune_hash(m->device);
    memory_begin(m->memory, PHASE_SAVE);
    checkpoint_save(&m->store, &header, m->output);
    memory_end(m->memory);
}

// ---------------------------------------------------------------------------------------------------------------
// A trainer, and its rehearsal

// A trainer of `config` without anything of a run's own: no files, nothing shown. It still needs data. What lives for
// the whole run is taken by trainer_start().
static void trainer_open(Trainer *m, const Config *config, Device *device, Memory *memory, Ranks *ranks) {
    memset(m, 0, sizeof(*m));
    m->config = *config;
    m->device = device;
    m->memory = memory;
    m->ranks = ranks;
    m->loss_scale = config->dtype == FP16 ? (double)LOSS_SCALE_FIRST : 1.0;
    m->layers = (Layer *)calloc(config->shape.L, sizeof(Layer));
    if (!m->layers) die("out of memory at the start");
}

static void trainer_close(Trainer *m) { free(m->layers); }

// Takes what lives for the whole run, and gives it its first values.
static void trainer_start(Trainer *m) {
    const Config *c = &m->config;
    Memory *memory = m->memory;
    memory_begin(memory, PHASE_SETUP);
    device_events_reset(m->device);
    store_open(&m->store, m->device, memory, m->ranks, c->shape, c->dtype, &c->place, config_stream_bytes(c));
    batch_open(&m->batch, m->device, memory, c, m->data, m->ranks);
    m->results = (double *)memory_keep(memory, TIER_DEVICE, KIND_DATA, RESULTS * sizeof(double), "results");
    m->host_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA, RESULTS * sizeof(double), "results");
    m->all_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA,
                                           (size_t)m->ranks->size * (RESULTS + 2) * sizeof(double), "results of ranks");
    if (c->load) checkpoint_load(&m->store, m->checkpoint, c->resume);
    else store_initialise(&m->store, c->seed);
    memory_end(memory);
}

// Everything that a run of this configuration will do, once: the plan is what it leaves on a PLAN device.
static void rehearse(const Config *config, Device *device, Memory *memory, Ranks *ranks, Plan *plan) {
    Trainer m;
    StepRow row;
    Data data;
    memset(&data, 0, sizeof(data));
    data.train_random = data.validation_random = true;
    trainer_open(&m, config, device, memory, ranks);
    m.data = &data;
    trainer_start(&m);
    device->flops = device->bytes = 0;
    train_step(&m, &row);
    plan->flops = device->flops;
    plan->bytes = device->bytes;
    if (config->validation_batches > 0) validate(&m);
    if (config->sample_length > 0) sample(&m);
    if (config->save) save(&m);
    trainer_close(&m);
}

// ---------------------------------------------------------------------------------------------------------------
// The run

// A trainer and what stands around it.
typedef struct {
    Job job;
    Ranks ranks;
    Device device;
    Memory memory;
    Planner planner;
    Plan plan;          // of this run
    size_t plain_peak;  // device bytes that the same run would peak at without the memory flags
    Trainer trainer;
    Report report;
    Log log;
    double matmul_rate;  // measured, operations per second
} Run;

enum { SKIPS_IN_A_ROW = 10, SKIPS_OF_FP16 = 40 };

// Somebody wants the run to end; all ranks learn it at the end of the same step.
static bool stopped(const Trainer *m) { return m->ranks->size == 1 ? interrupted : m->stop; }

static void on_signal(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);  // a second one ends the program at once
}

// Compares the plan with the budgets. What does not fit is refused (exit 1); with --plan it is only said.
static void run_check(Run *r) {
    const Ledger *plan = &r->plan.ledger;
    const Options *o = &r->job.options;
    Budget budget;
    budget_open(&budget, o, &r->device, &r->ranks);
    ranks_barrier(&r->ranks);  // before anybody reserves what others have counted as available
    bool device_fits = budget_needed(&budget, plan, TIER_DEVICE) <= budget.bytes[TIER_DEVICE];
    Tier tier = device_fits && !budget_fits(&budget, plan) ? TIER_HOST : TIER_DEVICE;
    size_t usable = budget.bytes[tier], needed = budget_needed(&budget, plan, tier), least;
    char flags[256], message[1024];
    if (budget_fits(&budget, plan)) {
        printf("fits: %.1f MiB of %.1f MiB", report_mib(needed), report_mib(usable));
        if (!budget.shared) {
            printf(" on the device, %.1f MiB of %.1f MiB on the host", report_mib(ledger_peak(plan, TIER_HOST)),
                   report_mib(budget.bytes[TIER_HOST]));
        }
        printf(" (%.3g %% headroom)\n", o->headroom);
        return;
    }
    int n = snprintf(message, sizeof(message),
                     "does not fit%s: the plan needs %zu bytes (%.1f MiB, peak in phase %s), %zu bytes (%.1f MiB) are "
                     "usable (%.3g %% headroom). ", tier == TIER_HOST ? " in the host's memory" : "",
                     needed, report_mib(needed), PHASE_NAMES[ledger_peak_phase(plan, tier)], usable,
                     report_mib(usable), o->headroom);
    if (plan_search(&r->planner, &r->job.config, plan, &budget, tier, &least, flags, sizeof(flags))) {
        snprintf(message + n, sizeof(message) - (size_t)n, "This would fit: %s", flags);
    } else {
        snprintf(message + n, sizeof(message) - (size_t)n, "No flags make it fit: the least is %.1f MiB on the %s. "
                 "Take a smaller -e, -t or --vocab", report_mib(least), TIER_NAMES[tier]);
    }
    if (!o->plan) die("%s", message);
    printf("%s\n", message);
}

// Plans the run and the same run without memory flags; says so; refuses what does not fit.
static void run_plan(Run *r) {
    const Config *config = &r->job.config, plain = config_plain(config);
    Plan other;
    plan_make(&r->planner, config, r->device.matmul, &r->plan);
    plan_make(&r->planner, &plain, NULL, &other);
    r->plain_peak = ledger_peak(&other.ledger, TIER_DEVICE);
    report_table(&r->plan.ledger, "planned, MiB");
    printf("a step     %.3g floating-point operations, %.3g bytes moved\n", r->plan.flops, r->plan.bytes);
    run_check(r);
    fflush(stdout);
}

// After a step: validation, the log, a sample, a checkpoint, as they fall due.
static void run_after_step(Run *r, StepRow *row) {
    Trainer *m = &r->trainer;
    const Options *o = &r->job.options;
    bool last = m->step == m->config.steps;
    if (row->skipped) {
        printf("%sstep %lld skipped: its gradients are not finite; nothing was updated\n",
               r->report.terminal ? "\n" : "", (long long)m->step);
    }
    if (m->config.validation_batches && (last || m->step % o->validate_every == 0) && !stopped(m)) {
        row->val_loss = validate(m);
        row->validated = true;
        printf("%sstep %lld | validation loss %.4f\n", r->report.terminal ? "\n" : "", (long long)m->step,
               row->val_loss);
    }
    log_step(&r->log, row);
    bool finite = isfinite(row->train_loss);
    if (m->skipped_in_a_row >= SKIPS_IN_A_ROW && !(finite && m->config.dtype == FP16)) {
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

// Puts a resumed run where its checkpoint was.
static void run_resume(Run *r) {
    const CheckpointHeader *p = &r->job.position;
    Trainer *m = &r->trainer;
    if (!r->job.config.resume) return;
    m->step = p->step;
    m->updates = p->updates;
    m->tokens = p->tokens;
    if (m->config.dtype == FP16 && p->dtype == FP16) {
        m->loss_scale = p->loss_scale;
        m->good_steps = p->good_steps;
    }
}

// Reserves what the plan says, fills it, and joins the trainer with what it reads and writes; nothing is allocated
// afterwards.
static void run_start(Run *r) {
    const Options *o = &r->job.options;
    const char *beside = o->output ? o->output : ".";
    Trainer *m = &r->trainer;
    matmul_create(&r->device);
    memory_reserve(&r->memory, &r->device, &r->plan.ledger, o->swap_directory ? o->swap_directory : beside,
                   r->ranks.rank);
    if (o->tune && r->device.real == DEVICE_CUDA) CUDA_ONLY(tune_cuda(&r->device, &r->memory, o->tune));
    if (r->job.config.resume && r->job.position.tuned != tune_hash(&r->device)) {
        printf("note: --tune's choices differ from the saved run's, so the bits may, too\n");
    }
    trainer_start(m);
}

static void run_train(Run *r) {
    Trainer *m = &r->trainer;
    const double started = device_seconds(), rate = r->matmul_rate * m->ranks->size;
    const int64_t first = m->step, steps = m->config.steps;
    while (m->step < steps && !stopped(m)) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        double start = device_seconds();
        train_step(m, &row);
        double seconds = device_seconds() - start;
        row.ms = 1e3 * seconds;
        row.tokens_per_second = (double)config_tokens(&m->config, m->ranks->size) / seconds;
        row.mfu = row.tokens_per_second * config_flops_per_token(&m->config) / rate;
        report_phases(&r->report, &r->plan.ledger, &r->memory.ledger);
        double per_step = (device_seconds() - started) / (double)(m->step - first);
        report_step(&r->report, &m->config, m->ranks->size, &r->memory.ledger, &row,
                    per_step * (double)(steps - m->step));
        run_after_step(r, &row);
        report_phases(&r->report, &r->plan.ledger, &r->memory.ledger);
    }
    if (r->report.terminal) putchar('\n');
    if (!stopped(m)) return;
    if (m->config.save) save(m);
    printf("interrupted after step %lld; %s\n", (long long)m->step,
           m->config.save ? "saved, go on with -y 1" : "nothing saved, since there is no -o");
}

// A command that needs less memory than this one, and its peak.
static size_t run_suggest(const Run *r, char *text, size_t size) {
    const Config next = plan_next(&r->job.config);
    Plan plan;
    plan_make(&r->planner, &next, NULL, &plan);
    int n = snprintf(text, size, "./train_gpt -e %s ", r->job.options.model);
    config_flags(&next, &r->job.config, r->ranks.size, text + n, size - (size_t)n);
    return ledger_peak(&plan.ledger, TIER_DEVICE);
}

// From the command line to a trainer that has taken nothing yet.
static Run *run_open(int argc, char **argv) {
    Run *r = (Run *)calloc(1, sizeof(Run));
    if (!r) die("out of memory at the start");
    Options *o = &r->job.options;
    ranks_open(&r->ranks);  // first, so that a wrong flag ends all ranks
    flags_parse(o, argc, argv);
    if (o->help) {
        flags_help(stdout);
        ranks_end();
        exit(0);
    }
    if (o->ranks && o->ranks != r->ranks.size) {
        if (!o->plan || r->ranks.size > 1) {
            flags_fail("--ranks %lld is for a --plan in one process; scripts/launch.sh starts ranks",
                       (long long)o->ranks);
        }
        ranks_open_plan(&r->ranks, (int)o->ranks);
    }
    device_open(&r->device, o->device, &o->device_memory, &r->ranks);
    collective_open(&r->ranks, &r->device);
    job_open(&r->job, &r->device, r->ranks.size);
    r->planner.device = &r->device;
    r->planner.n_ranks = r->ranks.size;
    r->planner.pass = rehearse;
    Trainer *m = &r->trainer;
    trainer_open(m, &r->job.config, &r->device, &r->memory, &r->ranks);
    m->data = &r->job.data;
    m->tokenizer = &r->job.tokenizer;
    m->prompt = r->job.prompt;
    m->checkpoint = r->job.checkpoint;
    m->output = o->output;
    run_resume(r);
    return r;
}

static void run_close(Run *r) {
    trainer_close(&r->trainer);
    if (r->memory.plan) memory_close(&r->memory);
    device_close(&r->device);
    ranks_close(&r->ranks);
    job_close(&r->job);
    log_close(&r->log);
    free(r);
}

static void run(Run *r) {
    const char *output = r->job.options.output;
    char next[512];
    size_t next_peak = run_suggest(r, next, sizeof(next));
    r->matmul_rate = device_matmul_rate(&r->device, r->job.config.dtype);
    printf("matmul     %.1f GFLOP/s in %s, measured; mfu is a share of this\n", r->matmul_rate * 1e-9,
           number_name(r->job.config.dtype));
    fflush(stdout);
    r->report.terminal = isatty(STDOUT_FILENO) == 1 && r->ranks.size == 1;
    log_open(&r->log, r->ranks.rank == 0 ? output : NULL, r->job.config.resume ? r->trainer.step : -1);
    run_start(r);
    const int signals[] = {SIGINT, SIGTERM, SIGUSR1};  // mpirun passes the last on
    for (int i = 0; i < 3; i++) signal(signals[i], on_signal);
    run_train(r);
    report_table(&r->memory.ledger, "measured, MiB");
    report_end(&r->plan.ledger, &r->device, r->plain_peak, next_peak, next);
    if (output) log_memory_csv(output, &r->ranks, &r->plan.ledger, &r->memory.ledger);
}

#ifndef TRAIN_GPT_NO_MAIN
int main(int argc, char **argv) {
    threads_give_way(argv);
    Run *r = run_open(argc, argv);
    const Options *o = &r->job.options;
    report_banner(&r->job, &r->device, &r->ranks);
    report_position(&r->job, &r->ranks);
    run_plan(r);
    if (o->output) log_make_directory(o->output);
    if (o->output && o->plan) log_memory_csv(o->output, &r->ranks, &r->plan.ledger, NULL);
    if (!o->plan) run(r);
    run_close(r);
    ranks_end();
    return 0;
}
#endif
