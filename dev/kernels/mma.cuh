// mma.cuh - products of small matrices on tensor cores: fragments in registers, tiles in shared memory.
//
// mma.sync.m16n8k16 multiplies A (16 x 16) by B (16 x 8) and adds in fp32 to C (16 x 8), spread over a warp's lanes.
// With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"), a lane holds
//
//     A   4 registers of two 16-bit numbers side by side, at (row, channel) (g, 2t), (g + 8, 2t), (g, 2t + 8),
//         (g + 8, 2t + 8)
//     B   2 registers, at (channel, column) (2t, g), (2t + 8, g), two channels below each other
//     C   4 floats, at (row, column) (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//
// So two neighbouring pieces of C, rounded, are a piece of A, without a word from another lane: the result of one
// product goes into the next one where it is. Attention is made of two products that use this:
//
//     mma_rows_by_rows    C (+)= X Y^T    X (16 M rows) and Y (8 N rows) both lie in memory by rows of channels
//     mma_add_product     C  += P Y       P (16 M, 8 N) is a result in registers; Y has 8 N rows
//
// A tile is some rows of 64 (or 128) 16-bit numbers in shared memory, in chunks of 16 bytes. ldmatrix reads 8 rows of
// one chunk at a time, and cp.async writes 8 chunks of one row: chunk c of row r lies at place c ^ (r % 8), so that in
// both cases the 8 chunks lie in different banks (proved below).
#ifndef MMA_CUH
#define MMA_CUH

#include "../device.h"

// ---------------------------------------------------------------------------------------------------------------
// By storage type

template <Dtype DTYPE> struct Mma;

template <> struct Mma<BF16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    // Two numbers, rounded to nearest even; the first in the low half.
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
    static __device__ __forceinline__ float low(uint32_t pair) { return number_of_bits(pair << 16); }
    static __device__ __forceinline__ float high(uint32_t pair) { return number_of_bits(pair & 0xffff0000u); }
};

template <> struct Mma<FP16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        uint32_t pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
    static __device__ __forceinline__ float low(uint32_t pair) {
        float x;
        asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(pair));
        return x;
    }
    static __device__ __forceinline__ float high(uint32_t pair) {
        float x;
        asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(pair));
        return x;
    }
};

// ---------------------------------------------------------------------------------------------------------------
// Shared memory

__device__ __forceinline__ uint32_t mma_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

// Brings 16 bytes (or 4) in while the thread goes on; n_bytes 0: zeros, and nothing is read.
__device__ __forceinline__ void mma_copy_16(uint32_t to, const void *from, uint32_t n_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}

__device__ __forceinline__ void mma_copy_4(uint32_t to, const void *from, uint32_t n_bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}

// All copies that this thread began have arrived; other threads see them after the next barrier.
__device__ __forceinline__ void mma_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Channels between neighbouring rows of a tile of heads of D: a power of two, so that chunks can be exchanged.
__host__ __device__ constexpr int mma_pitch(int D) { return D <= 64 ? 64 : 128; }
__host__ __device__ constexpr int mma_tile_bytes(int D, int rows) { return rows * mma_pitch(D) * 2; }

// Byte of chunk c of row r. Tiles begin at multiples of a row's bytes and 8 rows keep places, so the address of chunk
// c ^ d is that of chunk c exchanged with 16 d by one instruction, and rows 8 apart are a constant apart: a lane needs
// one register per tile.
__host__ __device__ constexpr int mma_offset(int D, int r, int c) {
    return r * mma_pitch(D) * 2 + ((c ^ (r & 7)) << 4);
}
__host__ __device__ constexpr uint32_t mma_move(int D, uint32_t address, int chunks, int rows) {
    return (address ^ (uint32_t)(chunks << 4)) + (uint32_t)(rows * mma_pitch(D) * 2);
}

// Of 8 accesses to 16 bytes side by side (a phase): no two in the same banks (32 of 4 bytes).
constexpr bool mma_conflict_free(int D, int r, int r_step, int c, int c_step) {
    int taken = 0;
    for (int i = 0; i < 8; i++) taken |= 1 << (mma_offset(D, r + i * r_step, c + i * c_step) >> 4 & 7);
    return taken == 0xff;
}

constexpr bool mma_all_conflict_free(int D) {
    bool good = true;
    for (int c = 0; c < mma_pitch(D) / 8; c++) good = good && mma_conflict_free(D, 0, 1, c, 0);     // ldmatrix
    for (int r = 0; r < 8; r++) {
        for (int c = 0; c < mma_pitch(D) / 8; c += 8) good = good && mma_conflict_free(D, r, 0, c, 1);  // cp.async
    }
    return good;
}
static_assert(mma_all_conflict_free(64) && mma_all_conflict_free(96) && mma_all_conflict_free(128), "bank conflicts");

