// bench_gpu.c - make bench-gpu: how close the GPU's own kernels come to what the GPU can do. Nothing here is asserted.
//
//     bench_gpu [TYPE] [tiny]       TYPE: bf16 (default), fp16 or fp32; tiny: shapes that an emulator does in seconds
//
// Two Markdown tables, of medians of times between events around one call:
//
//   attention    causal, in TFLOP/s; a pair of a query and a key that comes after it is not counted: 2 B T^2 C
//                operations forward (two products), 2.5 times as many backward (five)
//   passes       the memory-bound ones, in % of the bandwidth of a copy in the same run. Bytes are PLAN's, that is,
//                every tensor once (the table is in dev/kernels/vector.cuh): 100 % is what a copy of that size takes
//
// Before every call more memory is read than the second cache holds, so that no pass finds its input there; the call
// waits behind that read, so that its launch is no part of its time. Passes take turns, so that all see the same
// clocks.
// Compiled by nvcc only. On the emulator (make test) it shows that it runs; speeds are then left out.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../dev/devices.h"
#include "../dev/kernels/adamw.h"
#include "../dev/kernels/attention.h"
#include "../dev/kernels/bias.h"
#include "../dev/kernels/classifier.h"
#include "../dev/kernels/encoder.h"
#include "../dev/kernels/gelu.h"
#include "../dev/kernels/layernorm.h"
#include "../dev/kernels/norm.h"
#include "../dev/kernels/residual.h"
#include "median.h"

enum { SAMPLES = 21, SAMPLES_TINY = 1 };

typedef struct {
    size_t B, T, C, NH, V, Vp;
    size_t head_rows;     // of the classifier's chunk
    size_t n_parameters;  // of AdamW and norm, whole chunks
    size_t copied;        // bytes of the copy, and of the read before every call
} Shape;

typedef struct {
    Device device;
    Memory memory;
    Ledger plan;
    Dtype dtype;
    Shape shape;
    int samples;
    cudaEvent_t begin, end;
    int32_t *tokens, *host_tokens;                       // tokens, also as targets (B,T); their positions (2BT+1)
    size_t n_distinct;                                   // tokens among them
    void *in, *add, *out;                                // (B,T,C)
    void *qkv, *dqkv;                                    // (B,T,3C)
    void *fc, *gelu, *dfc;                               // (B,T,4C)
    void *w, *b, *wte, *wpe, *logits;                    // (C) (C) (Vp,C) (T,C) (head_rows,Vp)
    float *mean, *rstd, *losses, *lse;                   // (B,T), and (B,NH,T)
    float *dw, *db, *dwte, *dwpe;                        // (4C) (4C) (Vp,C) (T,C)
    float *gradients, *master, *m, *v;                   // (n_parameters)
    void *weights;
    double *sums;
    char *from, *to;  // copied
} Bench;

// ---------------------------------------------------------------------------------------------------------------
// The passes

static Context bench_context(Bench *b) {
    const Context context = {&b->device, &b->memory, b->dtype};
    return context;
}

static LayerNorm bench_layernorm(const Bench *b) {
    const LayerNorm ln = {b->w, b->b, b->mean, b->rstd, b->shape.B * b->shape.T, b->shape.C};
    return ln;
}

static void pass_encoder_forward(Bench *b) {
    const Context context = bench_context(b);
    const Shape *s = &b->shape;
    encoder_forward(&context, b->out, b->tokens, b->wte, b->wpe, s->B, s->T, s->C);
}

static void pass_encoder_backward(Bench *b) {
    const Context context = bench_context(b);
    const Shape *s = &b->shape;
    const EncoderTokens tokens = {b->tokens, b->tokens + s->B * s->T, b->n_distinct, s->B, s->T};
    encoder_backward(&context, b->dwte, b->dwpe, b->in, &tokens, s->T, s->C, false);
}

static void pass_layernorm(Bench *b) {
    const Context context = bench_context(b);
    const LayerNorm ln = bench_layernorm(b);
    layernorm_forward(&context, b->out, b->in, &ln);
}

static void pass_residual(Bench *b) {
    const Context context = bench_context(b);
    residual_forward(&context, b->out, b->in, b->add, b->shape.B * b->shape.T * b->shape.C);
}

// The sum takes the place of its second term, as in the trainer.
static void pass_residual_layernorm(Bench *b) {
    const Context context = bench_context(b);
    const LayerNorm ln = bench_layernorm(b);
    layernorm_forward_residual(&context, b->out, b->add, b->in, b->add, &ln);
}

