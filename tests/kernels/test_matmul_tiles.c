// test_matmul_tiles.c - kernels/matmul_tiles.h, matmul_shape.h: our own products bit for bit, in every form and type,
// within their workspace, however they are cut.
#include "../test_helpers.h"

#include "../../dev/kernels/matmul_tiles.h"
#include "../../dev/random.h"

// Beyond MATMUL_M, MATMUL_N and MATMUL_K, and on either side of a tile.
static const size_t SHAPES[][3] = {{1, 1, 1},    {7, 17, 5},   {13, 33, 129}, {24, 64, 32},
                                   {1030, 3, 5}, {3, 800, 7},  {5, 9, 2100},  {100, 70, 1030},
                                   {97, 1540, 3}, {2050, 40, 9}, {30, 100, 1025}};
enum { N_SHAPES = sizeof(SHAPES) / sizeof(SHAPES[0]), GUARD = 64 };

static void fill(Dtype dtype, void *x, size_t n, uint64_t stream) {
    for (size_t i = 0; i < n; i++) number_put(dtype, x, i, (float)random_uniform(3, stream, i) - 0.5f);
}

static void *floats(size_t n) {
    void *x = malloc(n * sizeof(float));
    assert_non_null(x);
    return x;
}

// Sums are chains of fused multiply-adds in the order of k, rounded once, after the bias or the addition.
static float naive_element(const MatmulShape *s, const float *a, const float *b, const void *bias, float before,
                           size_t m, size_t n) {
    float sum = 0;
    for (size_t k = 0; k < s->K; k++) {
        sum = fmaf(a[s->a_transposed ? k * s->M + m : m * s->K + k], b[s->b_transposed ? n * s->K + k : k * s->N + n],
                   sum);
    }
    return s->bias ? sum + number_get(s->a_dtype, bias, n) : s->add ? before + sum : sum;
}

static void check_product(const MatmulShape *s, int threads) {
    const size_t n_a = s->M * s->K, n_b = s->K * s->N, n_c = s->M * s->N, n_work = matmul_tiled_floats(s, threads);
    void *a = floats(n_a), *b = floats(n_b), *bias = floats(s->N), *c = floats(n_c);
    float *a_values = (float *)floats(n_a), *b_values = (float *)floats(n_b), *before = (float *)floats(n_c);
    float *workspace = (float *)floats(n_work + GUARD);
    fill(s->a_dtype, a, n_a, 1);
    fill(s->b_dtype, b, n_b, 2);
    fill(s->a_dtype, bias, s->N, 3);
    fill(s->c_dtype, c, n_c, 4);
    for (size_t i = 0; i < n_a; i++) a_values[i] = number_get(s->a_dtype, a, i);
    for (size_t i = 0; i < n_b; i++) b_values[i] = number_get(s->b_dtype, b, i);
    for (size_t i = 0; i < n_c; i++) before[i] = number_get(s->c_dtype, c, i);
    for (size_t i = 0; i < n_work; i++) workspace[i] = NAN;
    for (size_t i = 0; i < GUARD; i++) workspace[n_work + i] = (float)i;
    matmul_tiled_cpu(s, c, a, b, bias, workspace, threads);
    for (size_t m = 0; m < s->M; m++) {
        for (size_t n = 0; n < s->N; n++) {
            float want = naive_element(s, a_values, b_values, bias, before[m * s->N + n], m, n), stored;
            number_put(s->c_dtype, &stored, 0, want);
            want = number_get(s->c_dtype, &stored, 0);
            const float got = number_get(s->c_dtype, c, m * s->N + n);
            if (got == want) continue;
            fail_msg("(%zu, %zu) of %zu x %zu x %zu%s%s%s%s, %s, %s, %d threads: %.9g instead of %.9g", m, n, s->M,
                     s->N, s->K, s->a_transposed ? " A across" : "", s->b_transposed ? " B across" : "",
                     s->bias ? " bias" : "", s->add ? " add" : "", number_name(s->a_dtype), number_name(s->c_dtype),
                     threads, (double)got, (double)want);
        }
    }
    for (size_t i = 0; i < GUARD; i++) assert_true(workspace[n_work + i] == (float)i);
    void *const all[] = {a, b, bias, c, a_values, b_values, before, workspace};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) free(all[i]);
}

static void test_products(void **state) {
    (void)state;
    static const int THREADS[] = {1, 2, 5};
    for (int i = 0; i < N_SHAPES * DTYPES * 2 * 4; i++) {
        const size_t *n = SHAPES[i % N_SHAPES];
        const Dtype dtype = (Dtype)(i / N_SHAPES % DTYPES);
        const int form = i / N_SHAPES / DTYPES / 2;
        MatmulShape shape = matmul_shape(dtype, i / N_SHAPES / DTYPES % 2 ? FP32 : dtype, n[0], n[1], n[2]);
        shape.a_transposed = form % 2 != 0;
        shape.b_transposed = form / 2 != 0;
        shape.bias = i % 3 == 1;
        shape.add = i % 3 == 2;
        const int threads = THREADS[i / 3 % 3];
#ifdef _OPENMP
        omp_set_num_threads(threads);
        check_product(&shape, threads);
        omp_set_num_threads(1);
#else
        if (threads == 1) check_product(&shape, threads);
#endif
    }
}

// Super-blocks and units are whole tiles, within what the caches are to hold, and equal but for the last.
static void test_cuts(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        size_t n[3];
        for (uint64_t k = 0; k < 3; k++) n[k] = 1 + (size_t)exp2(13 * random_uniform(5, k, i));
        MatmulShape shape = matmul_shape(i % 2 ? FP32 : BF16, FP32, n[0], n[1], n[2]);
        shape.a_transposed = i % 4 < 2;
        const int threads = 1 + (int)(i % 37);
        const MatmulCut cut = matmul_cut(&shape, threads);
        assert_in_range(cut.M, 1, MATMUL_M + TILE_M - 1);
        assert_in_range(cut.N, 1, MATMUL_N + TILE_N - 1);
        assert_in_range(cut.K, 1, MATMUL_K + 7);
        assert_int_equal(cut.M % TILE_M, 0);
        assert_int_equal(cut.N % TILE_N, 0);
        assert_int_equal(cut.unit_m % TILE_M, 0);
        assert_int_equal(cut.unit_n % TILE_N, 0);
        assert_in_range(cut.unit_m, TILE_M, cut.M);
        assert_in_range(cut.unit_n, TILE_N, cut.N);
        assert_int_equal(cut.parted, cut.K < n[2]);
        assert_int_equal(cut.direct, shape.a_dtype == FP32 && !shape.a_transposed);
        assert_int_equal(matmul_tiled_floats(&shape, threads), cut.a + cut.b + cut.sums);
    }
}

// Shapes are compared as bytes: all that are not set are zero, padding too.
static void test_shapes_compare_as_bytes(void **state) {
    (void)state;
    const MatmulShape shape = matmul_shape(BF16, FP32, 3, 4, 5);
    MatmulShape want;
    memset(&want, 0, sizeof(want));
    want.M = 3;
    want.N = 4;
    want.K = 5;
    want.a_dtype = want.b_dtype = BF16;
    want.c_dtype = FP32;
    assert_memory_equal(&shape, &want, sizeof(want));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_shapes_compare_as_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
