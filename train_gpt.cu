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
#include "dev/tensor.h"
#include "dev/tune.h"
#include "dev/update.h"

// ---------------------------------------------------------------------------------------------------------------
// State

enum { RESULT_LOSS, RESULT_NORM, RESULTS };  // sum of the step's losses; square of the norm of its gradients

// What a training step works on. A run has one, and so has each of its plans.
typedef struct {
    Config config;
    Context context;  // the device, its memory, config.dtype
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
// Its buffers, and which of them are kept for the backward: levels.h. Its weights and their gradients: tensor.h.

static Attention layer_attention(const Config *config, size_t B, size_t T) {
    const Attention attention = {config->attention, B, T, config->shape.C, config->shape.NH};
    return attention;
}

// Takes those of a layer's buffers that are kept at a level (`kept`), or all the others, as scratch (levels.h).
static void layer_take(Trainer *trainer, Layer *a, size_t B, size_t T, Level level, bool kept) {
    const Config *c = &trainer->config;
    const Attention attention = layer_attention(c, B, T);
    for (int i = 0; i < N_LEVEL_BUFFERS; i++) {
        const LevelBuffer *buffer = &LEVEL_BUFFERS[i];
        void **pointer = level_buffer(a, buffer);
        size_t row_bytes = buffer->channels * c->shape.C * number_size(c->dtype) + buffer->floats * sizeof(float);
        size_t n_bytes = pointer == &a->saved ? attention_saved_bytes(&attention, c->dtype) : B * T * row_bytes;
        if (level_keeps(level, buffer) != kept) continue;
        *pointer = memory_push(trainer->context.memory, TIER_DEVICE, kept ? KIND_ACTIVATIONS : KIND_SCRATCH, n_bytes,
                               buffer->owner);
    }
}

// From `in` to a->gelu: everything that a backward needs. in (B,T,C) is the stream before the layer:
//
//     ln1 = LN(in)   qkv = ln1 qkvw^T + qkvb   atty = attention(qkv)   residual = in + atty attprojw^T + attprojb
//     ln2 = LN(residual)   fch = ln2 fcw^T + fcb   gelu = GELU(fch)
static void layer_forward_to_gelu(Trainer *trainer, size_t l, size_t B, size_t T, const void *in, const Layer *a) {
    const Context *context = &trainer->context;
    const size_t rows = B * T, C = trainer->config.shape.C;
    const LayerWeights w = tensor_layer_weights(&trainer->store, l);
    const LayerNorm ln1 = {w.ln1w, w.ln1b, a->ln1_mean, a->ln1_rstd, rows, C};
    const LayerNorm ln2 = {w.ln2w, w.ln2b, a->ln2_mean, a->ln2_rstd, rows, C};
    const Attention attention = layer_attention(&trainer->config, B, T);
    layernorm_forward(context, a->ln1, in, &ln1);
    matmul_forward(context, a->qkv, a->ln1, w.qkvw, w.qkvb, rows, C, 3 * C);
    attention_forward(context, &attention, a->atty, a->saved, a->qkv);
    matmul_forward(context, a->residual, a->atty, w.attprojw, w.attprojb, rows, C, C);
    layernorm_forward_residual(context, a->ln2, a->residual, in, a->residual, &ln2);
    matmul_forward(context, a->fch, a->ln2, w.fcw, w.fcb, rows, C, 4 * C);
    gelu_forward(context, a->gelu, a->fch, rows * 4 * C);
}

// The rest: out (B,T,C) = residual + gelu fcprojw^T + fcprojb, the stream after the layer.
static void layer_forward_out(Trainer *trainer, size_t l, size_t B, size_t T, const Layer *a) {
    const Context *context = &trainer->context;
    const size_t rows = B * T, C = trainer->config.shape.C;
    const LayerWeights w = tensor_layer_weights(&trainer->store, l);
    matmul_forward(context, a->out, a->gelu, w.fcprojw, w.fcprojb, rows, 4 * C, C);
    residual_forward(context, a->out, a->residual, a->out, rows * C);
}

// Makes again what the layer's level did not keep; the same operations on the same values give the same bits.
static void layer_recompute(Trainer *trainer, size_t l, size_t B, size_t T, const void *in, Layer *a) {
    const Context *context = &trainer->context;
    const Level level = config_level(&trainer->config, l);
    const size_t rows = B * T, C = trainer->config.shape.C;
    layer_take(trainer, a, B, T, level, false);
    if (level_recomputes(level, LEVEL_BLOCKS)) {
        layer_forward_to_gelu(trainer, l, B, T, in, a);
        return;
    }
    if (level_recomputes(level, LEVEL_LAYERNORMS)) {
        const LayerWeights w = tensor_layer_weights(&trainer->store, l);
        const LayerNorm ln1 = {w.ln1w, w.ln1b, a->ln1_mean, a->ln1_rstd, rows, C};
        const LayerNorm ln2 = {w.ln2w, w.ln2b, a->ln2_mean, a->ln2_rstd, rows, C};
        layernorm_recompute(context, a->ln1, in, &ln1);
        layernorm_recompute(context, a->ln2, a->residual, &ln2);
    }
    if (level_recomputes(level, LEVEL_GELU)) gelu_forward(context, a->gelu, a->fch, rows * 4 * C);
}

// trainer->dresidual: the gradient of a->out becomes the gradient of `in`. Both branches add to it, the MLP first. Of
// each product first the gradients of its bias and its weights, from dout and in, then din, which may take the place
// of in. Gradients of activations take the place of the activations they belong to, as soon as those are no longer
// needed; only datty and dqkv get memory. add: to what earlier micro-batches left.
static void layer_backward(Trainer *trainer, size_t l, size_t B, size_t T, const void *in, Layer *a, bool add) {
    const Context *context = &trainer->context;
    const size_t rows = B * T, C = trainer->config.shape.C, size = number_size(trainer->config.dtype);
    void *dresidual = trainer->dresidual;
    layer_recompute(trainer, l, B, T, in, a);
    const LayerWeights w = tensor_layer_weights(&trainer->store, l);
    const LayerGradients g = tensor_layer_gradients(&trainer->store, l);
    const LayerNorm ln1 = {w.ln1w, w.ln1b, a->ln1_mean, a->ln1_rstd, rows, C};
    const LayerNorm ln2 = {w.ln2w, w.ln2b, a->ln2_mean, a->ln2_rstd, rows, C};
    const LayerNormGradients dln1wb = {g.ln1w, g.ln1b, add}, dln2wb = {g.ln2w, g.ln2b, add};
    const Attention attention = layer_attention(&trainer->config, B, T);

    // The MLP.
    void *dgelu = a->gelu, *dfch = a->gelu, *dln2 = a->ln2, *dln1 = a->ln1;
    bias_backward(context, g.fcprojb, dresidual, rows, C, add);
    matmul_backward_weight(context, g.fcprojw, dresidual, a->gelu, rows, 4 * C, C, add);
    matmul_backward_input(context, dgelu, dresidual, w.fcprojw, rows, 4 * C, C);
    gelu_backward_bias(context, dfch, g.fcb, dgelu, a->fch, rows, 4 * C, add);
    matmul_backward_weight(context, g.fcw, dfch, a->ln2, rows, C, 4 * C, add);
    matmul_backward_input(context, dln2, dfch, w.fcw, rows, C, 4 * C);
    layernorm_backward(context, dresidual, &dln2wb, dln2, a->residual, &ln2, true);

    // Attention. What is pushed here goes with the layer's activations (model_backward).
    Memory *memory = context->memory;
    void *datty = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * C * size, "dattention");
    void *dqkv = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, rows * 3 * C * size, "dqkv");
    bias_backward(context, g.attprojb, dresidual, rows, C, add);
    matmul_backward_weight(context, g.attprojw, dresidual, a->atty, rows, C, C, add);
    matmul_backward_input(context, datty, dresidual, w.attprojw, rows, C, C);
    attention_backward(context, &attention, dqkv, datty, a->qkv, a->atty, a->saved);
    bias_backward(context, g.qkvb, dqkv, rows, 3 * C, add);
    matmul_backward_weight(context, g.qkvw, dqkv, a->ln1, rows, C, 3 * C, add);
    matmul_backward_input(context, dln1, dqkv, w.qkvw, rows, C, 3 * C);
    layernorm_backward(context, dresidual, &dln1wb, dln1, in, &ln1, true);
}