static void pass_layernorm_backward(Bench *b) {
    const Context context = bench_context(b);
    const LayerNorm ln = bench_layernorm(b);
    const LayerNormGradients gradients = {b->dw, b->db, false};
    layernorm_backward(&context, b->out, &gradients, b->add, b->in, &ln, true);
}

static void pass_gelu(Bench *b) {
    const Context context = bench_context(b);
    gelu_forward(&context, b->gelu, b->fc, b->shape.B * b->shape.T * 4 * b->shape.C);
}

static void pass_gelu_backward_bias(Bench *b) {
    const Context context = bench_context(b);
    gelu_backward_bias(&context, b->dfc, b->dw, b->gelu, b->fc, b->shape.B * b->shape.T, 4 * b->shape.C, false);
}

static void pass_bias(Bench *b) {
    const Context context = bench_context(b);
    bias_backward(&context, b->dw, b->fc, b->shape.B * b->shape.T, 4 * b->shape.C, false);
}

static void pass_classifier(Bench *b) {
    const Context context = bench_context(b);
    const Shape *s = &b->shape;
    const Classifier head = {b->losses, b->logits, b->tokens, s->head_rows, s->V, s->Vp};
    classifier_forward_backward(&context, &head, 1e-3f);
}

static void pass_norm(Bench *b) {
    const size_t n_chunks = b->shape.n_parameters / NORM_CHUNK;
    norm_chunks(&b->device, QUEUE_COMPUTE, b->sums, b->gradients, b->shape.n_parameters);
    norm_total(&b->device, b->sums + n_chunks, b->sums, n_chunks);
}

static void pass_adamw(Bench *b) {
    const AdamW step = adamw_step(1e-5f, 0.1f, 10, 1.0f, true);
    const size_t n = b->shape.n_parameters;
    const bool fp32 = b->dtype == FP32;
    const AdamWOperands of = {fp32 ? (void *)b->master : b->weights, fp32 ? NULL : b->master, b->m, b->v, b->gradients,
                              n, n / 2};
    adamw(&b->device, &step, b->dtype, &of);
}

static const struct {
    const char *name;
    void (*run)(Bench *);
    bool of_channels;  // its speed may depend on C
} PASSES[] = {{"encoder forward", pass_encoder_forward, true},
              {"encoder backward", pass_encoder_backward, true},
              {"LayerNorm forward", pass_layernorm, true},
              {"residual", pass_residual, false},
              {"residual + LayerNorm forward", pass_residual_layernorm, true},
              {"LayerNorm backward, with dw, db", pass_layernorm_backward, true},
              {"GELU forward", pass_gelu, false},
              {"GELU backward + bias", pass_gelu_backward_bias, true},
              {"bias gradient", pass_bias, true},
              {"classifier, loss and gradient", pass_classifier, false},
              {"norm", pass_norm, false},
              {"AdamW", pass_adamw, false}};

enum { N_PASSES = sizeof(PASSES) / sizeof(PASSES[0]) };

static void pass_attention_forward(Bench *b) {
    const Context context = bench_context(b);
    const Attention attention = {ATTENTION_FUSED, b->shape.B, b->shape.T, b->shape.C, b->shape.NH};
    attention_forward(&context, &attention, b->out, b->lse, b->qkv);
}

static void pass_attention_backward(Bench *b) {
    const Context context = bench_context(b);
    const Attention attention = {ATTENTION_FUSED, b->shape.B, b->shape.T, b->shape.C, b->shape.NH};
    attention_backward(&context, &attention, b->dqkv, b->in, b->qkv, b->out, b->lse);
}

// ---------------------------------------------------------------------------------------------------------------
// Memory: counted first, as in the trainer, then reserved

static void *take(Bench *b, size_t n_elements, size_t size) {
    return memory_keep(&b->memory, TIER_DEVICE, KIND_DATA, n_elements * size, "bench");
}