// Begins to bring ROWS rows of D channels, `stride` apart, into a tile, by THREADS threads together. Rows from n_rows
// on and channels from n_channels on (a multiple of 8) become zero. `from` is aligned to 16 bytes, as are its rows.
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void mma_tile_load(uint32_t tile, const uint16_t *from, uint32_t stride, int n_rows,
                                              int n_channels) {
    constexpr int CHUNKS = mma_pitch(D) / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread keeps its place in every row");
    const int chunk = (int)threadIdx.x % CHUNKS, first = (int)threadIdx.x / CHUNKS;
    const uint16_t *source = from + ((uint32_t)first * stride + (uint32_t)chunk * 8);
    if (chunk >= D / 8) return;
    n_rows = chunk * 8 < n_channels ? n_rows - first : 0;
#pragma unroll
    for (int row = 0; row < ROWS; row += STEP) {  // what isn't there isn't read
        mma_copy_16(tile + (uint32_t)mma_offset(D, first + row, chunk), source + (size_t)row * stride,
                    row < n_rows ? 16 : 0);
    }
}

__device__ __forceinline__ void mma_load(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void mma_load_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------
// Where the rows of A are: in a tile, from row `first` on, or in registers, loaded from there once

template <int D, int M> struct MmaShared {
    enum { UNROLL = 2 };  // how far the compiler looks ahead; more takes registers
    uint32_t address;  // of this lane's row in the first of four 8 x 8 pieces: below each other first, then channels
    __device__ __forceinline__ MmaShared(uint32_t tile, int first) {
        const int lane = (int)threadIdx.x % WARP;
        address = tile + (uint32_t)mma_offset(D, first + lane % 16, lane / 16);
    }
    __device__ __forceinline__ void get(uint32_t (&a)[4], int i, int k) const {
        mma_load(a, mma_move(D, address, 2 * k, 16 * i));
    }
};

template <int D, int M> struct MmaHeld {
    enum { UNROLL = D / 16 };
    uint32_t rows[M][D / 16][4];
    __device__ __forceinline__ MmaHeld(uint32_t tile, int first) {
        const MmaShared<D, M> from(tile, first);
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int k = 0; k < D / 16; k++) from.get(rows[i][k], i, k);
        }
    }
    __device__ __forceinline__ void get(uint32_t (&a)[4], int i, int k) const {
#pragma unroll
        for (int r = 0; r < 4; r++) a[r] = rows[i][k][r];
    }
};

// c = X Y^T: X 16 M rows at `x`, Y the 8 N rows of tile `y`, summed over D channels.
template <Dtype DTYPE, int D, int M, int N, typename Rows>
__device__ __forceinline__ void mma_rows_by_rows(float (&c)[M][N][4], const Rows &x, uint32_t y) {
    const int lane = (int)threadIdx.x % WARP;  // four pieces: their channels beside each other first, then rows
    const uint32_t address = y + (uint32_t)mma_offset(D, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < M * N * 4; i++) c[i / 4 / N][i / 4 % N][i % 4] = 0.0f;
#pragma unroll Rows::UNROLL
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) x.get(a[i], i, k);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t b[4];
            mma_load(b, mma_move(D, address, 2 * k, 8 * j));
#pragma unroll
            for (int i = 0; i < M; i++) {
                Mma<DTYPE>::multiply(c[i][j], a[i], b[0], b[1]);
                Mma<DTYPE>::multiply(c[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// c += P Y: P (16 M, 8 N) in registers, rounded here; Y the 8 N rows of tile `y`, D channels.
template <Dtype DTYPE, int D, int M, int N>
__device__ __forceinline__ void mma_add_product(float (&c)[M][D / 8][4], const float (&p)[M][N][4], uint32_t y) {
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t address = y + (uint32_t)mma_offset(D, lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float *pair = &p[i][k + r / 2][r % 2 * 2];
                a[i][r] = Mma<DTYPE>::pack(pair[0], pair[1]);
            }
        }
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            uint32_t b[4];
            mma_load_transposed(b, mma_move(D, address, j, 8 * k));
#pragma unroll
            for (int i = 0; i < M; i++) {
                Mma<DTYPE>::multiply(c[i][j], a[i], b[0], b[1]);
                Mma<DTYPE>::multiply(c[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// Rounds a warp's 16 M rows into rows first ... of a tile that only this warp reads, and from there, 16 bytes at a
// time, to memory: those below n_rows (of the tile's), n_channels channels.
template <Dtype DTYPE, int D, int M>
__device__ __forceinline__ void mma_store_rows(uint16_t *to, size_t stride, int n_rows, int n_channels,
                                               unsigned char *tile, int first, const float (&c)[M][D / 8][4]) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    constexpr int CHUNKS = mma_pitch(D) / 8, STEP = WARP / CHUNKS;
    __syncwarp();  // nobody reads the tile's rows any more
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = first + 16 * i + 8 * h + g;
                uint32_t *to = (uint32_t *)(tile + mma_offset(D, row, j) + 4 * t);
                *to = Mma<DTYPE>::pack(c[i][j][2 * h], c[i][j][2 * h + 1]);
            }
        }
    }
    __syncwarp();
    const int chunk = lane % CHUNKS;
    for (int row = first + lane / CHUNKS; row < first + 16 * M && row < n_rows; row += STEP) {
        if (chunk * 8 >= n_channels) continue;
        *(uint4 *)(to + row * stride + chunk * 8) = *(const uint4 *)(tile + mma_offset(D, row, chunk));
    }
}

#endif