// ---------------------------------------------------------------------------------------------------------------
// The model

// From trainer->batch.tokens to the residual stream after the last layer. keep: for a backward; every layer leaves on
// the stack what its level keeps. Otherwise two buffers of the stream and one layer's scratch serve for all layers.
static const void *model_forward(Trainer *trainer, size_t B, size_t T, bool keep) {
    Memory *memory = trainer->context.memory;
    Store *store = &trainer->store;
    size_t C = trainer->config.shape.C, n_bytes = B * T * C * number_size(trainer->config.dtype);
    Kind kind = keep ? KIND_ACTIVATIONS : KIND_SCRATCH;
    const bool away = keep && store_stream_is_away(store);
    void *x = away ? store_stream_begin(store, 0) : memory_push(memory, TIER_DEVICE, kind, n_bytes, "encoder");
    void *spare = keep ? NULL : memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer");
    store_weights_begin(store, 0, 1);
    encoder_forward(&trainer->context, x, trainer->batch.tokens, tensor_weights(store, 0, TENSOR_WTE),
                    tensor_weights(store, 0, TENSOR_WPE), B, T, C);
    if (away) store_stream_written(store, 0);
    trainer->encoded = x;
    for (size_t l = 0; l < trainer->config.shape.L; l++) {
        Layer *a = &trainer->layers[l];
        const Level level = keep ? config_level(&trainer->config, l) : LEVEL_BLOCKS;
        a->mark = memory_mark(memory, TIER_DEVICE);
        a->out = away ? store_stream_begin(store, l + 1)
                 : keep ? memory_push(memory, TIER_DEVICE, kind, n_bytes, "layer") : spare;
        store_weights_begin(store, l + 1, l + 1 < trainer->config.shape.L ? (int64_t)l + 2 : NO_BLOCK);
        layer_take(trainer, a, B, T, level, true);
        size_t mark = memory_mark(memory, TIER_DEVICE);
        layer_take(trainer, a, B, T, level, false);
        layer_forward_to_gelu(trainer, l, B, T, x, a);
        layer_forward_out(trainer, l, B, T, a);
        store_weights_done(store, l + 1);
        if (away) store_stream_written(store, l + 1);
        memory_release(memory, TIER_DEVICE, mark);
        spare = x;
        x = a->out;
    }
    return x;
}