static void take_all(Bench *b, bool attention) {
    const Shape *s = &b->shape;
    const size_t rows = s->B * s->T, n = rows * s->C, size = number_size(b->dtype), f = sizeof(float);
    b->in = take(b, n, size);
    b->out = take(b, n, size);
    b->from = (char *)take(b, s->copied, 1);
    if (attention) {
        b->qkv = take(b, 3 * n, size);
        b->dqkv = take(b, 3 * n, size);
        b->lse = (float *)take(b, s->NH * rows, f);
        return;
    }
    b->to = (char *)take(b, s->copied, 1);
    b->add = take(b, n, size);
    b->fc = take(b, 4 * n, size);
    b->gelu = take(b, 4 * n, size);
    b->dfc = take(b, 4 * n, size);
    b->w = take(b, s->C, size);
    b->b = take(b, s->C, size);
    b->wte = take(b, s->Vp * s->C, size);
    b->wpe = take(b, s->T * s->C, size);
    b->logits = take(b, s->head_rows * s->Vp, size);
    b->tokens = (int32_t *)take(b, 3 * rows + 1, sizeof(int32_t));
    b->mean = (float *)take(b, rows, f);
    b->rstd = (float *)take(b, rows, f);
    b->losses = (float *)take(b, s->head_rows, f);
    b->dw = (float *)take(b, 4 * s->C, f);
    b->db = (float *)take(b, 4 * s->C, f);
    b->dwte = (float *)take(b, s->Vp * s->C, f);
    b->dwpe = (float *)take(b, s->T * s->C, f);
    b->gradients = (float *)take(b, s->n_parameters, f);
    b->master = (float *)take(b, s->n_parameters, f);
    b->m = (float *)take(b, s->n_parameters, f);
    b->v = (float *)take(b, s->n_parameters, f);
    b->weights = take(b, s->n_parameters, size);
    b->sums = (double *)take(b, s->n_parameters / NORM_CHUNK + 1, sizeof(double));
}

// x[i] uniform in middle - spread ... middle + spread
__global__ static void fill_kernel(Dtype dtype, void *x, size_t n, uint64_t stream, float middle, float spread) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const float u = (float)(random_bits(1, stream, i) >> 40) * 0x1p-24f;
        number_put(dtype, x, i, middle + spread * (2.0f * u - 1.0f));
    }
}

static void fill(Bench *b, Dtype dtype, void *x, size_t n, float middle, float spread) {
    static uint64_t stream = 0;
    CUDA_RUN(&b->device, fill_kernel, cuda_blocks(n), CUDA_THREADS, 0, dtype, x, n, stream++, middle, spread);
}

static void fill_all(Bench *b, bool attention) {
    const Shape *s = &b->shape;
    const size_t rows = s->B * s->T, n = rows * s->C;
    fill(b, b->dtype, b->in, n, 0.0f, 1.0f);
    fill(b, b->dtype, b->out, n, 0.0f, 1.0f);
    fill(b, FP32, b->from, s->copied / sizeof(float), 0.0f, 1.0f);
    if (attention) {
        fill(b, b->dtype, b->qkv, 3 * n, 0.0f, 1.0f);
        return;
    }
    fill(b, b->dtype, b->add, n, 0.0f, 1.0f);
    fill(b, b->dtype, b->fc, 4 * n, 0.0f, 2.0f);
    fill(b, b->dtype, b->gelu, 4 * n, 0.0f, 1.0f);
    fill(b, b->dtype, b->w, s->C, 1.0f, 0.1f);
    fill(b, b->dtype, b->b, s->C, 0.0f, 0.1f);
    fill(b, b->dtype, b->wte, s->Vp * s->C, 0.0f, 0.02f);
    fill(b, b->dtype, b->wpe, s->T * s->C, 0.0f, 0.02f);
    fill(b, b->dtype, b->logits, s->head_rows * s->Vp, 0.0f, 2.0f);
    fill(b, FP32, b->dwte, s->Vp * s->C, 0.0f, 1.0f);
    fill(b, FP32, b->gradients, s->n_parameters, 0.0f, 1e-3f);
    fill(b, FP32, b->master, s->n_parameters, 0.0f, 0.02f);
    fill(b, FP32, b->m, s->n_parameters, 0.0f, 1e-3f);
    fill(b, FP32, b->v, s->n_parameters, 1e-6f, 1e-6f);
    device_upload(&b->device, b->tokens, b->host_tokens, (2 * rows + b->n_distinct + 1) * sizeof(int32_t));
}

// Tokens as frequent as a text's: the v-th (v + 1) times less than the first (Zipf's law).
static void draw_tokens(Bench *b) {
    const size_t n = b->shape.B * b->shape.T, V = b->shape.V;
    int32_t *counts = (int32_t *)malloc(V * sizeof(int32_t));
    b->host_tokens = (int32_t *)malloc((3 * n + 1) * sizeof(int32_t));
    if (!counts || !b->host_tokens) die("out of memory");
    for (size_t i = 0; i < n; i++) {
        b->host_tokens[i] = (int32_t)size_min((size_t)pow((double)V, random_uniform(1, 100, i)) - 1, V - 1);
    }
    b->n_distinct = encoder_sort(b->host_tokens + n, counts, b->host_tokens, n, V);
    free(counts);
}

