// bench.c - make bench: how close a training step comes to what the machine can do. Nothing here is asserted.
//
// For each configuration, on the step's own shapes, in one run:
//   copy      bandwidth of a parallel copy, bytes read plus bytes written; the ideal's is that of stores that pass the
//             caches by, the operations' that of plain stores, since the next operation reads what they wrote
//   matmul    every product of the step, alone: as the trainer runs it, by oneDNN with weights in its own packed
//             layout, and by the trainer's tiles; the fastest of each shape makes the ideal
//   step      the training step, interleaved with the products, medians
//   ideal     the products at their fastest + AdamW's 28 bytes (30 in bf16) per parameter at copy bandwidth
//   share     ideal / step
// With details, every other operation against its bound: the longer of its bytes at copy bandwidth and its arithmetic
// (attention's products at the best rate of the step's; exponentials at the rate that they reach in the first cache).
// Then steps of configurations beside each other, in turns: recompute levels, lengths, threads.
#define _GNU_SOURCE
#include "bench_helpers.h"

// Seconds per exponential, of all threads together, from and to the first cache.
static double exponential_seconds(void) {
    enum { TRIALS = 7, TIMES = 2000 };
    double seconds[TRIALS];
    int threads = 1;
    for (int trial = 0; trial < TRIALS; trial++) {
        double start = device_seconds();
#pragma omp parallel
        {
            float x[NUMBER_BLOCK];
            for (int i = 0; i < NUMBER_BLOCK; i++) x[i] = 0.001f * (float)i;
            for (int t = 0; t < TIMES; t++) {
                for (int i = 0; i < NUMBER_BLOCK; i++) x[i] = number_exp(-x[i]);
            }
            if (x[5] == 7.0f) puts("");  // x is used
#ifdef _OPENMP
#pragma omp single
            threads = omp_get_num_threads();
#endif
        }
        seconds[trial] = device_seconds() - start;
    }
    return median(seconds, TRIALS) / ((double)NUMBER_BLOCK * TIMES * threads);
}

// ---------------------------------------------------------------------------------------------------------------
// Products: the shapes of a step, how often each occurs, and three ways to run them

typedef struct {
    MatmulShape shape;
    int count;
    const char *name;
    char *a, *b, *c;
    MatmulEntry tiled;
#if USE_ONEDNN
    dnnl_primitive_desc_t packed_description;
    dnnl_primitive_t packed;
    dnnl_memory_t pa, pb, pc, pscratch;
    char *packed_b, *scratch;
#endif
    double plain_seconds[SAMPLES_MOST], packed_seconds[SAMPLES_MOST], tiled_seconds[SAMPLES_MOST];
    int n;
    bool has_packed;
} Product;

static char *product_memory(size_t n_bytes) {
    char *p = (char *)aligned_alloc(64, size_round_up(n_bytes, 64));
    if (!p) die("out of memory");
    memset(p, 0, n_bytes);
    return p;
}

// The shape of a product's form: forward, backward input, backward weight.
static MatmulShape product_shape(Dtype dtype, size_t rows, size_t IC, size_t OC, int form) {
    MatmulShape shape = matmul_shape(dtype, dtype, rows, OC, IC);
    if (form == 1) shape = matmul_shape(dtype, dtype, rows, IC, OC);
    if (form == 2) shape = matmul_shape(dtype, FP32, OC, IC, rows);
    shape.b_transposed = form == 0;
    shape.a_transposed = form == 2;
    return shape;
}

// Every product of one micro-batch.
static int products_of_step(const Config *c, Product *products) {
    size_t rows = c->B * c->T, C = c->shape.C, L = c->shape.L, Vp = c->shape.Vp;
    static const char *const names[5][3] = {
        {"qkv forward", "qkv backward input", "qkv backward weight"},
        {"projection forward", "projection backward input", "projection backward weight"},
        {"fc forward", "fc backward input", "fc backward weight"},
        {"fcproj forward", "fcproj backward input", "fcproj backward weight"},
        {"head forward", "head backward input", "head backward weight"}};
    const size_t ic[5] = {C, C, C, 4 * C, C}, oc[5] = {3 * C, C, 4 * C, C, Vp};
    int n = 0;
    for (int i = 0; i < 5; i++) {
        for (int form = 0; form < 3; form++) {
            Product *p = &products[n++];
            memset(p, 0, sizeof(*p));
            p->name = names[i][form];
            p->count = i < 4 ? (int)L : 1;
            p->shape = product_shape(c->dtype, rows, ic[i], oc[i], form);
        }
    }
    return n;
}