// What the head works with: the final LayerNorm of the stream, and the logits of a chunk of its rows.
typedef struct {
    LayerNorm lnf;
    char *normal;          // (rows,C) the normalised stream; a chunk's rows become their own gradient
    void *logits;          // (chunk,Vp), and become their own gradient
    size_t chunk, mark;
} Head;

// Takes the head's memory and normalises `residual` (rows,C), the stream after the last layer.
static Head head_begin(Trainer *trainer, size_t rows, const void *residual) {
    Memory *memory = trainer->context.memory;
    const ModelShape *s = &trainer->config.shape;
    const size_t size = number_size(trainer->config.dtype);
    Head head;
    head.mark = memory_mark(memory, TIER_DEVICE);
    head.chunk = size_ceil_div(rows, size_min(rows, trainer->config.head_chunks));
    head.lnf.w = tensor_weights(&trainer->store, 0, TENSOR_LNFW);
    head.lnf.b = tensor_weights(&trainer->store, 0, TENSOR_LNFB);
    head.lnf.mean = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf mean");
    head.lnf.rstd = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * sizeof(float), "lnf rstd");
    head.lnf.rows = rows;
    head.lnf.C = s->C;
    head.normal = (char *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * s->C * size, "lnf");
    head.logits = memory_push(memory, TIER_DEVICE, KIND_LOGITS, head.chunk * s->Vp * size, "logits");
    layernorm_forward(&trainer->context, head.normal, residual, &head.lnf);
    return head;
}

// The logits of the chunk that begins at `row`, with its targets and the place of its losses.
static Classifier head_logits(Trainer *trainer, const Head *head, size_t row) {
    const ModelShape *s = &trainer->config.shape;
    const size_t n = size_min(head->chunk, head->lnf.rows - row);
    const void *normal = number_pointer(trainer->config.dtype, head->normal, row * s->C);
    const Classifier chunk = {trainer->batch.losses + row, head->logits, trainer->batch.targets + row, n, s->V, s->Vp};
    matmul_forward(&trainer->context, head->logits, normal, tensor_weights(&trainer->store, 0, TENSOR_WTE), NULL, n,
                   s->C, s->Vp);
    return chunk;
}

static void head_end(Trainer *trainer, const Head *head) {
    store_weights_done(&trainer->store, 0);
    memory_release(trainer->context.memory, TIER_DEVICE, head->mark);
}

// The losses of all B T rows, in --head-chunks chunks of rows: the logits (B,T,Vp) would be the largest buffer of all,
// and only a chunk of them exists at a time.
static void model_losses(Trainer *trainer, size_t B, size_t T, const void *residual) {
    store_weights_begin(&trainer->store, 0, NO_BLOCK);
    const Head head = head_begin(trainer, B * T, residual);
    for (size_t row = 0; row < B * T; row += head.chunk) {
        const Classifier chunk = head_logits(trainer, &head, row);
        classifier_forward(&trainer->context, &chunk);
    }
    head_end(trainer, &head);
}

