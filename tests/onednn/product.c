// product.c - the arithmetic of the stand-in, and its scratchpad.
//
// Each element is one chain of fused multiply-adds in fp32, in the order of k, as on the trainer's own tiles; then the
// bias or what was there is added, and it is rounded once. So the bits don't depend on the number of threads.
//
// C is made of as many parts as there were threads when the product was described, the i-th by thread i of a team. If
// the team turns out smaller, the others' parts stay as they were, without a word, as in the library.
//
// Sums rest in the scratchpad between parts of K: one half of what a thread keeps there is at the front, the other at
// the back, and all bytes between are a pattern that must be untouched in the end.
#include <math.h>
#include <omp.h>
#include <string.h>

#include "standin.h"

enum { ROWS = 32, COLUMNS = 64, DEPTH = 128 };  // of a tile, and of a part of K
enum { UNIT_ROWS = 4, UNIT_COLUMNS = 16 };      // in registers
typedef float Sums[ROWS][COLUMNS];

// ---------------------------------------------------------------------------------------------------------------
// The scratchpad

static unsigned char pattern_at(size_t i, unsigned char key) { return (unsigned char)(i * 167 + (i >> 8) + key); }

static void pattern_write(unsigned char *scratchpad, size_t first, size_t end, unsigned char key) {
    for (size_t i = first; i < end; i++) scratchpad[i] = pattern_at(i, key);
}

static void pattern_check(const Execution *e) {
    unsigned char differences = 0;
    for (size_t i = 0; i < e->scratchpad_size; i++) differences |= e->scratchpad[i] ^ pattern_at(i, e->key);
    if (!differences) return;
    size_t at = 0;
    while (e->scratchpad[at] == pattern_at(at, e->key)) at++;
    standin_die("byte %zu of the scratchpad (%zu bytes) was written while a product used it", at, e->scratchpad_size);
}

// Bytes at either end of the scratchpad in which a thread keeps sums.
static size_t kept_bytes(const Execution *e) {
    size_t share = e->scratchpad_size / (2 * (size_t)e->product->threads);
    return share < sizeof(Sums) / 2 ? share : sizeof(Sums) / 2;
}

static unsigned char *kept_front(const Execution *e, int part) { return e->scratchpad + (size_t)part * kept_bytes(e); }
static unsigned char *kept_back(const Execution *e, int part) {
    return e->scratchpad + e->scratchpad_size - ((size_t)part + 1) * kept_bytes(e);
}

static void sums_keep(const Execution *e, int part, Sums sums) {
    const size_t n = kept_bytes(e);
    if (n == 0) return;
    memcpy(kept_front(e, part), sums, n);
    memcpy(kept_back(e, part), (unsigned char *)sums + n, n);
    memset(sums, 0xff, 2 * n);  // NaN: they are there and nowhere else
}

static void sums_fetch(const Execution *e, int part, Sums sums) {
    const size_t n = kept_bytes(e);
    if (n == 0) return;
    memcpy(sums, kept_front(e, part), n);
    memcpy((unsigned char *)sums + n, kept_back(e, part), n);
}

static void sums_forget(const Execution *e, int part) {
    const size_t n = kept_bytes(e), front = (size_t)part * n, back = e->scratchpad_size - front - n;
    pattern_write(e->scratchpad, front, front + n, e->key);
    pattern_write(e->scratchpad, back, back + n, e->key);
}

// ---------------------------------------------------------------------------------------------------------------
// Numbers