#if USE_ONEDNN
// The library with the weights (B) in the layout it likes best, packed beforehand; also where the trainer does not use
// the library, so that the ideal is not the trainer's own. Not for weight gradients: neither side is a weight.
static void product_pack(Matmul *matmul, Product *p) {
    const MatmulShape *s = &p->shape;
    if (s->a_transposed || !matmul->library.engine || (s->a_dtype == BF16 && !matmul->native_bf16)) return;
    dnnl_dims_t dims = {(dnnl_dim_t)s->K, (dnnl_dim_t)s->N};
    dnnl_memory_desc_t a = matmul_onednn_matrix(s->a_dtype, s->M, s->K, false), b;
    dnnl_memory_desc_t c = matmul_onednn_matrix(s->c_dtype, s->M, s->N, false);
    matmul_check(dnnl_memory_desc_init_by_tag(&b, 2, dims, matmul_onednn_type(s->b_dtype), dnnl_format_tag_any), "any");
    dnnl_matmul_desc_t description;
    dnnl_primitive_attr_t attributes;
    matmul_check(dnnl_matmul_desc_init(&description, &a, &b, NULL, &c), "packed product");
    matmul_check(dnnl_primitive_attr_create(&attributes), "attributes");
    matmul_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "scratchpad");
    const dnnl_engine_t engine = matmul->library.engine;
    if (dnnl_primitive_desc_create(&p->packed_description, &description, attributes, engine, NULL)) return;
    const dnnl_memory_desc_t *pb = dnnl_primitive_desc_query_md(p->packed_description, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(p->packed_description, dnnl_query_scratchpad_md, 0);
    matmul_check(dnnl_primitive_create(&p->packed, p->packed_description), "packed primitive");
    p->packed_b = product_memory(dnnl_memory_desc_get_size(pb));
    p->scratch = product_memory(dnnl_memory_desc_get_size(pad) + 64);
    matmul_check(dnnl_memory_create(&p->pa, &a, engine, p->a), "memory");
    matmul_check(dnnl_memory_create(&p->pb, pb, engine, p->packed_b), "memory");
    matmul_check(dnnl_memory_create(&p->pc, &c, engine, p->c), "memory");
    matmul_check(dnnl_memory_create(&p->pscratch, pad, engine, p->scratch), "memory");
    p->has_packed = true;
}

static void product_run_packed(Matmul *matmul, Product *p) {
    dnnl_exec_arg_t arguments[4] = {{DNNL_ARG_SRC, p->pa}, {DNNL_ARG_WEIGHTS, p->pb}, {DNNL_ARG_DST, p->pc},
                                    {DNNL_ARG_SCRATCHPAD, p->pscratch}};
    matmul_check(dnnl_primitive_execute(p->packed, matmul->library.stream, 4, arguments), "packed product");
    matmul_check(dnnl_stream_wait(matmul->library.stream), "waiting");
}
#endif

// One sample of each way.
static void product_sample(Trainer *trainer, Product *p, float *tiles) {
    if (p->n == SAMPLES_MOST) return;
    double t0 = device_seconds();
    MatmulEntry *entry = matmul_find(trainer->context.device, &p->shape);
    if (entry->tiled) {
        matmul_tiled_cpu(&p->shape, p->c, p->a, p->b, NULL, tiles, trainer->context.device->threads);
    } else {
#if USE_ONEDNN
        MatmulLibrary *library = &trainer->context.device->matmul->library;
        matmul_onednn_cpu(library, &entry->onednn, false, p->c, p->a, p->b, NULL, tiles);
#endif
    }
    double t1 = device_seconds();
    p->plain_seconds[p->n] = t1 - t0;
#if USE_ONEDNN
    if (p->has_packed) product_run_packed(trainer->context.device->matmul, p);
#endif
    double t2 = device_seconds();
    p->packed_seconds[p->n] = p->has_packed ? t2 - t1 : 1e9;
    if (!entry->tiled) matmul_tiled_cpu(&p->shape, p->c, p->a, p->b, NULL, tiles, trainer->context.device->threads);
    p->tiled_seconds[p->n] = entry->tiled ? t1 - t0 : device_seconds() - t2;
    p->n++;
}