// The losses, the gradients of the head's weights, and trainer->dresidual, the gradient of `residual`, scaled by
// `scale`. The head is tied: its weights are the embedding's, wte (Vp,C), whose gradient gets this part here and the
// encoder's at the end of the backward. add: to what earlier micro-batches left.
static void model_losses_and_gradients(Trainer *trainer, size_t B, size_t T, const void *residual, float scale,
                                       bool add) {
    const Context *context = &trainer->context;
    Store *store = &trainer->store;
    const size_t C = trainer->config.shape.C, Vp = trainer->config.shape.Vp;
    store_weights_begin(store, 0, (int64_t)trainer->config.shape.L);
    store_gradients_begin(store, 0, (int64_t)trainer->config.shape.L);
    const Head head = head_begin(trainer, B * T, residual);
    const void *wte = tensor_weights(store, 0, TENSOR_WTE);
    float *dwte = tensor_gradients(store, 0, TENSOR_WTE);
    for (size_t row = 0; row < B * T; row += head.chunk) {
        const Classifier chunk = head_logits(trainer, &head, row);
        void *normal = number_pointer(context->dtype, head.normal, row * C), *dlogits = chunk.logits;
        classifier_forward_backward(context, &chunk, scale);
        matmul_backward_weight(context, dwte, dlogits, normal, chunk.rows, C, Vp, add || row > 0);
        matmul_backward_input(context, normal, dlogits, wte, chunk.rows, C, Vp);
    }
    const LayerNormGradients dlnf = {tensor_gradients(store, 0, TENSOR_LNFW), tensor_gradients(store, 0, TENSOR_LNFB),
                                     add};
    layernorm_backward(context, trainer->dresidual, &dlnf, head.normal, residual, &head.lnf, false);
    head_end(trainer, &head);
}

