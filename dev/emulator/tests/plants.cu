// plants.cu - programs with one bug each, which the emulator must find, and the same programs without it.
//
// A kernel takes `bug` as a template parameter, so that both versions are what nvcc makes of them. What the compiler
// might remove is kept by volatile accesses, inline instructions or values that it can't know.
//
// Invariant: a plant's twin differs from it by the bug only.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "emulator.h"
#include "plants.h"

enum { N = 4096 };

#define CHECK(call)                                                                        \
    do {                                                                                   \
        if ((call) != 0) fprintf(stderr, "%s failed\n", #call), exit(3);                   \
    } while (0)

static void expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "wrong result: %s\n", what);
    exit(2);
}

// n values 0, 1, 2 … on the device.
static float *numbers(int n) {
    float *host = (float *)malloc(n * sizeof(float)), *device;
    for (int i = 0; i < n; i++) host[i] = (float)i;
    CHECK(cudaMalloc(&device, n * sizeof(float)));
    CHECK(cudaMemcpy(device, host, n * sizeof(float), cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static float *fresh(int n) {
    float *device;
    CHECK(cudaMalloc(&device, n * sizeof(float)));
    return device;
}

static void finish() { CHECK(cudaDeviceSynchronize()); }

static float first_of(const float *device) {
    float x;
    CHECK(cudaMemcpy(&x, device, sizeof(x), cudaMemcpyDeviceToHost));
    return x;
}

// ---------------------------------------------------------------------------------------------------------------
// Bounds, life time, initialisation, alignment

__global__ void copy(float *o, const float *i, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) o[t] = i[t] + 1;
}

static void bounds_read(bool bug) {
    float *in = numbers(100), *out = fresh(200);
    copy<<<1, 128>>>(out, in, bug ? 101 : 100);
    finish();
}

static void bounds_write(bool bug) {
    float *in = numbers(200), *out = fresh(100);
    copy<<<1, 128>>>(out, in, bug ? 101 : 100);
    finish();
}

static void bounds_before(bool bug) {
    float *in = numbers(100), *out = fresh(100);
    copy<<<1, 32>>>(out, bug ? in - 1 : in, 1);
    finish();
}

template <bool bug>
__global__ void shared_bounds_kernel(float *o) {
    __shared__ float s[64];
    volatile float *p = s;
    p[threadIdx.x + (bug ? 1 : 0)] = 1;
    __syncthreads();
    o[threadIdx.x] = p[threadIdx.x];
}
static void shared_bounds(bool bug) {
    float *out = fresh(64);
    if (bug) shared_bounds_kernel<true><<<1, 64>>>(out); else shared_bounds_kernel<false><<<1, 64>>>(out);
    finish();
}

__global__ void dynamic_shared_kernel(float *o, int shift) {
    extern __shared__ float s[];
    s[threadIdx.x + shift] = (float)threadIdx.x;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x + shift];
}
static void dynamic_shared_bounds(bool bug) {
    float *out = fresh(64);
    dynamic_shared_kernel<<<1, 64, 256>>>(out, bug ? 1 : 0);
    finish();
}

__global__ void local_kernel(float *o, int n, int at) {
    float a[8];
    for (int i = 0; i < n; i++) a[i] = (float)i;
    o[threadIdx.x] = a[at];
}
static void local_bounds(bool bug) {
    float *out = fresh(32);
    local_kernel<<<1, 32>>>(out, 8, bug ? 8 : 7);
    finish();
}
static void local_fresh(bool bug) {
    float *out = fresh(32);
    local_kernel<<<1, 32>>>(out, bug ? 4 : 8, 5);
    finish();
}

static void use_after_free(bool bug) {
    float *in = numbers(100), *out = fresh(100);
    if (bug) CHECK(cudaFree(in));
    copy<<<1, 128>>>(out, in, 100);
    finish();
}

static void uninitialised(bool bug) {
    float *in = fresh(100), *out = fresh(100);
    CHECK(cudaMemset(in, 0, bug ? 396 : 400));
    copy<<<1, 128>>>(out, in, 100);
    finish();
}

static void uninitialised_copy(bool bug) {
    float *in = fresh(100), host[100];
    CHECK(cudaMemset(in, 0, bug ? 399 : 400));
    CHECK(cudaMemcpy(host, in, 400, cudaMemcpyDeviceToHost));
}

template <bool bug>
__global__ void shared_fresh_kernel(float *o) {
    __shared__ float s[64];
    volatile float *p = s;
    if (!bug || threadIdx.x < 63) p[threadIdx.x] = 1;
    __syncthreads();
    o[threadIdx.x] = p[63 - threadIdx.x];
}
static void shared_fresh(bool bug) {
    float *out = fresh(64);
    if (bug) shared_fresh_kernel<true><<<1, 64>>>(out); else shared_fresh_kernel<false><<<1, 64>>>(out);
    finish();
}

__global__ void vector_kernel(float *o, const float *i) {
    float4 v = *(const float4 *)(i + threadIdx.x * 4);
    o[threadIdx.x] = v.x + v.w;
}
static void misaligned(bool bug) {
    float *in = numbers(N), *out = fresh(32);
    vector_kernel<<<1, 32>>>(out, bug ? in + 1 : in);
    finish();
}

static void host_pointer(bool bug) {
    float *in = numbers(100), *out = fresh(100), *host = (float *)calloc(100, 4);
    copy<<<1, 128>>>(out, bug ? host : in, 100);
    finish();
}

static void host_access(bool bug) {
    float *in = numbers(100), *pinned;
    CHECK(cudaMallocHost(&pinned, 400));
    (bug ? in : pinned)[0] = 1;
    expect(first_of(in) == 0, "memory");
}

static void region_neighbour(bool bug) {
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "weights", 0);
    emulator_region(slab + 400, 400, "gradients", 0);
    CHECK(cudaMemset(slab, 0, 400));
    CHECK(cudaMemset(slab + 400, 0, 400));
    emulator_region(slab + 1024, 800, "output", 0);
    copy<<<1, 128>>>((float *)(slab + 1024), (float *)slab, bug ? 101 : 100);
    finish();
}

