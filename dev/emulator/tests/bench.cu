// bench.cu - how fast the emulator is: warp instructions per second for kernels of the kinds that a trainer has.
//
//     make build/bench_emulator && build/bench_emulator [NAME]; EMULATOR_CHECKS=0 build/bench_emulator
//
// Invariant: each kernel runs once more before, which does not count, so that memory is mapped and PTX decoded.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "emulator.h"

__device__ float warp_sum(float x) {
    for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(~0u, x, k);
    return x;
}

// A row per warp.
__global__ void layernorm(float *o, const float *x, const float *w, const float *b, int n, int c) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    x += (size_t)row * c, o += (size_t)row * c;
    float sum = 0, squares = 0;
    for (int i = lane; i < c; i += 32) sum += x[i];
    float mean = warp_sum(sum) / c;
    for (int i = lane; i < c; i += 32) squares += (x[i] - mean) * (x[i] - mean);
    float scale = rsqrtf(warp_sum(squares) / c + 1e-5f);
    for (int i = lane; i < c; i += 32) o[i] = (x[i] - mean) * scale * w[i] + b[i];
}

__global__ void gelu(__nv_bfloat16 *o, const __nv_bfloat16 *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = __bfloat162float(x[i]);
    o[i] = __float2bfloat16(0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v))));
}

__global__ void adamw(float *w, float *m, float *v, const float *g, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = 0.9f * m[i] + 0.1f * g[i], b = 0.95f * v[i] + 0.05f * g[i] * g[i];
    m[i] = a, v[i] = b;
    w[i] -= 1e-3f * (a / (sqrtf(b) + 1e-8f) + 0.1f * w[i]);
}

// C = A B by tiles of 16 x 16 in shared memory.
__global__ void tiles(float *c, const float *a, const float *b, int n) {
    __shared__ float s[16][16], t[16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        s[y][x] = a[row * n + k + x], t[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int q = 0; q < 16; q++) sum += s[y][q] * t[q][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Rows of 64 bf16 against 64 others by mma and ldmatrix, a warp per 16 rows: the shape of an attention kernel.
__global__ void scores(float *o, const __nv_bfloat16 *q, const __nv_bfloat16 *k) {
    __shared__ __align__(16) __nv_bfloat16 s[64 * 72], u[64 * 72];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    for (int round = 0; round < 8; round++) {
        for (int i = t; i < 512; i += 128) {
            *(uint4 *)(s + i / 8 * 72 + i % 8 * 8) =
                *(const uint4 *)(q + (size_t)(blockIdx.x * 8 + round) * 4096 + i * 8);
            *(uint4 *)(u + i / 8 * 72 + i % 8 * 8) =
                *(const uint4 *)(k + (size_t)(blockIdx.x * 8 + round) * 4096 + i * 8);
        }
        __syncthreads();
        float d[8][4] = {};
        for (int h = 0; h < 4; h++) {
            unsigned a[4], b[2],
                at = (unsigned)__cvta_generic_to_shared(s + (warp * 16 + lane % 16) * 72 + h * 16 + lane / 16 * 8);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                         : "r"(at)
                         : "memory");
            for (int j = 0; j < 8; j++) {
                at = (unsigned)__cvta_generic_to_shared(u + (j * 8 + lane % 8) * 72 + h * 16 + lane / 8 % 2 * 8);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                             : "=r"(b[0]), "=r"(b[1])
                             : "r"(at)
                             : "memory");
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
                    : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
            }
        }
        for (int j = 0; j < 8; j++) {
            for (int r = 0; r < 4; r++) d[j][r] = exp2f(d[j][r] * 0.01f);
            for (int r = 0; r < 4; r += 2) {
                int row = warp * 16 + lane / 4 + 8 * (r / 2), column = j * 8 + lane % 4 * 2;
                *(float2 *)(o + ((size_t)(blockIdx.x * 8 + round) * 64 + row) * 64 + column) =
                    make_float2(d[j][r], d[j][r + 1]);
            }
        }
        __syncthreads();
    }
}

static void report(const char *name, void (*run)(), const char *wanted) {
    if (wanted && strcmp(name, wanted) != 0) return;
    run();
    cudaDeviceSynchronize();
    emulator_reset_counts();
    for (int i = 0; i < 8; i++) run();
    cudaDeviceSynchronize();
    EmulatorCounts c = emulator_counts();
    printf("%-10s %9.0f thousand warp instructions  %6.1f million/s\n", name, 1e-3 * (double)c.warp_instructions,
           1e-6 * (double)c.warp_instructions / c.kernel_seconds);
}

static float *f[6];
static __nv_bfloat16 *h[2];
enum { N = 1 << 20 };

int main(int n_arguments, char **arguments) {
    const char *wanted = n_arguments > 1 ? arguments[1] : NULL;
    for (auto &p : f) {
        if (cudaMalloc(&p, N * 4) != cudaSuccess) return 1;
        cudaMemset(p, 0, N * 4);
    }
    for (auto &p : h) {
        if (cudaMalloc(&p, N * 2) != cudaSuccess) return 1;
        cudaMemset(p, 0, N * 2);
    }
    report(
        "layernorm", [] { layernorm<<<256, 128>>>(f[0], f[1], f[2], f[3], 1024, 768); }, wanted);
    report(
        "gelu", [] { gelu<<<N / 256, 256>>>(h[0], h[1], N); }, wanted);
    report(
        "adamw", [] { adamw<<<N / 256, 256>>>(f[0], f[1], f[2], f[3], N); }, wanted);
    report(
        "tiles", [] { tiles<<<dim3(8, 8), dim3(16, 16)>>>(f[0], f[1], f[2], 128); }, wanted);
    report(
        "scores", [] { scores<<<16, 128>>>(f[4], h[0], h[1]); }, wanted);
    return 0;
}