// From trainer->dresidual back to the embeddings. Each layer gives its activations back as soon as it is done, so
// memory falls as the backward goes down; what lives away (weights, gradients, the stream) is sent for one block ahead.
static void model_backward(Trainer *trainer, size_t B, size_t T, bool add) {
    Store *store = &trainer->store;
    const ModelShape *s = &trainer->config.shape;
    const bool away = store_stream_is_away(store);
    if (away) store_stream_done(store, s->L);
    for (size_t l = s->L; l-- > 0;) {
        const void *in = away ? store_stream_read(store, l) : l > 0 ? trainer->layers[l - 1].out : trainer->encoded;
        store_weights_begin(store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        store_gradients_begin(store, l + 1, l > 0 ? (int64_t)l : NO_BLOCK);
        layer_backward(trainer, l, B, T, in, &trainer->layers[l], add);
        store_weights_done(store, l + 1);
        store_gradients_done(store, l + 1);
        if (away) store_stream_done(store, l);
        memory_release(trainer->context.memory, TIER_DEVICE, trainer->layers[l].mark);
    }
    const EncoderTokens tokens = {trainer->batch.tokens, batch_positions(&trainer->batch), trainer->batch.n_distinct, B,
                                  T};
    encoder_backward(&trainer->context, tensor_gradients(store, 0, TENSOR_WTE), tensor_gradients(store, 0, TENSOR_WPE),
                     trainer->dresidual, &tokens, s->maxT, s->C, add);
    store_gradients_done(store, 0);
}

// ---------------------------------------------------------------------------------------------------------------
// The training step

// Forward and backward of the micro-batch in trainer->batch, the step's first or not, its last or not. scale: one over
// the number of targets of the whole step. The sum of the losses goes to the results.
static void train_micro_batch(Trainer *trainer, float scale, bool first, bool last) {
    Memory *memory = trainer->context.memory;
    store_micro_batch(&trainer->store, first, last);
    const bool add = store_gradients_add(&trainer->store);
    const size_t B = trainer->config.B, T = trainer->config.T, mark = memory_mark(memory, TIER_DEVICE);
    const size_t stream_bytes = B * T * trainer->config.shape.C * number_size(trainer->config.dtype);

    memory_begin(memory, PHASE_FORWARD);
    trainer->dresidual = memory_push(memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS, stream_bytes, "dresidual");
    const void *residual = model_forward(trainer, B, T, true);
    memory_end(memory);

    memory_begin(memory, PHASE_HEAD);
    model_losses_and_gradients(trainer, B, T, residual, scale, add);
    classifier_sum(trainer->context.device, trainer->results + RESULT_LOSS, trainer->batch.losses, B * T, !first);
    memory_end(memory);

    memory_begin(memory, PHASE_BACKWARD);
    model_backward(trainer, B, T, add);
    batch_done(&trainer->batch);
    memory_release(memory, TIER_DEVICE, mark);
    memory_end(memory);
}

// What the host needs to know of a step or a validation: sums over all ranks. On PLAN, nothing: zeros.
typedef struct {
    double loss, square;  // of the norm of the gradients, times the loss scale
    size_t n;             // a count
} Results;

// The host waits for the loss and the norm: they decide what the update does, on all ranks alike. Sums over the ranks
// are in their order. n: a count of this rank.
static Results train_results(Trainer *trainer, size_t n) {
    Device *device = trainer->context.device;
    Results sum = {0, 0, 0};
    double *results = trainer->host_results;
    device_download(device, results, trainer->results, RESULTS * sizeof(double));
    if (!host_reads(device, results, RESULTS * sizeof(double))) return sum;
    const double own[RESULTS + 2] = {results[RESULT_LOSS], results[RESULT_NORM], (double)n, (double)interrupted};
    ranks_gather(trainer->ranks, trainer->all_results, own, RESULTS + 2);
    double interrupted_ranks = 0;
    for (int r = 0; r < trainer->ranks->size; r++) {
        const double *of_rank = trainer->all_results + r * (RESULTS + 2);
        sum.loss += of_rank[RESULT_LOSS];
        sum.square += of_rank[RESULT_NORM];
        sum.n += (size_t)of_rank[RESULTS];
        interrupted_ranks += of_rank[RESULTS + 1];
    }
    if (trainer->ranks->size > 1 && interrupted_ranks > 0) trainer->stop = true;
    return sum;
}

// Clipping and AdamW. The norm is that of all gradients of all ranks; where it is above --clip they are scaled down to
// it, by AdamW itself (gradient_scale), which undoes the loss scale as well. A norm that is not finite skips the
// update: nothing moves. Returns the step's sum of losses.
static double train_update(Trainer *trainer, StepRow *row) {
    memory_begin(trainer->context.memory, PHASE_UPDATE);
    update_norm(&trainer->store, trainer->results + RESULT_NORM);
    const Results results = train_results(trainer, 0);
    const double norm = sqrt(results.square) / trainer->loss_scale, clip = trainer->config.clip;
    const double clipping = clip > 0 && norm > clip ? clip / norm : 1.0;
    const double lr = schedule_lr(&trainer->config.schedule, trainer->updates);
    AdamW update = adamw_step((float)lr, (float)trainer->config.decay, trainer->updates + 1,
                              (float)(clipping / trainer->loss_scale), isfinite(norm));
    update_blocks(&trainer->store, &update);
    memory_end(trainer->context.memory);
    row->norm = norm;
    row->lr = lr;
    row->skipped = !update.apply;
    return results.loss;
}

// After a step in fp16: a skipped one halves the loss scale, many good ones double it.
static void train_loss_scale(Trainer *trainer, bool skipped) {
    if (trainer->config.dtype != FP16) return;
    if (skipped) trainer->loss_scale /= 2;
    trainer->good_steps = skipped ? 0 : trainer->good_steps + 1;
    if (trainer->good_steps < LOSS_SCALE_GOOD_STEPS) return;
    trainer->loss_scale *= 2;
    trainer->good_steps = 0;
}

// One attempted step: all micro-batches, the update; counts it. A micro-batch's losses are scaled by the targets of the
// whole step, so that the gradients of micro-batches and ranks simply add up.
static void train_step(Trainer *trainer, StepRow *row) {
    threads_check(trainer->context.device->threads);
    memory_step(trainer->context.memory);
    trainer->ranks->n_sent = trainer->context.memory->disk.n_read = trainer->context.memory->disk.n_written = 0;
    const size_t n_targets = batch_step_targets(&trainer->batch, trainer->step);
    const size_t n_micro_batches = trainer->config.micro_batches;
    const float scale = (float)(trainer->loss_scale / (double)n_targets);
    for (size_t i = 0; i < n_micro_batches; i++) {
        batch_train(&trainer->batch, trainer->step, i);
        train_micro_batch(trainer, scale, i == 0, i + 1 == n_micro_batches);
    }
    row->train_loss = train_update(trainer, row) / (double)n_targets;
    trainer->step++;
    trainer->tokens += (int64_t)config_tokens(&trainer->config, trainer->ranks->size);
    trainer->updates += row->skipped ? 0 : 1;
    trainer->skipped_in_a_row = row->skipped ? trainer->skipped_in_a_row + 1 : 0;

    row->step = trainer->step;
    row->tokens = trainer->tokens;
    row->loss_scale = trainer->loss_scale;  // of this step
    train_loss_scale(trainer, row->skipped);
    row->good_steps = trainer->good_steps;
    row->peak_device_bytes = trainer->context.memory->step_peak[TIER_DEVICE];
    row->peak_host_bytes = trainer->context.memory->step_peak[TIER_HOST];
    row->sent_bytes = trainer->ranks->n_sent;
    row->disk_read_bytes = trainer->context.memory->disk.n_read;
    row->disk_written_bytes = trainer->context.memory->disk.n_written;
}

// ---------------------------------------------------------------------------------------------------------------
// Evaluation, samples, saving

// Mean loss over the validation data, at most -m batches of it.
static double validate(Trainer *trainer) {
    Memory *memory = trainer->context.memory;
    const size_t B = trainer->config.B, T = trainer->config.T, N = (size_t)trainer->ranks->size;
    size_t n_targets = 0;
    memory_begin(memory, PHASE_VALIDATION);
    for (size_t batch = 0; batch < trainer->config.validation_batches; batch += N) {
        size_t mark = memory_mark(memory, TIER_DEVICE);
        n_targets += batch_validation(&trainer->batch, batch + (size_t)trainer->ranks->rank);
        const void *residual = model_forward(trainer, B, T, false);
        model_losses(trainer, B, T, residual);
        classifier_sum(trainer->context.device, trainer->results + RESULT_LOSS, trainer->batch.losses, B * T,
                       batch > 0);
        batch_done(&trainer->batch);
        memory_release(memory, TIER_DEVICE, mark);
    }
    const Results results = train_results(trainer, n_targets);
    memory_end(memory);
    return results.n > 0 ? results.loss / (double)results.n : 0.0;
}

// The logits after position `last` of a sequence, whose first `length` tokens are on the host, as fp32 there; raw: room
// for them in the compute type. `length` is how much of it is computed: few lengths, so that few shapes of products are
// needed.
static void sample_logits(Trainer *trainer, const int32_t *sequence, size_t last, size_t length, float *logits,
                          void *raw) {
    const Context *context = &trainer->context;
    const ModelShape *s = &trainer->config.shape;
    Dtype dtype = trainer->config.dtype;
    Device *device = context->device;
    Memory *memory = context->memory;
    Store *store = &trainer->store;
    size_t mark = memory_mark(memory, TIER_DEVICE);
    trainer->batch.tokens = (int32_t *)(void *)trainer->batch.slots[0].data;
    device_upload(device, trainer->batch.tokens, sequence, length * sizeof(int32_t));
    const void *residual = number_pointer_const(dtype, model_forward(trainer, 1, length, false), last * s->C);
    float *statistics = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 2 * sizeof(float), "lnf statistics");
    void *lnf = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, s->C * number_size(dtype), "lnf");
    void *out = memory_push(memory, TIER_DEVICE, KIND_LOGITS, s->Vp * number_size(dtype), "logits");
    store_weights_begin(store, 0, NO_BLOCK);
    const LayerNorm ln = {tensor_weights(store, 0, TENSOR_LNFW), tensor_weights(store, 0, TENSOR_LNFB), statistics,
                          statistics + 1, 1, s->C};
    layernorm_forward(context, lnf, residual, &ln);
    matmul_forward(context, out, lnf, tensor_weights(store, 0, TENSOR_WTE), NULL, 1, s->C, s->Vp);
    store_weights_done(store, 0);
    device_download(device, raw, out, s->Vp * number_size(dtype));
    if (host_reads(device, raw, s->Vp * number_size(dtype)) && host_writes(device, logits, s->Vp * sizeof(float))) {
        for (size_t v = 0; v < s->V; v++) logits[v] = number_get(dtype, raw, v);
    }
    memory_release(memory, TIER_DEVICE, mark);
}

