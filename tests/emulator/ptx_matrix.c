// ptx_matrix.c - mma.sync: D = A B + C of a warp, A 16 x k by rows, B k x 8 by columns, k = 8 or 16.
//
// Which lane holds what (PTX ISA, "Matrix fragments for mma.m16n8k16"), g = lane / 4, t = lane % 4:
//     A  register r: rows g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next
//     B  register r: rows 2 t + 8 r and the next, column g
//     C  register r: row g + 8 r, columns 2 t and the next; in fp32 each value has a register of its own
// Products are exact in fp32; they are added in the order of k, then C. The device's order is not known.
#include "numbers.h"
#include "ptx.h"

typedef struct Tile {
    float a[16][16], b[16][8], c[16][8];
} Tile;

static inline float half_of(uint32_t pair, int upper, bool is_bf16) {
    uint16_t bits = (uint16_t)(upper ? pair >> 16 : pair);
    return is_bf16 ? bf16_float(bits) : f16_float(bits);
}

static void mma_gather(Tile *tile, const Warp *warp, const Instruction *i, const int32_t *operands) {
    bool is_bf16 = i->type == TYPE_BF16;
    int n_a = i->mode / 4, n_b = i->mode / 8, n_c = i->flag ? 4 : 2;
    const int32_t *of_a = operands + n_c, *of_b = of_a + n_a, *of_c = of_b + n_b;
    for (int r = 0; r < n_a; r++) {
        const uint32_t *lanes = warp_register(warp, of_a[r]);
        for (int l = 0; l < LANES; l++) {
            float *at = &tile->a[l / 4 + 8 * (r % 2)][l % 4 * 2 + 8 * (r / 2)];
            at[0] = half_of(lanes[l], 0, is_bf16), at[1] = half_of(lanes[l], 1, is_bf16);
        }
    }
    for (int r = 0; r < n_b; r++) {
        const uint32_t *lanes = warp_register(warp, of_b[r]);
        for (int l = 0; l < LANES; l++) {
            int row = l % 4 * 2 + 8 * r;
            tile->b[row][l / 4] = half_of(lanes[l], 0, is_bf16);
            tile->b[row + 1][l / 4] = half_of(lanes[l], 1, is_bf16);
        }
    }
    for (int r = 0; r < n_c; r++) {
        const uint32_t *lanes = warp_register(warp, of_c[r]);
        for (int l = 0; l < LANES; l++) {
            if (i->flag) {
                tile->c[l / 4 + 8 * (r / 2)][l % 4 * 2 + r % 2] = bits_float(lanes[l]);
            } else {
                tile->c[l / 4 + 8 * r][l % 4 * 2] = f16_float((uint16_t)lanes[l]);
                tile->c[l / 4 + 8 * r][l % 4 * 2 + 1] = f16_float((uint16_t)(lanes[l] >> 16));
            }
        }
    }
}

static void mma_scatter(const Tile *tile, const Warp *warp, const Instruction *i, const int32_t *operands) {
    for (int r = 0; r < (i->flag ? 4 : 2); r++) {
        uint32_t *lanes = warp_register(warp, operands[r]);
        for (int l = 0; l < LANES; l++) {
            if (i->flag) {
                lanes[l] = float_bits(tile->c[l / 4 + 8 * (r / 2)][l % 4 * 2 + r % 2]);
            } else {
                const float *pair = &tile->c[l / 4 + 8 * r][l % 4 * 2];
                lanes[l] = (uint32_t)float_f16(pair[1]) << 16 | float_f16(pair[0]);
            }
        }
    }
}

void mma_run(Warp *warp, const Instruction *i) {
    Tile tile;
    const int32_t *operands = emulator.block->function->operands + i->operands;
    mma_gather(&tile, warp, i, operands);
    for (int m = 0; m < 16; m++) {
        float sum[8] = {0};
        for (int k = 0; k < i->mode; k++) {
            for (int n = 0; n < 8; n++) sum[n] = __builtin_fmaf(tile.a[m][k], tile.b[k][n], sum[n]);
        }
        for (int n = 0; n < 8; n++) tile.c[m][n] += sum[n];
    }
    mma_scatter(&tile, warp, i, operands);
}
