// ptx_matrix.c - mma.sync: D = A B + C of a warp, A 16 x k by rows, B k x 8 by columns, k = 8 or 16.
//
// Which lane holds what (PTX ISA, "Matrix fragments for mma.m16n8k16"), g = lane / 4, t = lane % 4:
//     A  register r: rows g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next
//     B  register r: rows 2 t + 8 r and the next, column g
//     C  register r: row g + 8 r, columns 2 t and the next; in fp32 each value has a register of its own. So lanes side
//        by side are 8 rows of C
// Products are exact in fp32; they are added in the order of k, then C. The device's order is not known.
#include "numbers.h"
#include "ptx.h"

typedef struct Tile {
    float a[16][16], b[16][8], c[16][8];
} Tile;

// A register of A or B holds an 8 x 8 block: lanes 4 g … 4 g + 3 side by side are row g of A, or column g of B.
static void block_floats(float *to, const uint32_t *lanes, bool is_bf16) {
    uint16_t halves[64];
    memcpy(halves, lanes, sizeof(halves));
    if (is_bf16) {
        for (int i = 0; i < 64; i++) to[i] = bf16_float(halves[i]);
    } else {
        for (int i = 0; i < 64; i++) to[i] = f16_float(halves[i]);
    }
}

static void mma_gather(Tile *tile, const Warp *warp, const Instruction *i, const int32_t *operands) {
    bool is_bf16 = i->type == TYPE_BF16;
    int n_a = i->mode / 4, n_b = i->mode / 8, n_c = i->flag ? 4 : 2;
    const int32_t *of_a = operands + n_c, *of_b = of_a + n_a, *of_c = of_b + n_b;
    float block[64];
    for (int r = 0; r < n_a; r++) {
        block_floats(block, warp_register(warp, of_a[r]), is_bf16);
        for (int g = 0; g < 8; g++) memcpy(&tile->a[g + 8 * (r % 2)][8 * (r / 2)], block + 8 * g, 8 * sizeof(float));
    }
    for (int r = 0; r < n_b; r++) {
        block_floats(block, warp_register(warp, of_b[r]), is_bf16);
        for (int k = 0; k < 8; k++) {
            for (int g = 0; g < 8; g++) tile->b[8 * r + k][g] = block[8 * g + k];
        }
    }
    for (int h = 0; h < 2; h++) {
        float *to = &tile->c[8 * h][0];
        if (!i->flag) {
            block_floats(to, warp_register(warp, of_c[h]), false);
            continue;
        }
        const float *even = warp_register(warp, of_c[2 * h]), *odd = warp_register(warp, of_c[2 * h + 1]);
        for (int l = 0; l < LANES; l++) to[2 * l] = even[l], to[2 * l + 1] = odd[l];
    }
}

static void mma_scatter(const Tile *tile, const Warp *warp, const Instruction *i, const int32_t *operands) {
    for (int h = 0; h < 2; h++) {
        const float *from = &tile->c[8 * h][0];
        if (i->flag) {
            float *even = warp_register(warp, operands[2 * h]), *odd = warp_register(warp, operands[2 * h + 1]);
            for (int l = 0; l < LANES; l++) even[l] = from[2 * l], odd[l] = from[2 * l + 1];
        } else {
            uint32_t *lanes = warp_register(warp, operands[h]);
            for (int l = 0; l < LANES; l++) {
                lanes[l] = (uint32_t)float_f16(from[2 * l + 1]) << 16 | float_f16(from[2 * l]);
            }
        }
    }
}

static inline void mma_multiply(Tile *tile, int depth) {
    for (int m = 0; m < 16; m++) {
        float sum[8] = {0};
        for (int k = 0; k < depth; k++) {
#pragma GCC unroll 1  // so that it becomes one vector operation
            for (int n = 0; n < 8; n++) sum[n] = __builtin_fmaf(tile->a[m][k], tile->b[k][n], sum[n]);
        }
        for (int n = 0; n < 8; n++) tile->c[m][n] += sum[n];
    }
}

void mma_run(Warp *warp, const Instruction *i) {
    Tile tile;
    const int32_t *operands = emulator.block->function->operands + i->operands;
    mma_gather(&tile, warp, i, operands);
    if (i->mode == 16) {
        mma_multiply(&tile, 16);
    } else {
        mma_multiply(&tile, 8);
    }
    mma_scatter(&tile, warp, i, operands);
}