// Counts what the passes take and move, reserves it and fills it. bytes[i]: of pass i.
static void bench_start(Bench *b, bool attention, double *bytes) {
    const Shape *s = &b->shape;
    b->device.kind = DEVICE_PLAN;
    memory_open_plan(&b->memory, &b->device);
    memory_begin(&b->memory, PHASE_FORWARD);
    take_all(b, attention);
    for (int i = 0; i < N_PASSES && !attention; i++) {
        b->device.flops = b->device.bytes = 0;
        PASSES[i].run(b);
        bytes[i] = b->device.bytes;
        // A position's embedding is read once from memory, and from the caches for the other sequences.
        if (PASSES[i].run == pass_encoder_forward) {
            bytes[i] -= (double)((s->B - 1) * s->T * s->C * number_size(b->dtype));
        }
    }
    if (attention) {
        pass_attention_forward(b);
        pass_attention_backward(b);
    }
    memory_end(&b->memory);
    b->plan = b->memory.ledger;
    b->device.kind = b->device.real;
    memory_reserve(&b->memory, &b->device, &b->plan, ".", 0);
    take_all(b, attention);
    fill_all(b, attention);
}

// ---------------------------------------------------------------------------------------------------------------
// Time

__global__ static void copy_kernel(uint4 *to, const uint4 *from, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) to[i] = from[i];
}

// Reads everything; whether it writes a word, the compiler can't know.
__global__ static void read_kernel(uint32_t *to, const uint4 *from, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    uint32_t all = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const uint4 x = from[i];
        all += x.x ^ x.y ^ x.z ^ x.w;
    }
    if (all == 0x9e3779b9u) *to = all;
}

static void pass_copy_kernel(Bench *b) {
    const size_t n = b->shape.copied / sizeof(uint4);
    CUDA_RUN(&b->device, copy_kernel, cuda_blocks(n), CUDA_THREADS, 0, (uint4 *)b->to, (const uint4 *)b->from, n);
}

static void pass_copy_driver(Bench *b) {
    CUDA_CHECK(cudaMemcpyAsync(b->to, b->from, b->shape.copied, cudaMemcpyDeviceToDevice,
                               b->device.cuda->queues[QUEUE_COMPUTE]));
}

static double seconds_of(Bench *b, void (*pass)(Bench *)) {
    const cudaStream_t queue = b->device.cuda->queues[QUEUE_COMPUTE];
    const size_t n = b->shape.copied / sizeof(uint4);
    float ms = 0.0f;
    CUDA_RUN(&b->device, read_kernel, size_min(cuda_blocks(n), 4096), CUDA_THREADS, 0, (uint32_t *)b->out,
             (const uint4 *)b->from, n);
    CUDA_CHECK(cudaEventRecord(b->begin, queue));
    pass(b);
    CUDA_CHECK(cudaEventRecord(b->end, queue));
    device_wait(&b->device);
    CUDA_CHECK(cudaEventElapsedTime(&ms, b->begin, b->end));
    return 1e-3 * (double)ms;
}

// Medians of all passes, in turns; the first turn doesn't count.
static void bench_times(Bench *b, void (*const *passes)(Bench *), int n, double *seconds) {
    double *all = (double *)calloc((size_t)(n * b->samples), sizeof(double));
    if (!all) die("out of memory");
    for (int sample = -1; sample < b->samples; sample++) {
        for (int i = 0; i < n; i++) {
            const double once = seconds_of(b, passes[i]);
            if (sample >= 0) all[i * b->samples + sample] = once;
        }
    }
    for (int i = 0; i < n; i++) seconds[i] = median(all + i * b->samples, b->samples);
    free(all);
}