// Shows a sample of config.sample_length tokens, the prompt among them. A single rank that is interrupted stops.
static void sample(Trainer *trainer) {
    const Config *c = &trainer->config;
    Device *device = trainer->context.device;
    Memory *memory = trainer->context.memory;
    SampleText text;
    size_t total = c->sample_length, mark = memory_mark(memory, TIER_HOST), length = 0, V = c->shape.V;
    memory_begin(memory, PHASE_SAMPLE);
    void *raw = NULL;
    float *logits = NULL;
    int32_t *tokens = trainer->batch.host_tokens[0];
    if (c->n_prompt < total) {  // otherwise the prompt is all there is to print
        raw = memory_push(memory, TIER_HOST, KIND_LOGITS, c->shape.Vp * number_size(c->dtype), "logits");
        logits = (float *)memory_push(memory, TIER_HOST, KIND_LOGITS, c->shape.Vp * sizeof(float), "logits");
    }
    if (host_writes(device, tokens, c->T * sizeof(int32_t))) {
        memset(tokens, 0, c->T * sizeof(int32_t));
        memcpy(tokens, trainer->prompt, c->n_prompt * sizeof(int32_t));
    }
    sample_begin(&text, trainer->tokenizer, trainer->step, trainer->prompt, c->n_prompt);
    const bool alone = trainer->ranks->size == 1;
    for (size_t position = c->n_prompt; position < total && !(alone && interrupted); position++) {
        while (length < position) length = size_min(c->T, length ? 2 * length : 64);
        sample_logits(trainer, tokens, position - 1, length, logits, raw);
        if (!host_reads(device, logits, V * sizeof(float))) continue;
        const double uniform = sample_uniform(c->seed, trainer->step, position);
        tokens[position] = sample_token(logits, V, c->temperature, uniform);
        sample_show(&text, tokens[position]);
    }
    sample_end(&text);
    memory_release(memory, TIER_HOST, mark);
    if (alone && interrupted) memory_abandon(memory);
    else memory_end(memory);
}