static double product_ideal(Product *p, double *plain) {
    *plain = median(p->plain_seconds, p->n);
    double packed = median(p->packed_seconds, p->n), tiled = median(p->tiled_seconds, p->n);
    return fmin(*plain, fmin(packed, tiled));
}

// ---------------------------------------------------------------------------------------------------------------
// The other operations, one by one

typedef struct {
    const char *name;
    double count, bytes;         // per step; of one call
    double exponentials, flops;  // of one call: those that may take longer than its bytes
    double seconds[SAMPLES_MOST];
    int n;
} Operation;

typedef struct {
    Operation operations[16];
    int n;
} Operations;

static double operation_started;

static void operation_start(void) { operation_started = device_seconds(); }

static void operation_end(Operations *all, int i, const char *name, double count, double bytes, double exponentials,
                          double flops) {
    Operation *o = &all->operations[i];
    double seconds = device_seconds() - operation_started;
    if (i >= all->n) all->n = i + 1;
    o->name = name;
    o->count = count;
    o->bytes = bytes;
    o->exponentials = exponentials;
    o->flops = flops;
    if (o->n < SAMPLES_MOST) o->seconds[o->n++] = seconds;
}

// One sample of every operation that is not a product, on a layer's buffers, as the step runs them.
static void operations_sample(Trainer *trainer, Operations *all) {
    const Config *c = &trainer->config;
    const Context *context = &trainer->context;
    Memory *memory = context->memory;
    Store *store = &trainer->store;
    Dtype dtype = c->dtype;
    size_t B = c->B, T = c->T, C = c->shape.C, rows = B * T, size = number_size(dtype),
           mark = memory_mark(memory, TIER_DEVICE);
    double n = (double)(rows * C), s = (double)size, L = (double)c->shape.L, micro = (double)c->micro_batches;
    double heads = (double)(rows * c->shape.NH) * 4, hs = (double)(C / c->shape.NH);
    double pairs = 0.5 * (double)(rows * c->shape.NH) * (double)(T + 1);  // of a query and a key
    Layer a;
    memory_begin(memory, PHASE_FORWARD);  // abandoned at the end
    batch_train(&trainer->batch, 0, 0);
    void *x = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * C * size, "x");
    layer_take(trainer, &a, B, T, LEVEL_BLOCKS, false);
    void *dqkv = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * 3 * C * size, "dqkv");
    void *dout = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, rows * C * size, "dout");
    const LayerWeights w = tensor_layer_weights(store, 0);
    const LayerGradients g = tensor_layer_gradients(store, 0);
    const LayerNorm ln1 = {w.ln1w, w.ln1b, a.ln1_mean, a.ln1_rstd, rows, C};
    const LayerNorm ln2 = {w.ln1w, w.ln1b, a.ln2_mean, a.ln2_rstd, rows, C};
    const LayerNormGradients dln1 = {g.ln1w, g.ln1b, false};
    const Attention attention = layer_attention(c, B, T);
    encoder_forward(context, x, trainer->batch.tokens, tensor_weights(store, 0, TENSOR_WTE),
                    tensor_weights(store, 0, TENSOR_WPE), B, T, C);
    layer_forward_to_gelu(trainer, 0, B, T, x, &a);
    memcpy(dout, a.ln2, rows * C * size);
    int i = 0;
    operation_start();
    layernorm_forward(context, a.ln1, x, &ln1);
    operation_end(all, i++, "layernorm forward", micro * (2 * L + 1), 2 * n * s, 0, 0);
    operation_start();
    residual_forward(context, a.residual, x, a.residual, rows * C);
    operation_end(all, i++, "residual", micro * 2 * L, 3 * n * s, 0, 0);
    operation_start();
    gelu_forward(context, a.gelu, a.fch, rows * 4 * C);
    operation_end(all, i++, "gelu forward", micro * L, 8 * n * s, 4 * n, 0);
    operation_start();
    attention_forward(context, &attention, a.atty, a.saved, a.qkv);
    operation_end(all, i++, "attention forward", micro * L, 4 * n * s + heads, pairs, 4 * pairs * hs);
    operation_start();
    attention_backward(context, &attention, dqkv, dout, a.qkv, a.atty, a.saved);
    operation_end(all, i++, "attention backward", micro * L, 8 * n * s + heads, pairs, 10 * pairs * hs);
    operation_start();
    layernorm_backward(context, x, &dln1, dout, a.residual, &ln2, true);
    operation_end(all, i++, "layernorm backward", micro * (2 * L + 1), 4 * n * s, 0, 0);
    operation_start();
    gelu_backward(context, a.gelu, a.gelu, a.fch, rows * 4 * C);
    operation_end(all, i++, "gelu backward", micro * L, 12 * n * s, 4 * n, 0);
    operation_start();
    bias_backward(context, g.fcb, a.gelu, rows, 4 * C, false);
    operation_end(all, i++, "bias gradients", micro * L * 9.0 / 4.0, 4 * n * s, 0, 0);
    memory_release(memory, TIER_DEVICE, mark);
    const size_t chunk = size_ceil_div(rows, c->head_chunks);
    void *logits = memory_push(memory, TIER_DEVICE, KIND_LOGITS, chunk * c->shape.Vp * size, "logits");
    memset(logits, 0, chunk * c->shape.Vp * size);
    const Classifier head = {trainer->batch.losses, logits, trainer->batch.targets, chunk, c->shape.V, c->shape.Vp};
    operation_start();
    classifier_forward_backward(context, &head, 1e-3f);
    operation_end(all, i++, "classifier", micro * (double)c->head_chunks,
                  2.0 * (double)chunk * (double)c->shape.Vp * s, 2.0 * (double)(chunk * c->shape.V), 0);
    operation_start();
    for (size_t block = 0; block < store->n_blocks; block++) {
        store_note_norm(store, QUEUE_COMPUTE, block, 0, store_gradients(store, block),
                        store_layout(store, block)->n_elements);
    }
    update_norm(store, trainer->results + RESULT_NORM);
    operation_end(all, i++, "norm", 1, 4.0 * (double)store->n_elements, 0, 0);
    AdamW update = adamw_step(1e-5f, 0.1f, 10, 1.0f, true);
    operation_start();
    update_blocks(store, &update);
    operation_end(all, i++, "adamw", 1, (28.0 + (dtype == FP32 ? 0 : s)) * (double)store->n_elements, 0, 0);
    memory_release(memory, TIER_DEVICE, mark);
    memory_abandon(memory);
}