static void region_outside(bool bug) {
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "weights", 0);
    emulator_region(slab + 1024, 400, "output", 0);
    CHECK(cudaMemset(slab, 0, 400));
    copy<<<1, 128>>>((float *)(slab + 1024), (float *)slab, bug ? 101 : 100);
    finish();
}

static void region_ended(bool bug) {
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "scratch", 0);
    emulator_region(slab + 1024, 400, "output", 0);
    CHECK(cudaMemset(slab, 0, 400));
    if (bug) emulator_region_end(slab, 0);
    copy<<<1, 128>>>((float *)(slab + 1024), (float *)slab, 100);
    if (!bug) emulator_region_end(slab, 0);
    finish();
}

static void region_fresh(bool bug) {
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "scratch", 0);
    emulator_region(slab + 1024, 400, "output", 0);
    CHECK(cudaMemset(slab, 0, 400));
    emulator_region_end(slab, 0);
    emulator_region(slab, 400, "scratch again", 0);
    if (!bug) CHECK(cudaMemset(slab, 0, 400));
    copy<<<1, 128>>>((float *)(slab + 1024), (float *)slab, 100);
    finish();
}

static void region_overlap(bool bug) {
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "one", 0);
    emulator_region(slab + (bug ? 384 : 400), 400, "two", 0);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Races within a block

template <bool bug>
__global__ void no_barrier_kernel(float *o) {
    __shared__ float s[64];
    volatile float *p = s;
    p[threadIdx.x] = 0;
    __syncthreads();
    p[threadIdx.x] = (float)threadIdx.x;
    if (!bug) __syncthreads();
    o[threadIdx.x] = p[63 - threadIdx.x];
}
static void race_barrier(bool bug) {
    float *out = fresh(64);
    if (bug) no_barrier_kernel<true><<<1, 64>>>(out); else no_barrier_kernel<false><<<1, 64>>>(out);
    finish();
    expect(first_of(out) == 63, "shared memory");
}