static void save(Trainer *trainer) {
    CheckpointHeader header;
    memset(&header, 0, sizeof(header));
    header.step = trainer->step;
    header.updates = trainer->updates;
    header.tokens = trainer->tokens;
    header.B = (int64_t)trainer->config.B;
    header.T = (int64_t)trainer->config.T;
    header.tokens_per_step = (int64_t)config_tokens(&trainer->config, trainer->ranks->size);
    header.seed = trainer->config.seed;
    header.data = trainer->data->train_random ? 0 : trainer->data->train.fingerprint;
    header.loss_scale = trainer->loss_scale;
    header.good_steps = trainer->good_steps;
    header.tuned = tune_hash(trainer->context.device);
    memory_begin(trainer->context.memory, PHASE_SAVE);
    checkpoint_save(&trainer->store, &header, trainer->output);
    memory_end(trainer->context.memory);
}

// ---------------------------------------------------------------------------------------------------------------
// A trainer, and its rehearsal

// A trainer of `config` without anything of a run's own: no files, nothing shown. It still needs data. What lives for
// the whole run is taken by trainer_start().
static void trainer_open(Trainer *trainer, const Config *config, Device *device, Memory *memory, Ranks *ranks) {
    memset(trainer, 0, sizeof(*trainer));
    trainer->config = *config;
    trainer->context.device = device;
    trainer->context.memory = memory;
    trainer->context.dtype = config->dtype;
    trainer->ranks = ranks;
    trainer->loss_scale = config->dtype == FP16 ? (double)LOSS_SCALE_FIRST : 1.0;
    trainer->layers = (Layer *)calloc(config->shape.L, sizeof(Layer));
    if (!trainer->layers) die("out of memory at the start");
}

static void trainer_close(Trainer *trainer) { free(trainer->layers); }

// Takes what lives for the whole run, and gives it its first values.
static void trainer_start(Trainer *trainer) {
    const Config *c = &trainer->config;
    Device *device = trainer->context.device;
    Memory *memory = trainer->context.memory;
    const size_t n_all_results = (size_t)trainer->ranks->size * (RESULTS + 2);
    memory_begin(memory, PHASE_SETUP);
    device_events_reset(device);
    store_open(&trainer->store, device, memory, trainer->ranks, c->shape, c->dtype, &c->place, config_stream_bytes(c));
    batch_open(&trainer->batch, device, memory, c, trainer->data, trainer->ranks);
    trainer->results = (double *)memory_keep(memory, TIER_DEVICE, KIND_DATA, RESULTS * sizeof(double), "results");
    trainer->host_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA, RESULTS * sizeof(double), "results");
    trainer->all_results = (double *)memory_keep(memory, TIER_HOST, KIND_DATA, n_all_results * sizeof(double),
                                                 "results of ranks");
    if (c->load) checkpoint_load(&trainer->store, trainer->checkpoint, c->resume);
    else store_initialise(&trainer->store, c->seed);
    memory_end(memory);
}

// Everything that a run of this configuration will do, once: the plan is what it leaves on a PLAN device.
static void rehearse(const Config *config, Device *device, Memory *memory, Ranks *ranks, Plan *plan) {
    Trainer trainer;
    StepRow row;
    Data data;
    memset(&data, 0, sizeof(data));
    data.train_random = data.validation_random = true;
    trainer_open(&trainer, config, device, memory, ranks);
    trainer.data = &data;
    trainer_start(&trainer);
    device->flops = device->bytes = 0;
    train_step(&trainer, &row);
    plan->flops = device->flops;
    plan->bytes = device->bytes;
    if (config->validation_batches > 0) validate(&trainer);
    if (config->sample_length > 0) sample(&trainer);
    if (config->save) save(&trainer);
    trainer_close(&trainer);
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
static bool stopped(const Trainer *trainer) { return trainer->ranks->size == 1 ? interrupted : trainer->stop; }

static void on_signal(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);  // a second one ends the program at once
}