// ---------------------------------------------------------------------------------------------------------------
// One configuration

static void bench(int details, int samples, const char *line) {
    Trainer *trainer = bench_open(line);
    Product *products = (Product *)calloc(16, sizeof(Product));
    int n_products = products_of_step(&trainer->config, products);
    size_t tiles_bytes = 0;
    for (int i = 0; i < n_products; i++) {
        Product *p = &products[i];
        p->a = product_memory(p->shape.M * p->shape.K * number_size(p->shape.a_dtype));
        p->b = product_memory(p->shape.K * p->shape.N * number_size(p->shape.b_dtype));
        p->c = product_memory(p->shape.M * p->shape.N * number_size(p->shape.c_dtype));
        Device *device = trainer->context.device;
        tiles_bytes = size_max(tiles_bytes, matmul_find(device, &p->shape)->scratchpad);
        tiles_bytes = size_max(tiles_bytes, matmul_tiled_floats(&p->shape, device->threads) * sizeof(float));
#if USE_ONEDNN
        product_pack(trainer->context.device->matmul, p);
#endif
    }
    float *tiles = (float *)product_memory(tiles_bytes);
    start_trainer(trainer);
    Operations operations;
    memset(&operations, 0, sizeof(operations));
    Copy copies;
    copy_open(&copies);
    double exponential = exponential_seconds(), steps[SAMPLES_MOST];
    StepRow row;
    train_step(trainer, &row);
    for (int i = 0; i < samples; i++) {
        double start = device_seconds();
        train_step(trainer, &row);
        steps[i] = device_seconds() - start;
        for (int j = 0; j < n_products; j++) product_sample(trainer, &products[j], tiles);
        copy_sample(&copies);
        if (details) operations_sample(trainer, &operations);
    }
    const double copy = copy_bandwidth(&copies, 1), plain_copy = copy_bandwidth(&copies, 0);
    free(copies.from);
    free(copies.to);
    double step = median(steps, samples), ideal_matmul = 0, plain_matmul = 0, flops = 0,
           micro = (double)trainer->config.micro_batches;
    for (int j = 0; j < n_products; j++) {
        double plain, best = product_ideal(&products[j], &plain);
        const MatmulShape *s = &products[j].shape;
        double count = micro * products[j].count, f = 2.0 * (double)s->M * (double)s->N * (double)s->K;
        if (details > 1) {
            printf("    %-28s %6zu x %5zu x %5zu  %6.1f ms, %5.1f GFLOP/s (best of plain, packed, tiles: %5.1f)\n",
                   products[j].name, s->M, s->N, s->K, 1e3 * count * plain, 1e-9 * f / plain, 1e-9 * f / best);
        }
        ideal_matmul += count * best;
        plain_matmul += count * plain;
        flops += count * f;
    }
    double adamw_bytes = (28.0 + (trainer->config.dtype == FP32 ? 0 : 2)) * (double)trainer->store.n_elements;
    double ideal = ideal_matmul + adamw_bytes / copy, parts = plain_matmul;
    if (details) {
        printf("    %-28s %8s %8s %7s %8s\n", "operation", "ms/step", "GB/s", "% copy", "% bound");
        printf("    %-28s %8s %8.2f %6.0f%%\n", "a plain copy", "", 1e-9 * plain_copy, 100.0);
        for (int i = 0; i < operations.n; i++) {
            Operation *o = &operations.operations[i];
            double seconds = median(o->seconds, o->n), bandwidth = o->bytes / seconds;
            double bound = fmax(o->bytes / plain_copy, o->exponentials * exponential + o->flops * ideal_matmul / flops);
            parts += o->count * seconds;
            printf("    %-28s %8.1f %8.2f %6.0f%% %7.0f%%\n", o->name, 1e3 * o->count * seconds, 1e-9 * bandwidth,
                   100 * bandwidth / plain_copy, 100 * bound / seconds);
        }
        printf("    %-28s %8.1f   (all products as the trainer runs them)\n", "matmul", 1e3 * plain_matmul);
        printf("    %-28s %8.1f\n", "sum of the parts", 1e3 * parts);
    }
    size_t tokens = trainer->config.B * trainer->config.T * trainer->config.micro_batches;
    printf("| `%s` | %.1f | %.1f | %.1f | %.1f | %.0f %% | %.1f | %.0f |\n", line, 1e-9 * flops / ideal_matmul,
           1e-9 * copy, 1e3 * ideal, 1e3 * step, 100 * ideal / step, (double)tokens / step,
           size_mib(ledger_peak(&run_of(trainer)->plan.ledger, TIER_DEVICE)));
    fflush(stdout);
    for (int i = 0; i < n_products; i++) {
        Product *p = &products[i];
        free(p->a);
        free(p->b);
        free(p->c);
#if USE_ONEDNN
        if (p->has_packed) {
            dnnl_memory_destroy(p->pa);
            dnnl_memory_destroy(p->pb);
            dnnl_memory_destroy(p->pc);
            dnnl_memory_destroy(p->pscratch);
            dnnl_primitive_destroy(p->packed);
            dnnl_primitive_desc_destroy(p->packed_description);
            free(p->packed_b);
            free(p->scratch);
        }
#endif
    }
    free(tiles);
    free(products);
    close_trainer(trainer);
}