// Interpreted warp by warp this gives the right result without the second barrier: only the order tells.
template <bool bug>
__global__ void write_after_read_kernel(float *o) {
    __shared__ float s[64];
    volatile float *p = s;
    p[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    float v = p[(threadIdx.x + 32) % 64];
    if (!bug) __syncthreads();
    p[threadIdx.x] = v;
    __syncthreads();
    o[threadIdx.x] = p[threadIdx.x];
}
static void race_write_after_read(bool bug) {
    float *out = fresh(64);
    if (bug) write_after_read_kernel<true><<<1, 64>>>(out); else write_after_read_kernel<false><<<1, 64>>>(out);
    finish();
    expect(first_of(out) == 32, "shared memory");
}

template <bool bug>
__global__ void syncwarp_kernel(float *o) {
    __shared__ float s[32];
    volatile float *p = s;
    p[threadIdx.x] = (float)threadIdx.x;
    if (!bug) __syncwarp();
    o[threadIdx.x] = p[31 - threadIdx.x];
}
static void race_syncwarp(bool bug) {
    float *out = fresh(32);
    if (bug) syncwarp_kernel<true><<<1, 32>>>(out); else syncwarp_kernel<false><<<1, 32>>>(out);
    finish();
}

// Halves of a warp that synchronise among themselves may share, but not with the other half.
template <bool bug>
__global__ void half_warp_kernel(float *o) {
    __shared__ float s[32];
    volatile float *p = s;
    int lane = threadIdx.x, other = bug ? 31 - lane : lane ^ 15;
    p[lane] = (float)lane;
    __syncwarp(lane < 16 ? 0xffffu : 0xffff0000u);
    o[lane] = p[other];
}
static void race_half_warps(bool bug) {
    float *out = fresh(32);
    if (bug) half_warp_kernel<true><<<1, 32>>>(out); else half_warp_kernel<false><<<1, 32>>>(out);
    finish();
}

template <bool bug>
__global__ void same_place_kernel(float *o) {
    __shared__ float s;
    volatile float *p = &s;
    if (bug || threadIdx.x == 0) *p = (float)threadIdx.x;
    __syncthreads();
    o[threadIdx.x] = *p;
}
static void race_same_place(bool bug) {
    float *out = fresh(64);
    if (bug) same_place_kernel<true><<<1, 64>>>(out); else same_place_kernel<false><<<1, 64>>>(out);
    finish();
}

// Warps 0 and 1, and 2 and 3, have a barrier each; data must not cross over.
template <bool bug>
__global__ void named_barrier_kernel(float *o) {
    __shared__ float s[128];
    volatile float *p = s;
    int t = threadIdx.x, pair = t / 64;
    p[t] = (float)t;
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
    o[t] = p[bug ? 127 - t : pair * 64 + 63 - t % 64];
}
static void race_named_barrier(bool bug) {
    float *out = fresh(128);
    if (bug) named_barrier_kernel<true><<<1, 128>>>(out); else named_barrier_kernel<false><<<1, 128>>>(out);
    finish();
}

// Neighbouring bytes are different places; the twin would be a false alarm.
template <bool bug>
__global__ void bytes_kernel(unsigned char *o) {
    int t = threadIdx.x;
    ((volatile unsigned char *)o)[bug ? t / 2 : t] = (unsigned char)t;
}
static void race_bytes(bool bug) {
    unsigned char *out = (unsigned char *)fresh(64);
    if (bug) bytes_kernel<true><<<1, 64>>>(out); else bytes_kernel<false><<<1, 64>>>(out);
    finish();
}

__global__ void global_race_kernel(float *o, int shift, bool bug) {
    volatile float *p = o;
    p[threadIdx.x] = 1;
    if (!bug) __syncthreads();
    p[threadIdx.x + 64] = p[threadIdx.x ^ 32] + (float)shift;
}
static void race_global(bool bug) {
    global_race_kernel<<<1, 64>>>(numbers(128), 0, bug);
    finish();
}

// The compiler may load what it believes to be constant through a cache that does not see the writes.
__global__ void read_only_kernel(float *o, const float *__restrict__ i) {
    o[threadIdx.x] = 1;
    __syncthreads();
    o[threadIdx.x + 64] = i[63 - threadIdx.x];
}
static void read_only(bool bug) {
    float *x = numbers(128), *y = numbers(128);
    read_only_kernel<<<1, 64>>>(x, bug ? x : y);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Races between blocks

__global__ void sum_kernel(int *o, bool bug) {
    if (threadIdx.x != 0) return;
    if (bug) {
        *(volatile int *)o = *(volatile int *)o + 1;
    } else {
        atomicAdd(o, 1);
    }
}
static void race_blocks(bool bug) {
    int *out = (int *)fresh(1);
    CHECK(cudaMemset(out, 0, 4));
    sum_kernel<<<4, 32>>>(out, bug);
    finish();
}

// The last block adds up what the others wrote: after a fence, an atomic, and a fence.
template <int bug>
__global__ void last_block_kernel(float *parts, unsigned *ticket, float *o) {
    __shared__ bool is_last;
    parts[blockIdx.x * 32 + threadIdx.x] = 1;
    if (bug != 1) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (bug != 2) __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    float sum = 0;
    for (int i = 0; i < (int)gridDim.x; i++) sum += parts[i * 32 + threadIdx.x];
    o[threadIdx.x] = sum;
    if (threadIdx.x == 0) *ticket = 0;
}
static void last_block(int bug) {
    float *parts = fresh(8 * 32), *out = fresh(32);
    unsigned *ticket = (unsigned *)fresh(1);
    CHECK(cudaMemset(ticket, 0, 4));
    if (bug == 0) last_block_kernel<0><<<8, 32>>>(parts, ticket, out);
    if (bug == 1) last_block_kernel<1><<<8, 32>>>(parts, ticket, out);
    if (bug == 2) last_block_kernel<2><<<8, 32>>>(parts, ticket, out);
    finish();
    expect(first_of(out) == 8, "last block");
}
static void last_block_release(bool bug) { last_block(bug ? 1 : 0); }
static void last_block_acquire(bool bug) { last_block(bug ? 2 : 0); }

__global__ void halo_kernel(float *a, bool bug) {
    int t = blockIdx.x * 32 + threadIdx.x;
    float neighbour = bug && threadIdx.x == 31 ? a[(t + 1) % 128] : a[t];
    a[t] = neighbour + 1;
}
static void race_halo(bool bug) {
    halo_kernel<<<4, 32>>>(numbers(128), bug);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Divergence, shuffles, loops, unknown instructions

__global__ void divergent_barrier_kernel(float *o, bool bug) {
    if (bug ? threadIdx.x < 40 : true) {
        o[threadIdx.x] = 1;
        __syncthreads();
    }
    o[threadIdx.x] = 2;
}
static void divergent_barrier(bool bug) {
    divergent_barrier_kernel<<<1, 64>>>(fresh(64), bug);
    finish();
}

__global__ void two_barriers_kernel(float *o, int split) {
    if ((int)threadIdx.x < split) {
        o[threadIdx.x] = 1;
        __syncthreads();
        o[threadIdx.x] += 3;
    } else {
        o[threadIdx.x] = 2;
        __syncthreads();
        o[threadIdx.x] -= 5;
    }
}
static void different_barriers(bool bug) {
    two_barriers_kernel<<<1, 64>>>(fresh(64), bug ? 32 : 64);
    finish();
}

__global__ void missing_warp_kernel(float *o, bool bug) {
    if (bug && threadIdx.x >= 32) return;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[threadIdx.x] = 1;
}
static void barrier_never(bool bug) {
    missing_warp_kernel<<<1, 64>>>(fresh(64), bug);
    finish();
}

__global__ void shuffle_kernel(float *o, bool bug) {
    float v = (float)threadIdx.x;
    if (!bug || threadIdx.x < 16) v += __shfl_xor_sync(~0u, v, 1);
    o[threadIdx.x] = v;
}
static void shuffle_divergent(bool bug) {
    float *out = fresh(32);
    shuffle_kernel<<<1, 32>>>(out, bug);
    finish();
}

__global__ void shuffle_exited_kernel(float *o, int n) {
    if ((int)threadIdx.x >= n) return;
    float v = 1;
    for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(~0u, v, k);
    o[threadIdx.x] = v;
}
static void shuffle_exited(bool bug) {
    float *out = fresh(32);
    shuffle_exited_kernel<<<1, 32>>>(out, bug ? 20 : 32);
    finish();
    expect(first_of(out) == 32, "sum of a warp");
}

__global__ void shuffle_mask_kernel(float *o, unsigned mask) {
    float v = __shfl_down_sync(mask, (float)threadIdx.x, 1);
    o[threadIdx.x] = v;
}
static void shuffle_mask(bool bug) {
    shuffle_mask_kernel<<<1, 32>>>(fresh(32), bug ? 0x0000ffffu : ~0u);
    finish();
}

__global__ void loop_kernel(int *o, int step) {
    for (int i = 0; i != 1000; i += step) ((volatile int *)o)[threadIdx.x] = i;
}
static void runaway(bool bug) {
    setenv("EMULATOR_BUDGET", "1M", 1);
    loop_kernel<<<1, 32>>>((int *)fresh(32), bug ? 0 : 1);
    finish();
}

template <bool bug>
__global__ void unknown_kernel(unsigned *o) {
    unsigned x = threadIdx.x;
    if (bug) {
        asm volatile("vabsdiff4.u32.u32.u32 %0, %0, %1, %1;" : "+r"(x) : "r"(5u));
    } else {
        asm volatile("sad.u32 %0, %0, %1, %1;" : "+r"(x) : "r"(5u));
    }
    o[threadIdx.x] = x;
}
static void unknown_instruction(bool bug) {
    unsigned *out = (unsigned *)fresh(32);
    if (bug) unknown_kernel<true><<<1, 32>>>(out); else unknown_kernel<false><<<1, 32>>>(out);
    finish();
}

__global__ void trap_kernel(float *o, bool bug) {
    if (bug && threadIdx.x == 7) __trap();
    o[threadIdx.x] = 1;
}
static void trapped(bool bug) {
    trap_kernel<<<1, 32>>>(fresh(32), bug);
    finish();
}

__global__ void assert_kernel(float *o, int most) {
    assert((int)threadIdx.x < most);
    o[threadIdx.x] = 1;
}
static void asserted(bool bug) {
    assert_kernel<<<1, 32>>>(fresh(32), bug ? 9 : 32);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// cp.async and ldmatrix

__device__ void copy16(float *to, const float *from) {
    unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

// bug 1: not waited for, 2: waited for, but only by the thread that copied, 3: one group too few
template <int bug>
__global__ void copy_kernel(float *o, const float *i) {
    __shared__ __align__(16) float s[128];
    int t = threadIdx.x;
    if (t < 16) copy16(s + t * 4, i + t * 4);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (t < 16) copy16(s + 64 + t * 4, i + 64 + t * 4);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (bug == 0 || bug == 2) asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (bug == 3) asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (bug != 2) __syncthreads();
    o[t] = ((volatile float *)s)[127 - t];
    if (bug != 0) asm volatile("cp.async.wait_all;" ::: "memory");
}
static void copy_plant(int bug) {
    float *in = numbers(128), *out = fresh(128);
    if (bug == 0) copy_kernel<0><<<1, 128>>>(out, in);
    if (bug == 1) copy_kernel<1><<<1, 128>>>(out, in);
    if (bug == 2) copy_kernel<2><<<1, 128>>>(out, in);
    if (bug == 3) copy_kernel<3><<<1, 128>>>(out, in);
    finish();
    expect(first_of(out) == 127, "cp.async");
}
static void copy_no_wait(bool bug) { copy_plant(bug ? 1 : 0); }
static void copy_no_barrier(bool bug) { copy_plant(bug ? 2 : 0); }
static void copy_group(bool bug) { copy_plant(bug ? 3 : 0); }

__global__ void copy_source_kernel(float *o, const float *i, int shift) {
    __shared__ __align__(16) float s[128];
    copy16(s + threadIdx.x * 4, i + shift + threadIdx.x * 4);
    asm volatile("cp.async.wait_all;" ::: "memory");
    o[threadIdx.x] = s[threadIdx.x * 4];
}
static void copy_bounds(bool bug) {
    copy_source_kernel<<<1, 32>>>(fresh(32), numbers(128), bug ? 4 : 0);
    finish();
}
static void copy_misaligned(bool bug) {
    copy_source_kernel<<<1, 32>>>(fresh(32), numbers(256), bug ? 2 : 0);
    finish();
}

__global__ void copy_exit_kernel(float *o, const float *i, bool bug) {
    __shared__ __align__(16) float s[128];
    copy16(s + threadIdx.x * 4, i + threadIdx.x * 4);
    if (!bug) asm volatile("cp.async.wait_all;" ::: "memory");
    o[threadIdx.x] = 1;
}
static void copy_exit(bool bug) {
    copy_exit_kernel<<<1, 32>>>(fresh(32), numbers(128), bug);
    finish();
}

template <int stride>
__global__ void ldmatrix_kernel(unsigned *o) {
    __shared__ __align__(16) unsigned short s[16 * 24];
    for (int i = threadIdx.x; i < 16 * 24; i += 32) s[i] = (unsigned short)i;
    __syncthreads();
    unsigned r[4], at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x % 16 * stride);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
    o[threadIdx.x] = r[0];
}
static void ldmatrix_misaligned(bool bug) {
    unsigned *out = (unsigned *)fresh(32);
    if (bug) ldmatrix_kernel<20><<<1, 32>>>(out); else ldmatrix_kernel<24><<<1, 32>>>(out);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Launches and arguments

static void launch_threads(bool bug) {
    copy<<<1, bug ? 1056 : 1024>>>(fresh(100), numbers(100), 100);
    finish();
}
static void launch_grid(bool bug) {
    copy<<<dim3(1, bug ? 65536 : 1), 32>>>(fresh(100), numbers(100), 1);
    finish();
}
static void launch_empty(bool bug) {
    copy<<<bug ? 0 : 1, 32>>>(fresh(100), numbers(100), 1);
    finish();
}
static void launch_shared(bool bug) {
    if (!bug) CHECK(cudaFuncSetAttribute(dynamic_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    dynamic_shared_kernel<<<1, 64, 60000>>>(fresh(64), 0);
    finish();
}
static void shared_most(bool bug) {
    CHECK(cudaFuncSetAttribute(dynamic_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               bug ? 200000 : 163840));
}
__global__ void __launch_bounds__(64) bounded_kernel(float *o) { o[threadIdx.x] = 1; }
static void launch_bounds(bool bug) {
    bounded_kernel<<<1, bug ? 128 : 64>>>(fresh(128));
    finish();
}
static void copy_kind(bool bug) {
    float *a = numbers(4), *b = fresh(4);
    CHECK(cudaMemcpy(b, a, 16, bug ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice));
}
static void copy_beyond(bool bug) {
    float host[8];
    CHECK(cudaMemcpy(host, numbers(4), bug ? 20 : 16, cudaMemcpyDeviceToHost));
}
static void memset_beyond(bool bug) { CHECK(cudaMemset(fresh(4), 0, bug ? 17 : 16)); }
static void double_free(bool bug) {
    float *a = numbers(4);
    CHECK(cudaFree(a));
    if (bug) CHECK(cudaFree(a));
}
static void free_inside(bool bug) {
    float *a = numbers(4);
    CHECK(cudaFree(bug ? a + 1 : a));
}
static void destroyed_stream(bool bug) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    if (bug) CHECK(cudaStreamDestroy(stream));
    copy<<<1, 32, 0, stream>>>(fresh(4), numbers(4), 4);
    finish();
}
static void destroyed_event(bool bug) {
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    if (bug) CHECK(cudaEventDestroy(event));
    CHECK(cudaEventRecord(event, 0));
    finish();
}
static void call_in_host_function(bool bug) {
    CHECK(cudaLaunchHostFunc(0, [](void *is_bug) { if (is_bug) cudaDeviceSynchronize(); }, bug ? &bug : NULL));
    finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Streams. What is wrong is found by the order of operations, not by luck with their execution.

__global__ void fill(float *p, float value, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) p[t] = value;
}

typedef struct Streams {
    cudaStream_t a, b;
    cudaEvent_t event;
} Streams;

static Streams streams() {
    Streams s;
    CHECK(cudaStreamCreateWithFlags(&s.a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&s.b, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming));
    return s;
}

static void order(Streams s, cudaStream_t first, cudaStream_t second) {
    CHECK(cudaEventRecord(s.event, first));
    CHECK(cudaStreamWaitEvent(second, s.event, 0));
}

static void stream_read(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *y = fresh(1000);
    fill<<<4, 256, 0, s.a>>>(x, 3, 1000);
    if (!bug) order(s, s.a, s.b);
    copy<<<4, 256, 0, s.b>>>(y, x, 1000);
    finish();
    expect(first_of(y) == 4, "the other stream's result");
}

static void stream_write(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *y = fresh(1000);
    copy<<<4, 256, 0, s.a>>>(y, x, 1000);
    if (!bug) order(s, s.a, s.b);
    fill<<<4, 256, 0, s.b>>>(x, 3, 1000);
    finish();
}

static void stream_copy(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *pinned;
    CHECK(cudaMallocHost(&pinned, 4000));
    fill<<<4, 256, 0, s.a>>>(x, 3, 1000);
    if (!bug) order(s, s.a, s.b);
    CHECK(cudaMemcpyAsync(pinned, x, 4000, cudaMemcpyDeviceToHost, s.b));
    CHECK(cudaStreamSynchronize(s.b));
    finish();
    expect(pinned[0] == 3, "the other stream's result");
}

static void event_too_early(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *y = fresh(1000);
    if (bug) CHECK(cudaEventRecord(s.event, s.a));
    fill<<<4, 256, 0, s.a>>>(x, 3, 1000);
    if (!bug) CHECK(cudaEventRecord(s.event, s.a));
    CHECK(cudaStreamWaitEvent(s.b, s.event, 0));
    copy<<<4, 256, 0, s.b>>>(y, x, 1000);
    finish();
}

static void legacy_stream(bool bug) {
    Streams s = streams();
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    float *x = numbers(1000);
    CHECK(cudaMemsetAsync(x, 0, 4000, 0));
    fill<<<4, 256, 0, bug ? s.a : blocking>>>(x, 3, 1000);
    finish();
}

static void region_stream(bool bug) {
    Streams s = streams();
    char *slab;
    CHECK(cudaMalloc(&slab, 4096));
    emulator_region(slab, 400, "slot", s.a);
    if (!bug) order(s, s.a, s.b);
    fill<<<1, 128, 0, s.b>>>((float *)slab, 3, 100);
    finish();
}

// These are found by laziness: the host reads, or writes again, what is not done yet.
static void host_reads_early(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *pinned;
    CHECK(cudaMallocHost(&pinned, 4000));
    fill<<<4, 256, 0, s.a>>>(x, 3, 1000);
    CHECK(cudaMemcpyAsync(pinned, x, 4000, cudaMemcpyDeviceToHost, s.a));
    if (!bug) CHECK(cudaStreamSynchronize(s.a));
    expect(pinned[999] == 3, "pinned memory");
    finish();
}

static void host_writes_early(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *pinned;
    CHECK(cudaMallocHost(&pinned, 4000));
    for (int i = 0; i < 1000; i++) pinned[i] = 5;
    CHECK(cudaMemcpyAsync(x, pinned, 4000, cudaMemcpyHostToDevice, s.a));
    if (!bug) CHECK(cudaStreamSynchronize(s.a));
    for (int i = 0; i < 1000; i++) pinned[i] = 6;
    finish();
    expect(first_of(x) == 5, "what was copied");
}

// Copies are known when they are appended, what the host does when it says so.
static float *pinned_numbers(int n) {
    float *pinned;
    CHECK(cudaMallocHost(&pinned, n * sizeof(float)));
    for (int i = 0; i < n; i++) pinned[i] = (float)i;
    return pinned;
}

static void pinned_copies(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *y = fresh(1000), *pinned = pinned_numbers(1000);
    CHECK(cudaMemcpyAsync(pinned, x, 4000, cudaMemcpyDeviceToHost, s.a));
    if (!bug) order(s, s.a, s.b);
    CHECK(cudaMemcpyAsync(y, pinned + 999, 4, cudaMemcpyHostToDevice, s.b));
    CHECK(cudaMemcpyAsync(y + 1, pinned + 999, 4, cudaMemcpyHostToDevice, s.a));
    finish();
}

static void pinned_host_function(bool bug) {
    Streams s = streams();
    float *x = fresh(1000);
    static float *pinned = pinned_numbers(1000);
    CHECK(cudaMemcpyAsync(x, pinned, 4000, cudaMemcpyHostToDevice, s.a));
    if (!bug) order(s, s.a, s.b);
    CHECK(cudaLaunchHostFunc(s.b, [](void *p) { emulator_host_writes(p, 4), *(float *)p = 1; }, pinned));
    finish();
}

static void pinned_host(bool bug) {
    Streams s = streams();
    float *x = numbers(1000), *pinned = pinned_numbers(1000);
    CHECK(cudaHostRegister(&x, sizeof(x), 0));
    CHECK(cudaMemcpyAsync(x, pinned, 4000, cudaMemcpyHostToDevice, s.a));
    emulator_host_reads(pinned, 4000);
    CHECK(cudaEventRecord(s.event, s.a));
    if (!bug) CHECK(cudaEventSynchronize(s.event));
    emulator_host_writes(pinned + 999, 4);
    CHECK(cudaHostUnregister(&x));
}

static void do_nothing(void *argument) { (void)argument; }

static void pinned_call(bool bug) {
    Streams s = streams();
    float *x = fresh(1000), *pinned = pinned_numbers(1000);
    CHECK(cudaMemcpyAsync(x, pinned, 4000, cudaMemcpyHostToDevice, s.a));
    if (!bug) order(s, s.a, s.b);
    emulator_call_reads(s.b, pinned, 4000);
    emulator_call_writes(s.b, pinned + 999, 4);
    CHECK(cudaLaunchHostFunc(s.b, do_nothing, NULL));
    finish();
}

static void pinned_host_after_call(bool bug) {
    Streams s = streams();
    float *pinned = pinned_numbers(1000);
    emulator_call_writes(s.a, pinned, 4000);
    CHECK(cudaLaunchHostFunc(s.a, do_nothing, NULL));
    CHECK(cudaEventRecord(s.event, s.a));
    if (!bug) CHECK(cudaEventSynchronize(s.event));
    emulator_host_reads(pinned + 999, 4);
    finish();
}

static void pinned_partly(bool bug) {
    float *x = numbers(1000), *host = (float *)malloc(4000);
    CHECK(cudaHostRegister(host, 2000, 0));
    CHECK(cudaMemcpyAsync(host, x, bug ? 2004 : 2000, cudaMemcpyDeviceToHost, 0));
    finish();
}

static void pageable(bool bug) {
    static float host[1000];
    setenv("EMULATOR_PAGEABLE", "0", 1);
    float *x = numbers(1000);
    if (!bug) CHECK(cudaHostRegister(host, 4000, 0));
    CHECK(cudaMemcpyAsync(host, x, 4000, cudaMemcpyDeviceToHost, 0));
    finish();
    expect(emulator_counts().pageable_copies == 0, "pageable copies");
}

static void wrong_device(bool bug) {
    int n, device;
    emulator_devices(3);
    CHECK(cudaGetDeviceCount(&n));
    if (bug) numbers(100);
    CHECK(cudaSetDevice(2));
    CHECK(cudaGetDevice(&device));
    expect(n == 3 && device == 2 && cudaSetDevice(3) == cudaErrorInvalidDevice, "devices");
    numbers(100);
}

// ---------------------------------------------------------------------------------------------------------------
// cuBLASLt: D = gelu(W^T X + bias) in bf16; each case spoils one thing

typedef struct Product {
    int m, n, k;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    __nv_bfloat16 *w, *x, *bias, *y;
    void *workspace;
    size_t n_workspace;
} Product;

static __nv_bfloat16 *shorts(size_t n) {
    __nv_bfloat16 *host = (__nv_bfloat16 *)malloc(n * 2), *device;
    for (size_t i = 0; i < n; i++) host[i] = __float2bfloat16((float)(i * 37 % 64) / 64 - 0.5f);
    CHECK(cudaMalloc(&device, n * 2));
    CHECK(cudaMemcpy(device, host, n * 2, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

template <class T>
static void set_desc(Product *p, cublasLtMatmulDescAttributes_t attribute, T value) {
    CHECK(cublasLtMatmulDescSetAttribute(p->desc, attribute, &value, sizeof(value)));
}

static Product product_begin() {
    Product p = {};
    p.m = 96;
    p.n = 40;
    p.k = 64;
    p.w = shorts(96 * 64);
    p.x = shorts(40 * 64 + 64);
    p.bias = shorts(96);
    CHECK(cudaMalloc(&p.y, 96 * 40 * 2));
    p.n_workspace = 1 << 16;
    CHECK(cudaMalloc(&p.workspace, p.n_workspace));
    CHECK(cublasLtCreate(&p.handle));
    CHECK(cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_desc(&p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set_desc(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set_desc(&p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)p.bias);
    CHECK(cublasLtMatrixLayoutCreate(&p.a, CUDA_R_16BF, 64, 96, 64));
    CHECK(cublasLtMatrixLayoutCreate(&p.b, CUDA_R_16BF, 64, 40, 64));
    CHECK(cublasLtMatrixLayoutCreate(&p.d, CUDA_R_16BF, 96, 40, 96));
    CHECK(cublasLtMatmulPreferenceCreate(&p.preference));
    uint64_t most = p.n_workspace;
    CHECK(cublasLtMatmulPreferenceSetAttribute(p.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8));
    return p;
}

static void product_find(Product *p) {
    int n;
    CHECK(cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->a, p->b, p->d, p->d, p->preference, 1, &p->found, &n));
    expect(n == 1, "heuristic");
}

static void product_run(Product *p, const __nv_bfloat16 *x, float beta, cudaStream_t stream) {
    float alpha = 1;
    CHECK(cublasLtMatmul(p->handle, p->desc, &alpha, p->w, p->a, x, p->b, &beta, p->y, p->d, p->y, p->d, &p->found.algo,
                         p->workspace, p->n_workspace, stream));
}

static void product_check(Product *p) {
    static __nv_bfloat16 w[96 * 64], x[40 * 64], b[96], y[96 * 40];
    CHECK(cudaMemcpy(w, p->w, sizeof(w), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(x, p->x, sizeof(x), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b, p->bias, sizeof(b), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(y, p->y, sizeof(y), cudaMemcpyDeviceToHost));
    for (int j = 0; j < 40; j++) {
        for (int i = 0; i < 96; i++) {
            double sum = __bfloat162float(b[i]);
            for (int k = 0; k < 64; k++)
                sum += (double)__bfloat162float(w[i * 64 + k]) * __bfloat162float(x[j * 64 + k]);
            double difference = sum - __bfloat162float(y[j * 96 + i]);
            expect(difference < 0.01 && difference > -0.01, "product");
        }
    }
}

static void product_ok(Product *p) {
    product_find(p);
    product_run(p, p->x, 0, 0);
    product_check(p);
}

static void product_shape(bool bug) {
    Product p = product_begin();
    if (bug) set_desc(&p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
    product_ok(&p);
}
static void product_ld(bool bug) {
    Product p = product_begin();
    CHECK(cublasLtMatrixLayoutCreate(&p.a, CUDA_R_16BF, 64, 96, bug ? 63 : 64));
    product_ok(&p);
}
static void product_extent(bool bug) {
    Product p = product_begin();
    CHECK(cublasLtMatrixLayoutCreate(&p.d, CUDA_R_16BF, 96, 40, bug ? 104 : 96));
    product_ok(&p);
}
static void product_types(bool bug) {
    Product p = product_begin();
    CHECK(cublasLtMatrixLayoutCreate(&p.b, bug ? CUDA_R_32F : CUDA_R_16BF, 64, 40, 64));
    product_ok(&p);
}
static void product_compute(bool bug) {
    Product p = product_begin();
    set_desc(&p, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, bug ? CUBLAS_COMPUTE_16F : CUBLAS_COMPUTE_32F);
    product_ok(&p);
}
static void product_bias(bool bug) {
    Product p = product_begin();
    if (bug) set_desc(&p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)NULL);
    product_ok(&p);
}
static void product_bias_type(bool bug) {
    Product p = product_begin();
    set_desc(&p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bug ? CUDA_R_32F : CUDA_R_16BF);
    product_ok(&p);
}
static void product_attribute(bool bug) {
    Product p = product_begin();
    if (bug) set_desc(&p, CUBLASLT_MATMUL_DESC_TRANSB, (int64_t)CUBLAS_OP_N);
    product_ok(&p);
}
static void product_alignment(bool bug) {
    Product p = product_begin();
    product_find(&p);
    product_run(&p, bug ? p.x + 8 : p.x, 0, 0);
    finish();
}
static void product_workspace(bool bug) {
    Product p = product_begin();
    set_desc(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    product_find(&p);  // offers a split over K
    if (bug) p.n_workspace = 1024;
    product_run(&p, p.x, 0, 0);
    finish();
}
static void product_beta(bool bug) {
    Product p = product_begin();
    if (!bug) CHECK(cudaMemset(p.y, 0, 96 * 40 * 2));
    product_find(&p);
    product_run(&p, p.x, 1, 0);
    product_check(&p);
}
static void product_overlap(bool bug) {
    Product p = product_begin();
    product_find(&p);
    if (bug) p.y = p.w;
    product_run(&p, p.x, 0, 0);
    finish();
}
static void product_algorithm(bool bug) {
    Product p = product_begin();
    product_find(&p);
    if (bug) {
        set_desc(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    }
    product_run(&p, p.x, 0, 0);
    finish();
}
static void product_stream(bool bug) {
    Product p = product_begin();
    Streams s = streams();
    product_find(&p);
    product_run(&p, p.x, 0, s.a);
    if (!bug) order(s, s.a, s.b);
    CHECK(cudaMemsetAsync(p.y, 0, 96 * 40 * 2, s.b));
    finish();
}
static void product_destroyed(bool bug) {
    Product p = product_begin();
    product_find(&p);
    if (bug) CHECK(cublasLtMatrixLayoutDestroy(p.b));
    product_run(&p, p.x, 0, 0);
    finish();
}

// ---------------------------------------------------------------------------------------------------------------

#define PLANT(name, words) {#name, name, words}

const Plant PLANTS[] = {
    PLANT(bounds_read,
          "out-of-bounds read|0 bytes past the end of 'allocation 1' (400 bytes)|copy(float*|plants.cu:|thread "
          "(100,0,0)"),
    PLANT(bounds_write, "out-of-bounds write|0 bytes past the end of 'allocation 2'|thread (100,0,0)"),
    PLANT(bounds_before, "out-of-bounds read|4 bytes before 'allocation 1'"),
    PLANT(shared_bounds,
          "out-of-bounds write|byte 256 of the block's static shared memory (256 bytes)|thread (63,0,0)"),
    PLANT(dynamic_shared_bounds, "out-of-bounds write|byte 256 of the block's dynamic shared memory (256 bytes)"),
    PLANT(local_bounds, "out-of-bounds read|local memory (32 bytes)"),
    PLANT(local_fresh, "uninitialised read|local memory"),
    PLANT(use_after_free, "use after free|'allocation 1' (400 bytes, freed)"),
    PLANT(uninitialised, "uninitialised read|byte 396 of 'allocation 1'|thread (99,0,0)"),
    PLANT(uninitialised_copy, "uninitialised read|cudaMemcpy's source|byte 399"),
    PLANT(shared_fresh, "uninitialised read|byte 252 of the block's static shared memory|thread (0,0,0)"),
    PLANT(misaligned, "misaligned access|16 bytes|vector_kernel"),
    PLANT(host_pointer, "access to host memory|a host or wild pointer"),
    PLANT(host_access, "host access to device memory|byte 0 of 'allocation 1'"),
    PLANT(region_neighbour, "a region that no argument of the kernel points into|region 'gradients'|thread (100,0,0)"),
    PLANT(region_outside, "outside of every region|past the end of region 'weights' (400 bytes)"),
    PLANT(region_ended, "outside of every region|the former region 'scratch'"),
    PLANT(region_fresh, "uninitialised read|region 'scratch again'"),
    PLANT(region_overlap, "overlapping regions|'two'|region 'one'"),
    PLANT(race_barrier, "race between threads|shared memory|by thread|no_barrier_kernel"),
    PLANT(race_write_after_read, "race between threads|of byte 0 of the block's static shared memory|by thread"),
    PLANT(race_syncwarp, "race between threads|written by thread"),
    PLANT(race_half_warps, "race between threads|written by thread"),
    PLANT(race_same_place, "race between threads|write of byte 0|written by thread 0"),
    PLANT(race_named_barrier, "race between threads|read of byte|written by thread"),
    PLANT(race_bytes, "race between threads|write of byte 0 of 'allocation 1'"),
    PLANT(race_global, "race between threads|of 'allocation 1'|by thread"),
    PLANT(read_only,
          "read-only load|const __restrict__|of what the same launch has written|byte 252 of 'allocation 1'"),
    PLANT(race_blocks, "race between blocks|of another block of this launch|sum_kernel"),
    PLANT(last_block_release, "race between blocks|read of byte"),
    PLANT(last_block_acquire, "race between blocks|read of byte"),
    PLANT(race_halo, "race between blocks"),
    PLANT(divergent_barrier, "divergent barrier|plants.cu:"),
    PLANT(different_barriers, "divergent barrier|waits at another barrier"),
    PLANT(barrier_never, "barrier that never completes"),
    PLANT(shuffle_divergent, "divergent warp function|plants.cu:"),
    PLANT(shuffle_exited, "shuffle reads lane|has exited"),
    PLANT(shuffle_mask, "with mask 0x0000ffff, which does not name it"),
    PLANT(runaway, "runaway loop|loop_kernel|EMULATOR_BUDGET"),
    PLANT(unknown_instruction, "unknown instruction|vabsdiff4|unknown_kernel|plants.cu:"),
    PLANT(trapped, "trap|thread (7,0,0)"),
    PLANT(asserted, "device assertion failed|threadIdx.x < most|thread (9,0,0)"),
    PLANT(copy_no_wait, "read before cp.async.wait"),
    PLANT(copy_no_barrier, "shared memory|copy_kernel"),
    PLANT(copy_group, "read before cp.async.wait"),
    PLANT(copy_bounds, "out-of-bounds read|16 bytes"),
    PLANT(copy_misaligned, "misaligned access|cp.async of 16 bytes"),
    PLANT(copy_exit, "exit before cp.async.wait"),
    PLANT(ldmatrix_misaligned, "misaligned access|16 bytes|ldmatrix_kernel"),
    PLANT(launch_threads, "launch of copy|1056"),
    PLANT(launch_grid, "launch of copy|65536"),
    PLANT(launch_empty, "launch of copy|grid of (0,1,1)"),
    PLANT(launch_shared, "launch of dynamic_shared_kernel|60000 bytes of dynamic|cudaFuncSetAttribute"),
    PLANT(shared_most, "cudaFuncSetAttribute|200000 bytes"),
    PLANT(launch_bounds, "launch of bounded_kernel|__launch_bounds__ says 64"),
    PLANT(copy_kind, "invalid argument|cudaMemcpyHostToDevice|the source is device memory"),
    PLANT(copy_beyond, "invalid argument|cudaMemcpy's source|20 bytes"),
    PLANT(memset_beyond, "invalid argument|cudaMemset|17 bytes"),
    PLANT(double_free, "double free|'allocation 1'"),
    PLANT(free_inside, "free of a pointer that was not allocated"),
    PLANT(destroyed_stream, "invalid argument|stream"),
    PLANT(destroyed_event, "invalid argument|event"),
    PLANT(call_in_host_function, "host function"),
    PLANT(stream_read, "race between streams|read of byte|kernel fill|copy("),
    PLANT(stream_write, "race between streams|write of byte|read by kernel copy"),
    PLANT(stream_copy, "race between streams|read by cudaMemcpy of 4000 bytes|kernel fill"),
    PLANT(event_too_early, "race between streams|kernel fill"),
    PLANT(legacy_stream, "race between streams|cudaMemset"),
    PLANT(region_stream, "race between streams|emulator_region"),
    PLANT(host_reads_early, "wrong result: pinned memory"),
    PLANT(host_writes_early, "wrong result: what was copied"),
    PLANT(pinned_copies, "race between streams|pinned host memory|cudaMemcpy of 4 bytes|cudaMemcpy of 4000 bytes"),
    PLANT(pinned_host_function, "race between streams|pinned host memory|a host function|read by cudaMemcpy"),
    PLANT(pinned_host, "race with the host|write of pinned host memory|read by cudaMemcpy of 4000 bytes"),
    PLANT(pinned_call, "race between streams|write of pinned host memory|a host function|read by cudaMemcpy"),
    PLANT(pinned_host_after_call, "race with the host|read of pinned host memory|write by a host function"),
    PLANT(pinned_partly, "invalid argument|2004 bytes|partly pinned"),
    PLANT(pageable, "pageable memory|cudaMemcpyAsync of 4000 bytes"),
    PLANT(wrong_device, "wrong device|device is 2|device 0"),
    PLANT(product_shape, "invalid argument|shapes: op(A) 64 x 96"),
    PLANT(product_ld, "invalid argument|A has leading dimension 63 for 64 rows"),
    PLANT(product_extent, "invalid argument|cublasLtMatmul's D|reach beyond"),
    PLANT(product_types, "invalid argument|types A"),
    PLANT(product_compute, "compute type"),
    PLANT(product_bias, "needs a bias pointer"),
    PLANT(product_bias_type, "bias of type"),
    PLANT(product_attribute, "was given 8 bytes, it has 4"),
    PLANT(product_alignment, "misaligned access|B =|256 bytes, as the heuristic was told"),
    PLANT(product_workspace, "a workspace of 1024 bytes"),
    PLANT(product_beta, "uninitialised read|cublasLtMatmul's C"),
    PLANT(product_overlap, "D overlaps A"),
    PLANT(product_algorithm, "found for another problem"),
    PLANT(product_stream, "race between streams|cudaMemset|cublasLtMatmul"),
    PLANT(product_destroyed, "no matrix layout, or is destroyed"),
};
const int N_PLANTS = sizeof(PLANTS) / sizeof(PLANTS[0]);
