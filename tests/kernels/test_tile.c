// test_tile.c - kernels/tile.h: a tile's sums, bit for bit, and the packing of both sides, to the last float.
#include "../test_helpers.h"

#include "../../dev/kernels/tile.h"
#include "../../dev/random.h"

enum { MARK = 12345 };  // what nobody may write over, or leave

static void fill(float *x, size_t n, uint64_t stream) {
    for (size_t i = 0; i < n; i++) x[i] = (float)random_uniform(1, stream, i) - 0.5f;
}

static void mark(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = MARK;
}

// Every element is one chain of fused multiply-adds in the order of k, from 0 or from what was there; what lies
// between the rows stays.
static void test_product(void **state) {
    (void)state;
    enum { MOST = 70, LDA = MOST + 3, LDC = TILE_N + 5 };
    static float a[TILE_M * LDA], b[MOST * TILE_N], c[TILE_M * LDC], before[TILE_M * LDC];
    fill(a, TILE_M * LDA, 0);
    fill(b, MOST * TILE_N, 1);
    for (size_t K = 0; K <= MOST; K++) {
        for (int add = 0; add < 2; add++) {
            fill(c, TILE_M * LDC, 2);
            memcpy(before, c, sizeof(c));
            tile_product(K, a, LDA, b, c, LDC, add);
            for (size_t i = 0; i < TILE_M; i++) {
                for (size_t j = 0; j < LDC; j++) {
                    const float there = before[i * LDC + j];
                    float sum = add ? there : 0;
                    for (size_t k = 0; k < K && j < TILE_N; k++) sum = fmaf(a[i * LDA + k], b[k * TILE_N + j], sum);
                    assert_true(c[i * LDC + j] == (j < TILE_N ? sum : there));
                }
            }
        }
    }
}

static void test_transpose_8x8(void **state) {
    (void)state;
    enum { LDF = 11, LDT = 9 };
    float from[8 * LDF], to[8 * LDT];
    for (int i = 0; i < 8 * LDF; i++) from[i] = (float)i;
    mark(to, 8 * LDT);
    tile_transpose_8x8(to, LDT, from, LDF);
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < LDT; i++) assert_true(to[j * LDT + i] == (i < 8 ? from[i * LDF + j] : MARK));
    }
}

// A stored matrix of numbers that every type has, larger than what is read of it.
enum { ROWS = 300, COLUMNS = 301, FIRST = 3, STRIDE = COLUMNS + 2 };

static float element(size_t row, size_t column) { return (float)(int)((row * 31 + column * 17) % 250) - 120; }

static TileSource stored(Dtype dtype) {
    static float base[FIRST + ROWS * STRIDE];
    for (size_t i = 0; i < FIRST + ROWS * STRIDE; i++) number_put(dtype, base, i, NAN);
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < COLUMNS; j++) number_put(dtype, base, FIRST + i * STRIDE + j, element(i, j));
    }
    const TileSource source = {dtype, base, FIRST, STRIDE};
    return source;
}

static const size_t SIZES[] = {1, 2, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 290};
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), ROW0 = 5, COLUMN0 = 4 };

static void test_copies(void **state) {
    (void)state;
    enum { LDT = 295 };
    static float to[LDT * LDT];
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        const TileSource source = stored((Dtype)dtype);
        for (int s = 0; s < N_SIZES * N_SIZES; s++) {
            const size_t n_rows = SIZES[s / N_SIZES], n_columns = SIZES[s % N_SIZES];
            mark(to, LDT * LDT);
            tile_copy(to, LDT, &source, ROW0, n_rows, COLUMN0, n_columns);
            for (size_t i = 0; i < LDT; i++) {
                for (size_t j = 0; j < LDT; j++) {
                    const bool is_copied = i < n_rows && j < n_columns;
                    assert_true(to[i * LDT + j] == (is_copied ? element(ROW0 + i, COLUMN0 + j) : MARK));
                }
            }
            mark(to, LDT * LDT);
            tile_copy_transposed(to, LDT, &source, ROW0, n_rows, COLUMN0, n_columns);
            for (size_t j = 0; j < LDT; j++) {
                for (size_t i = 0; i < LDT; i++) {
                    const bool is_copied = i < n_rows && j < n_columns;
                    assert_true(to[j * LDT + i] == (is_copied ? element(ROW0 + i, COLUMN0 + j) : MARK));
                }
            }
        }
    }
}

// What (i, k) of an operand is that lies as it is, or across.
static float operand(bool across, size_t i, size_t k) { return across ? element(k, i) : element(i, k); }

static void test_pack_a(void **state) {
    (void)state;
    enum { LDA = 295, MOST = 290 + TILE_M, I0 = 5, K0 = 4 };
    static float to[MOST * LDA];
    for (int form = 0; form < 2 * DTYPES; form++) {
        const TileSource source = stored((Dtype)(form / 2));
        const bool across = form % 2;
        for (int s = 0; s < N_SIZES * N_SIZES; s++) {
            const size_t n = SIZES[s / N_SIZES], K = SIZES[s % N_SIZES], padded = size_round_up(n, TILE_M);
            mark(to, MOST * LDA);
            tile_pack_a(to, LDA, &source, across, I0, I0 + n, K0, K);
            for (size_t i = 0; i < MOST; i++) {
                for (size_t k = 0; k < LDA; k++) {
                    const float want = i < n ? operand(across, I0 + i, K0 + k) : 0;
                    assert_true(to[i * LDA + k] == (i < padded && k < K ? want : MARK));
                }
            }
        }
    }
}

static void test_pack_b(void **state) {
    (void)state;
    enum { PANEL = 290 * TILE_N + 7, PANELS = 290 / TILE_N + 2, I0 = 5, K0 = 4 };
    static float to[PANELS * PANEL];
    for (int form = 0; form < 2 * DTYPES; form++) {
        const TileSource source = stored((Dtype)(form / 2));
        const bool across = form % 2;  // of what tile_pack_b calls so: its rows are i
        for (int s = 0; s < N_SIZES * N_SIZES; s++) {
            const size_t n = SIZES[s / N_SIZES], K = SIZES[s % N_SIZES], panels = size_ceil_div(n, TILE_N);
            mark(to, PANELS * PANEL);
            tile_pack_b(to, PANEL, &source, across, I0, I0 + n, K0, K);
            for (size_t at = 0; at < PANELS * PANEL; at++) {
                const size_t panel = at / PANEL, k = at % PANEL / TILE_N, i = panel * TILE_N + at % PANEL % TILE_N;
                const float want = i < n ? operand(!across, I0 + i, K0 + k) : 0;
                assert_true(to[at] == (panel < panels && k < K ? want : MARK));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product), cmocka_unit_test(test_transpose_8x8), cmocka_unit_test(test_copies),
        cmocka_unit_test(test_pack_a),  cmocka_unit_test(test_pack_b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