// ---------------------------------------------------------------------------------------------------------------
// Configurations beside each other

typedef struct {
    int threads;  // 0: as many as there are
    const char *flags;
} Rival;

enum { RIVALS_MOST = 8 };

// What a trainer that is opened now takes for the user's wish, and what those that are open find.
static void set_threads(int n) {
    char text[16];
    snprintf(text, sizeof(text), "%d", n);
    setenv("OMP_NUM_THREADS", text, 1);
#ifdef _OPENMP
    omp_set_num_threads(n);
#endif
}

static int all_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Steps of several configurations in turns; medians, and ratios to the first.
static void bench_rivals(int rounds, const Rival *rivals, int n) {
    const int all = all_threads();
    Trainer *trainers[RIVALS_MOST];
    double seconds[RIVALS_MOST][SAMPLES_MOST], first = 0;
    StepRow row;
    for (int round = -1; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            set_threads(rivals[i].threads ? rivals[i].threads : all);
            if (round < 0) {
                trainers[i] = bench_open(rivals[i].flags);
                start_trainer(trainers[i]);
            }
            double start = device_seconds();
            train_step(trainers[i], &row);
            if (round >= 0) seconds[i][round] = device_seconds() - start;
        }
    }
    printf("\n| flags | threads | step ms | ratio | tokens/s | peak MiB |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++) {
        const Config *c = &trainers[i]->config;
        double step = median(seconds[i], rounds);
        if (i == 0) first = step;
        printf("| `%s` | %d | %.1f | %.2f | %.1f | %.1f |\n", rivals[i].flags, trainers[i]->context.device->threads,
               1e3 * step, step / first, (double)(c->B * c->T * c->micro_batches) / step,
               size_mib(ledger_peak(&run_of(trainers[i])->plan.ledger, TIER_DEVICE)));
        close_trainer(trainers[i]);
    }
    fflush(stdout);
    set_threads(all);
}