static float bf16_value(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// To nearest, ties to even; NaN stays NaN.
static uint16_t bf16_round(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (value != value) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float number_pointer(dnnl_data_type_t type, const void *base, dnnl_dim_t at) {
    return type == dnnl_bf16 ? bf16_value(((const uint16_t *)base)[at]) : ((const float *)base)[at];
}

// n numbers that lie together, from number `at` on, to every to_step-th float of `to`.
static void numbers_load(float *restrict to, size_t to_step, dnnl_data_type_t type, const void *base, dnnl_dim_t at,
                         dnnl_dim_t n) {
    const uint16_t *restrict halves = (const uint16_t *)base + at;
    const float *restrict floats = (const float *)base + at;
    if (type == dnnl_f32) {
        for (dnnl_dim_t i = 0; i < n; i++) to[(size_t)i * to_step] = floats[i];
    } else if (to_step == 1) {
        for (dnnl_dim_t i = 0; i < n; i++) to[i] = bf16_value(halves[i]);
    } else {
        for (dnnl_dim_t i = 0; i < n; i++) to[(size_t)i * to_step] = bf16_value(halves[i]);
    }
}

// to (n_rows, n_columns), rows `distance` floats apart, from (row, column) of a matrix on.
static void matrix_load(float *to, size_t distance, const dnnl_memory_desc_t *d, const void *base, dnnl_dim_t row,
                        dnnl_dim_t n_rows, dnnl_dim_t column, dnnl_dim_t n_columns) {
    const dnnl_dim_t *steps = d->format_desc.blocking.strides;
    const dnnl_dim_t first = row * steps[0] + column * steps[1];
    if (steps[1] == 1) {
        for (dnnl_dim_t i = 0; i < n_rows; i++) {
            numbers_load(to + (size_t)i * distance, 1, d->data_type, base, first + i * steps[0], n_columns);
        }
    } else {
        for (dnnl_dim_t j = 0; j < n_columns; j++) {
            numbers_load(to + j, distance, d->data_type, base, first + j * steps[1], n_rows);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Tiles

// sums += a (n_rows, depth) . b (depth, COLUMNS)
static void tile_multiply(Sums sums, float a[ROWS][DEPTH], float b[DEPTH][COLUMNS], dnnl_dim_t n_rows,
                          dnnl_dim_t n_columns, dnnl_dim_t depth) {
    for (dnnl_dim_t i = 0; i < n_rows; i += UNIT_ROWS) {
        for (dnnl_dim_t j = 0; j < n_columns; j += UNIT_COLUMNS) {
            float unit[UNIT_ROWS][UNIT_COLUMNS];
            for (int r = 0; r < UNIT_ROWS; r++) memcpy(unit[r], &sums[i + r][j], sizeof(unit[r]));
            for (dnnl_dim_t k = 0; k < depth; k++) {
                for (int r = 0; r < UNIT_ROWS; r++) {
                    const float x = a[i + r][k];
#pragma omp simd
                    for (int c = 0; c < UNIT_COLUMNS; c++) unit[r][c] = fmaf(x, b[k][j + c], unit[r][c]);
                }
            }
            for (int r = 0; r < UNIT_ROWS; r++) memcpy(&sums[i + r][j], unit[r], sizeof(unit[r]));
        }
    }
}

static void tile_store(const Execution *e, Sums sums, dnnl_dim_t m, dnnl_dim_t n_rows, dnnl_dim_t n,
                       dnnl_dim_t n_columns) {
    const Product *p = e->product;
    const dnnl_dim_t *steps = p->c.format_desc.blocking.strides;
    for (dnnl_dim_t i = 0; i < n_rows; i++) {
        for (dnnl_dim_t j = 0; j < n_columns; j++) {
            const dnnl_dim_t at = (m + i) * steps[0] + (n + j) * steps[1];
            float value = sums[i][j];
            if (e->bias) value += number_pointer(p->bias.data_type, e->bias, n + j);
            if (p->sum) value += number_pointer(p->c.data_type, e->c, at);
            if (p->c.data_type == dnnl_bf16) ((uint16_t *)e->c)[at] = bf16_round(value);
            else ((float *)e->c)[at] = value;
        }
    }
}

static dnnl_dim_t smaller(dnnl_dim_t x, dnnl_dim_t y) { return x < y ? x : y; }

static void tile_make(const Execution *e, int part, dnnl_dim_t m, dnnl_dim_t n) {
    const Product *p = e->product;
    const dnnl_dim_t K = p->a.dims[1], n_rows = smaller(ROWS, p->c.dims[0] - m);
    const dnnl_dim_t n_columns = smaller(COLUMNS, p->c.dims[1] - n);
    Sums sums;
    float a[ROWS][DEPTH], b[DEPTH][COLUMNS];
    memset(sums, 0, sizeof(sums));
    memset(a, 0, sizeof(a));
    memset(b, 0, sizeof(b));
    for (dnnl_dim_t k = 0; k < K; k += DEPTH) {
        const dnnl_dim_t depth = smaller(DEPTH, K - k);
        matrix_load(&a[0][0], DEPTH, &p->a, e->a, m, n_rows, k, depth);
        matrix_load(&b[0][0], COLUMNS, &p->b, e->b, k, depth, n, n_columns);
        tile_multiply(sums, a, b, n_rows, n_columns, depth);
        sums_keep(e, part, sums);
        sums_fetch(e, part, sums);
    }
    tile_store(e, sums, m, n_rows, n, n_columns);
}

static void part_make(const Execution *e, int part) {
    const Product *p = e->product;
    const dnnl_dim_t across = (p->c.dims[1] + COLUMNS - 1) / COLUMNS, down = (p->c.dims[0] + ROWS - 1) / ROWS;
    const dnnl_dim_t n_tiles = across * down, n_parts = p->threads;
    for (dnnl_dim_t i = n_tiles * part / n_parts; i < n_tiles * (part + 1) / n_parts; i++) {
        tile_make(e, part, i / across * ROWS, i % across * COLUMNS);
    }
    if (e->scratchpad) sums_forget(e, part);
}

// ---------------------------------------------------------------------------------------------------------------

void product_begin(Execution *e) {
    static unsigned char key;
    e->key = ++key;
    pattern_write(e->scratchpad, 0, e->scratchpad_size, e->key);
}

void product_finish(Execution *e) {
    pattern_check(e);
    int team = 0;
#pragma omp parallel num_threads(e->product->threads)
    {
#pragma omp single nowait
        team = omp_get_num_threads();
        part_make(e, omp_get_thread_num());
    }
    if (team < e->product->threads) {
        report_short_team();
        if (settings()->strict) {
            standin_die("a product for %d threads was executed by a team of %d", e->product->threads, team);
        }
    }
    pattern_check(e);
    if (e->scratchpad) memset(e->scratchpad, 0xff, e->scratchpad_size);  // NaN for whoever reads it
}