// " x |", or nothing where it was not measured on a GPU.
static void cell(const char *format, double x) {
#ifdef EMULATED
    (void)format;
    printf(" %s |", x > 0 ? "-" : "none");
#else
    printf(format, x);
    printf(" |");
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// The tables

// All passes for one C; `first`: also those that don't depend on it.
static void bench_passes(Bench *b, bool first) {
    double bytes[N_PASSES], seconds[N_PASSES + 2];
    void (*passes[N_PASSES + 2])(Bench *);
    int n = 0;
    draw_tokens(b);
    bench_start(b, false, bytes);
    passes[n++] = pass_copy_kernel;
    passes[n++] = pass_copy_driver;
    for (int i = 0; i < N_PASSES; i++) {
        if (first || PASSES[i].of_channels) passes[n++] = PASSES[i].run;
    }
    bench_times(b, passes, n, seconds);
    const double copied = 2.0 * (double)b->shape.copied, copy = copied / fmin(seconds[0], seconds[1]);
    for (int i = 0; i < n; i++) {
        double moved = copied;
        const char *name = i == 0 ? "copy, by a kernel" : "copy, by the driver";
        for (int j = 0; j < N_PASSES; j++) {
            if (passes[i] != PASSES[j].run) continue;
            name = PASSES[j].name;
            moved = bytes[j];
        }
        printf("| %s | %zu |", name, b->shape.C);
        printf(" %.4g |", 1e-6 * moved);
        cell(" %.1f", 1e6 * seconds[i]);
        cell(" %.0f", 1e-9 * moved / seconds[i]);
        cell(" %.0f %%", 100 * moved / seconds[i] / copy);
        printf(" %s |\n", i < 2 ? "" : "85 %");
        fflush(stdout);
    }
    memory_close(&b->memory);
    free(b->host_tokens);
}

static void bench_attention(Bench *b) {
    void (*const passes[2])(Bench *) = {pass_attention_forward, pass_attention_backward};
    const Shape *s = &b->shape;
    const double flops = 2.0 * (double)(s->B * s->T) * (double)s->T * (double)s->C;
    double seconds[2];
    bench_start(b, true, NULL);
    bench_times(b, passes, 2, seconds);
    printf("| %zu | %zu | %zu x %zu |", s->T, s->C / s->NH, s->B, s->NH);
    cell(" %.1f", 1e-12 * flops / seconds[0]);
    cell(" %.1f", 1e-12 * 2.5 * flops / seconds[1]);
    cell(" %.3f", 1e3 * seconds[0]);
    cell(" %.3f", 1e3 * seconds[1]);
    // 70 % of 229 TFLOP/s: FlashAttention-2, T=1024, heads of 64, causal, on an H100.
    printf(" %s |\n", s->T == 1024 && s->C / s->NH == 64 ? "160 forward" : "");
    fflush(stdout);
    memory_close(&b->memory);
}

int main(int argc, char **argv) {
    static Bench bench;
    Bench *b = &bench;
    char text[512];
    double memory = 0;
    Ranks ranks;
    bool tiny = argc > 1 && strcmp(argv[argc - 1], "tiny") == 0;
    const char *dtype = argc > 1 + tiny ? argv[1] : "bf16";
    b->dtype = DTYPES;
    for (int t = FP32; t < DTYPES; t++) {
        if (strcmp(dtype, number_name((Dtype)t)) == 0) b->dtype = (Dtype)t;
    }
    if (argc > 2 + tiny || b->dtype == DTYPES) die("usage: bench_gpu [bf16|fp16|fp32] [tiny]");
    b->samples = tiny ? SAMPLES_TINY : SAMPLES;
    ranks_open_plan(&ranks, 1);
    device_open(&b->device, "cuda", &memory, &ranks);
    device_describe(&b->device, b->dtype, text, sizeof(text));
    CUDA_CHECK(cudaEventCreate(&b->begin));
    CUDA_CHECK(cudaEventCreate(&b->end));
    printf("%s; medians of %d\n\n", text, b->samples);

    printf("| attention: T | head size | B x heads | forward TFLOP/s | backward TFLOP/s | forward ms | backward ms "
           "| goal |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 4; i++) {
        const size_t T = i / 2 ? 4096 : 1024, HS = i % 2 ? 128 : 64;
        const Shape large = {16384 / T, T, 2048, 2048 / HS, 0, 0, 0, 0, (size_t)256 << 20};
        const Shape small = {1, T / 16, 2 * HS, 2, 0, 0, 0, 0, 4096};
        b->shape = tiny ? small : large;
        bench_attention(b);
    }
    printf("\n| pass | C | MB | us | GB/s | of the copy | goal |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 2; i++) {
        const size_t C = i ? 1600 : 768, B = i ? 32 : 64, n_chunks = 30000;  // 124M
        const Shape large = {B, 1024, C, C / 64, 50257, 50304, 8192, n_chunks * NORM_CHUNK, (size_t)512 << 20};
        const Shape small = {2, 16, C / 4, C / 64, 500, 512, 4, 2 * NORM_CHUNK, 4096};
        b->shape = tiny ? small : large;
        bench_passes(b, i == 0);
    }
    CUDA_CHECK(cudaEventDestroy(b->begin));
    CUDA_CHECK(cudaEventDestroy(b->end));
    device_close(&b->device);
    return 0;
}