#define GPT2 "-e d12 --vocab 50257 --max-length 1024 "
#define SMALL "-e d6 --vocab 8192 --max-length 2048 -p fp32 "

// ROUNDS "FLAGS" ...: configurations in turns; "1:FLAGS" is with one thread.
static void bench_turns(int n, char **words) {
    Rival rivals[RIVALS_MOST];
    if (n < 2 || n > 1 + RIVALS_MOST) die("usage: bench turns ROUNDS \"[THREADS:]FLAGS\" ..., at most %d", RIVALS_MOST);
    for (int i = 1; i < n; i++) {
        const char *colon = strchr(words[i], ':');
        rivals[i - 1].threads = colon ? atoi(words[i]) : 0;
        rivals[i - 1].flags = colon ? colon + 1 : words[i];
    }
    bench_rivals((int)size_min((size_t)atoi(words[0]), SAMPLES_MOST), rivals, n - 1);
}

int main(int argc, char **argv) {
    threads_give_way(argv);
    static const Rival levels[] = {{0, GPT2 "-b 4 -t 256 -p bf16 -r 0"}, {0, GPT2 "-b 4 -t 256 -p bf16 -r 1"},
                                   {0, GPT2 "-b 4 -t 256 -p bf16 -r 2"}, {0, GPT2 "-b 4 -t 256 -p bf16 -r 3"}};
    static const Rival lengths[] = {{0, SMALL "-b 16 -t 128"}, {0, SMALL "-b 8 -t 256"}, {0, SMALL "-b 4 -t 512"},
                                    {0, SMALL "-b 2 -t 1024"}, {0, SMALL "-b 1 -t 2048"}, {1, SMALL "-b 8 -t 256"}};
    if (argc > 1 && strcmp(argv[1], "turns") == 0) {
        bench_turns(argc - 2, argv + 2);
        return 0;
    }
    if (argc > 1) {  // bench DETAILS SAMPLES FLAGS: one configuration
        if (argc != 4) die("usage: bench [DETAILS(0..2) SAMPLES \"FLAGS\"], or bench turns ROUNDS \"FLAGS\" ...");
        bench(atoi(argv[1]), atoi(argv[2]), argv[3]);
        return 0;
    }
    printf("| flags | matmul GFLOP/s | copy GB/s | ideal ms | step ms | share | tokens/s | peak MiB |\n");
    printf("|---|---|---|---|---|---|---|---|\n");
    bench(0, 3, GPT2 "-b 4 -t 256 -p fp32");
    bench(0, 2, GPT2 "-b 4 -t 256 -p bf16");
    bench(0, 2, GPT2 "-b 1 -t 1024 -p fp32");
    bench(0, 15, "-e d4 --vocab 257 -b 8 -t 256 -p fp32");
    bench_rivals(2, levels, 4);
    bench_rivals(5, lengths, 6);
    return 0;
}
