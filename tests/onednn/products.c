// products.c - the trainer's products, as matmul.h asks the library for them, against naive ones, bit for bit: a chain
// of fused multiply-adds in the order of k, then the bias or what was there, then one rounding.
//
//   products [fp32|bf16]     all transposes, bias, sum and odd shapes
#define _GNU_SOURCE
#include "../../dev/kernels/matmul.h"

typedef struct {
    size_t M, N, K;
} Size;

static const Size SIZES[] = {{1, 1, 1},   {1, 70, 33},   {67, 1, 129},  {33, 65, 127},   {64, 48, 128},
                             {31, 64, 1}, {130, 7, 300}, {5, 200, 640}, {100, 130, 257}, {32, 64, 1000}};

enum { MOST = 130 * 1024 };

static float drawn(Dtype dtype, uint64_t *state) {
    float value;
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    number_put(dtype, &value, 0, (float)(int32_t)(*state >> 32) * 0x1p-31f);
    return number_get(dtype, &value, 0);
}

static float wanted(const MatmulShape *s, const void *a, const void *b, const void *bias, float before, size_t m,
                    size_t n) {
    float sum = 0;
    for (size_t k = 0; k < s->K; k++) {
        sum = fmaf(number_get(s->a_dtype, a, s->a_transposed ? k * s->M + m : m * s->K + k),
                   number_get(s->b_dtype, b, s->b_transposed ? n * s->K + k : k * s->N + n), sum);
    }
    if (s->bias) sum += number_get(s->a_dtype, bias, n);
    if (s->add) sum = before + sum;
    float stored = 0;
    number_put(s->c_dtype, &stored, 0, sum);
    return number_get(s->c_dtype, &stored, 0);
}

static bool same_bits(float x, float y) { return memcmp(&x, &y, sizeof(x)) == 0 || (x != x && y != y); }

// Plans, makes and compares one product; returns how many elements differ.
static int product_differs(Device *device, MatmulShape *s, bool special) {
    static float a[MOST], b[MOST], bias[MOST], c[MOST], before[MOST];
    static Memory memory;
    uint64_t state = s->M * 31 + s->N * 7 + s->K;
    for (size_t i = 0; i < s->M * s->K; i++) number_put(s->a_dtype, a, i, drawn(s->a_dtype, &state));
    for (size_t i = 0; i < s->K * s->N; i++) number_put(s->b_dtype, b, i, drawn(s->b_dtype, &state));
    for (size_t i = 0; i < s->N; i++) number_put(s->a_dtype, bias, i, drawn(s->a_dtype, &state));
    for (size_t i = 0; i < s->M * s->N; i++) {
        number_put(s->c_dtype, before, i, s->add ? drawn(s->c_dtype, &state) : NAN);
    }
    if (special) {
        number_put(s->a_dtype, a, s->M * s->K / 2, NAN);
        number_put(s->b_dtype, b, s->K * s->N / 3, INFINITY);
    }
    memcpy(c, before, sizeof(c));
    memory_open_plan(&memory, device);
    for (int pass = 0; pass < 2; pass++) {
        static Ledger ledger;
        device->kind = pass == 0 ? DEVICE_PLAN : DEVICE_CPU;
        if (pass == 1) {
            ledger = memory.ledger;
            matmul_create(device);
            memory_reserve(&memory, device, &ledger, ".", 0);
        }
        memory_begin(&memory, PHASE_SETUP);
        const Context context = {device, &memory, s->a_dtype};
        matmul_run(&context, s, c, a, b, s->bias ? bias : NULL);
        memory_end(&memory);
    }
    memory_close(&memory);
    int differ = 0;
    for (size_t i = 0; i < s->M * s->N; i++) {
        float want = wanted(s, a, b, bias, number_get(s->c_dtype, before, i), i / s->N, i % s->N);
        if (!same_bits(number_get(s->c_dtype, c, i), want)) differ++;
    }
    return differ;
}

int main(int n_words, char **words) {
    const Dtype dtype = n_words > 1 && strcmp(words[1], "bf16") == 0 ? BF16 : FP32;
    int failed = 0, n = 0;
    for (size_t size = 0; size < sizeof(SIZES) / sizeof(SIZES[0]); size++) {
        for (int variant = 0; variant < 64; variant++) {
            const bool bias = variant & 4, add = variant & 8;
            if (bias && add) continue;
            if ((variant & 16) && dtype == FP32) continue;
            Device device;
            memset(&device, 0, sizeof(device));
            device.threads = omp_get_max_threads();
            device.real = DEVICE_CPU;
            device.matmul = matmul_open(true);
            MatmulShape shape =
                matmul_shape(dtype, variant & 16 ? FP32 : dtype, SIZES[size].M, SIZES[size].N, SIZES[size].K);
            shape.a_transposed = variant & 1;
            shape.b_transposed = variant & 2;
            shape.bias = bias;
            shape.add = add;
            int differ = product_differs(&device, &shape, variant & 32);
            if (differ) {
                fprintf(stderr, "products: %d elements of %zux%zux%zu, variant %d, differ\n", differ, shape.M, shape.N,
                        shape.K, variant);
                failed++;
            }
            n++;
            matmul_close(device.matmul);
        }
    }
    printf("%d products, %d wrong\n", n, failed);
    return failed ? 2 : 0;
}