// Compares the plan with the budgets. What does not fit is refused (exit 1); with --plan it is only said.
static void run_check(Run *r) {
    const Ledger *plan = &r->plan.ledger;
    const Options *o = &r->job.options;
    Budget budget;
    char message[1024];
    budget_open(&budget, o, &r->device, &r->ranks);
    ranks_barrier(&r->ranks);  // before anybody reserves what others have counted as available
    if (budget_fits(&budget, plan)) {
        report_fits(&budget, plan, o->headroom);
        return;
    }
    plan_refusal(&r->planner, &r->job.config, plan, &budget, o->headroom, message, sizeof(message));
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
    Trainer *trainer = &r->trainer;
    const Options *o = &r->job.options;
    bool last = trainer->step == trainer->config.steps;
    if (row->skipped) {
        printf("%sstep %lld skipped: its gradients are not finite; nothing was updated\n",
               r->report.terminal ? "\n" : "", (long long)trainer->step);
    }
    if (trainer->config.validation_batches && (last || trainer->step % o->validate_every == 0) && !stopped(trainer)) {
        row->val_loss = validate(trainer);
        row->validated = true;
        printf("%sstep %lld | validation loss %.4f\n", r->report.terminal ? "\n" : "", (long long)trainer->step,
               row->val_loss);
    }
    log_step(&r->log, row);
    bool finite = isfinite(row->train_loss);
    if (trainer->skipped_in_a_row >= SKIPS_IN_A_ROW && !(finite && trainer->config.dtype == FP16)) {
        die("%d steps in a row had gradients that are not finite (last loss %g%s). Lower -l, or go on from an earlier "
            "checkpoint", trainer->skipped_in_a_row, row->train_loss,
            finite ? "" : ": the forward itself gives NaN or infinity, so this is no overflow of gradients");
    }
    if (trainer->skipped_in_a_row >= SKIPS_OF_FP16) {
        die("gradients overflow fp16 at every loss scale down to %g, while the loss is finite (%g). Lower -l, or use "
            "-p bf16", row->loss_scale, row->train_loss);
    }
    bool due = o->sample_every > 0 && trainer->step % o->sample_every == 0;
    if (trainer->config.sample_length && (due || last) && !stopped(trainer)) sample(trainer);
    if (o->save_every > 0 && (last || trainer->step % o->save_every == 0) && !stopped(trainer)) save(trainer);
}

// Puts a resumed run where its checkpoint was.
static void run_resume(Run *r) {
    const CheckpointHeader *p = &r->job.position;
    Trainer *trainer = &r->trainer;
    if (!r->job.config.resume) return;
    trainer->step = p->step;
    trainer->updates = p->updates;
    trainer->tokens = p->tokens;
    if (trainer->config.dtype == FP16 && p->dtype == FP16) {
        trainer->loss_scale = p->loss_scale;
        trainer->good_steps = p->good_steps;
    }
}

// Reserves what the plan says, fills it, and joins the trainer with what it reads and writes; nothing is allocated
// afterwards.
static void run_start(Run *r) {
    const Options *o = &r->job.options;
    const char *beside = o->output ? o->output : ".";
    Trainer *trainer = &r->trainer;
    matmul_create(&r->device);
    memory_reserve(&r->memory, &r->device, &r->plan.ledger, o->swap_directory ? o->swap_directory : beside,
                   r->ranks.rank);
    if (o->tune && r->device.real == DEVICE_CUDA) CUDA_ONLY(tune_cuda(&r->device, &r->memory, o->tune));
    if (r->job.config.resume && r->job.position.tuned != tune_hash(&r->device)) {
        printf("note: --tune's choices differ from the saved run's, so the bits may, too\n");
    }
    trainer_start(trainer);
}

static void run_train(Run *r) {
    Trainer *trainer = &r->trainer;
    const double started = device_seconds(), rate = r->matmul_rate * trainer->ranks->size;
    const int64_t first = trainer->step, steps = trainer->config.steps;
    while (trainer->step < steps && !stopped(trainer)) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        double start = device_seconds();
        train_step(trainer, &row);
        double seconds = device_seconds() - start;
        row.ms = 1e3 * seconds;
        row.tokens_per_second = (double)config_tokens(&trainer->config, trainer->ranks->size) / seconds;
        row.mfu = row.tokens_per_second * config_flops_per_token(&trainer->config) / rate;
        report_phases(&r->report, &r->plan.ledger, &r->memory.ledger);
        double per_step = (device_seconds() - started) / (double)(trainer->step - first);
        report_step(&r->report, &trainer->config, trainer->ranks->size, &r->memory.ledger, &row,
                    per_step * (double)(steps - trainer->step));
        run_after_step(r, &row);
        report_phases(&r->report, &r->plan.ledger, &r->memory.ledger);
    }
    if (r->report.terminal) putchar('\n');
    if (!stopped(trainer)) return;
    if (trainer->config.save) save(trainer);
    printf("interrupted after step %lld; %s\n", (long long)trainer->step,
           trainer->config.save ? "saved, go on with -y 1" : "nothing saved, since there is no -o");
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
    Trainer *trainer = &r->trainer;
    trainer_open(trainer, &r->job.config, &r->device, &r->memory, &r->ranks);
    trainer->data = &r->job.data;
    trainer->tokenizer = &r->job.tokenizer;
    trainer->prompt = r->job.prompt;
    trainer->checkpoint = r->job.checkpoint;
    trainer->output = o->output;
    run_resume(r);
    return r;
}

static void run_close(Run *r) {
    trainer_close(&r->trainer);
    if (r->memory.planned) memory_close(&r->memory);
    device_close(&r->device);
    ranks_close(&r->ranks);
    job_close(&r->job);
    log_close(&r->log);
    free(r);
}

static void run(Run *r) {
    const char *output = r->job.options.output;
    char next[512];
    size_t next_peak = plan_suggest(&r->planner, &r->job.config, r->job.options.model, next, sizeof(next));
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
