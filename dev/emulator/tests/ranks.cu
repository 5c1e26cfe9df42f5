// ranks.cu - NCCL's stand-in: results for 1 to 4 ranks, and programs with one bug each, with their twins, as plants.cu.
//
// The ranks are forked; each is a process with an emulator of its own. What one rank says is on everybody's stderr.
//
// Invariant: a plant's twin differs from it by the bug only.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <pthread.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include "emulator.h"
#include "plants.h"
#include "ranks.h"

#define CHECK(call)                                                                        \
    do {                                                                                   \
        if ((call) != 0) fprintf(stderr, "%s failed\n", #call), _exit(3);                  \
    } while (0)

static void expect(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "wrong result: %s\n", what);
    _exit(2);
}

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct Rank {
    int rank, n;
    RankPage *page;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t a, b;
    cudaEvent_t event;
} Rank;

static Rank rank_begin(int rank, int n, RankPage *page) {
    Rank r = {};
    r.rank = rank;
    r.n = n;
    r.page = page;
    if (rank == 0) CHECK(ncclGetUniqueId(&r.id));
    ranks_share(page, rank, &r.id, sizeof(r.id));
    return r;
}

static void rank_join(Rank *r) {
    CHECK(ncclCommInitRank(&r->comm, r->n, r->id, r->rank));
    CHECK(cudaStreamCreateWithFlags(&r->a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&r->b, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&r->event, cudaEventDisableTiming));
}

static void rank_end(const Rank &r) {
    CHECK(cudaDeviceSynchronize());
    CHECK(ncclCommDestroy(r.comm));
}

static void order(const Rank &r, cudaStream_t first, cudaStream_t second) {
    CHECK(cudaEventRecord(r.event, first));
    CHECK(cudaStreamWaitEvent(second, r.event, 0));
}

// Runs body(r, bug) in n processes; the process ends where one of them did not end well.
typedef void Body(Rank &r, bool bug);
typedef struct Start {
    Body *body;
    bool bug, joins;
} Start;

static void start(int rank, int n, RankPage *page, void *argument) {
    const Start *s = (const Start *)argument;
    Rank r = rank_begin(rank, n, page);
    if (s->joins) rank_join(&r);
    s->body(r, s->bug);
    if (s->joins) rank_end(r);
}

static void ranks(int n, bool bug, Body *body, bool joins = true) {
    Start s = {body, bug, joins};
    int status = ranks_run(n, start, &s);
    if (status != 0) exit(status);
}

// n values first, first + 1, … on the device.
static float *numbers(int n, float first = 0) {
    float *host = (float *)malloc(n * sizeof(float)), *device;
    for (int i = 0; i < n; i++) host[i] = first + (float)i;
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

static float value_at(const float *device, int i) {
    float x;
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&x, device + i, sizeof(x), cudaMemcpyDeviceToHost));
    return x;
}

__global__ void rank_fill(float *p, float value, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) p[t] = value;
}

__global__ void rank_add(float *p, const float *q, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) p[t] += q[t];
}

// ---------------------------------------------------------------------------------------------------------------
// Results: every operation and type

template <class T> static double to_double(T x) { return (double)x; }
template <> double to_double(__half x) { return __half2float(x); }
template <> double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T> static T from_double(double x) { return (T)x; }
template <> __half from_double(double x) { return __float2half((float)x); }
template <> __nv_bfloat16 from_double(double x) { return __float2bfloat16((float)x); }

template <class T> static bool has_sign() { return true; }
template <> bool has_sign<unsigned char>() { return false; }
template <> bool has_sign<unsigned>() { return false; }
template <> bool has_sign<unsigned long long>() { return false; }

// Small enough that every sum and product is exact in every type, and an average nearly so.
template <class T>
static double input(int rank, int i) {
    return (double)((i * 7 + rank * 3) % 4 - (has_sign<T>() ? i % 2 : 0));
}

template <class T>
static double reduced(ncclRedOp_t op, int n, int i) {
    double sum = input<T>(0, i);
    for (int r = 1; r < n; r++) {
        double x = input<T>(r, i);
        sum = op == ncclProd  ? sum * x
              : op == ncclMax ? (x > sum ? x : sum)
              : op == ncclMin ? (x < sum ? x : sum)
                              : sum + x;
    }
    return op == ncclAvg ? sum / n : sum;
}

template <class T>
struct Vector {
    T *device, *host;
    int n;
    Vector(int n) : n(n) {
        host = (T *)calloc(n, sizeof(T));
        CHECK(cudaMalloc(&device, n * sizeof(T)));
    }
    void set(const Rank &r, int at, int from, int count) {
        for (int i = 0; i < count; i++) host[at + i] = from_double<T>(input<T>(r.rank, from + i));
        CHECK(cudaMemcpyAsync(device + at, host + at, count * sizeof(T), cudaMemcpyHostToDevice, r.a));
    }
    void get(const Rank &r) {
        CHECK(cudaMemcpyAsync(host, device, n * sizeof(T), cudaMemcpyDeviceToHost, r.a));
        CHECK(cudaStreamSynchronize(r.a));
    }
    // Integers divide towards zero; an average of short floats errs by some roundings.
    void check(int i, double expected, const char *what) const {
        double got = to_double(host[i]);
        bool is_integer = to_double(from_double<T>(0.5)) == 0, is_whole = expected == (double)(long)expected;
        if (is_integer) expected = (double)(long)expected;
        double error = got - expected, most = is_whole && sizeof(T) > 2 ? 1e-5 : 0.02;
        if (error <= most && error >= -most) return;
        fprintf(stderr, "%s: element %d is %g, not %g\n", what, i, got, expected);
        expect(false, what);
    }
    void check_same(int at, int rank, int from, int count, const char *what) const {
        for (int i = 0; i < count; i++) {
            T expected = from_double<T>(input<T>(rank, from + i));
            expect(memcmp(&host[at + i], &expected, sizeof(T)) == 0, what);
        }
    }
};

template <class T>
static void reductions(const Rank &r, ncclDataType_t type) {
    enum { COUNT = 37 };
    static const ncclRedOp_t OPS[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
    for (ncclRedOp_t op : OPS) {
        Vector<T> in(COUNT), out(COUNT), all(COUNT * r.n), part(COUNT);
        in.set(r, 0, 0, COUNT);
        all.set(r, 0, 0, COUNT * r.n);
        CHECK(ncclAllReduce(in.device, out.device, COUNT, type, op, r.comm, r.a));
        CHECK(ncclReduceScatter(all.device, part.device, COUNT, type, op, r.comm, r.a));
        CHECK(ncclAllReduce(in.device, in.device, COUNT, type, op, r.comm, r.a));
        CHECK(ncclReduceScatter(all.device, all.device + r.rank * COUNT, COUNT, type, op, r.comm, r.a));
        in.get(r), out.get(r), part.get(r), all.get(r);
        for (int i = 0; i < COUNT; i++) {
            double whole = reduced<T>(op, r.n, i), mine = reduced<T>(op, r.n, r.rank * COUNT + i);
            out.check(i, whole, "ncclAllReduce");
            in.check(i, whole, "ncclAllReduce in place");
            part.check(i, mine, "ncclReduceScatter");
            all.check(r.rank * COUNT + i, mine, "ncclReduceScatter in place");
        }
    }
}

template <class T>
static void movements(const Rank &r, ncclDataType_t type) {
    enum { COUNT = 41 };
    Vector<T> in(COUNT), all(COUNT * r.n), again(COUNT * r.n), from(COUNT * r.n), to(COUNT * r.n);
    in.set(r, 0, 100, COUNT);
    again.set(r, r.rank * COUNT, 100, COUNT);
    from.set(r, 0, 0, COUNT * r.n);
    CHECK(ncclAllGather(in.device, all.device, COUNT, type, r.comm, r.a));
    CHECK(ncclAllGather(again.device + r.rank * COUNT, again.device, COUNT, type, r.comm, r.a));
    CHECK(ncclGroupStart());  // all to all: block p to rank p
    for (int p = 0; p < r.n; p++) {
        CHECK(ncclSend(from.device + p * COUNT, COUNT, type, p, r.comm, r.a));
        CHECK(ncclRecv(to.device + p * COUNT, COUNT, type, p, r.comm, r.a));
    }
    CHECK(ncclGroupEnd());
    all.get(r), again.get(r), to.get(r);
    for (int p = 0; p < r.n; p++) {
        all.check_same(p * COUNT, p, 100, COUNT, "ncclAllGather");
        again.check_same(p * COUNT, p, 100, COUNT, "ncclAllGather in place");
        to.check_same(p * COUNT, p, r.rank * COUNT, COUNT, "all to all");
    }
    for (int root = 0; root < r.n; root++) {
        Vector<T> out(COUNT);
        CHECK(ncclBroadcast(r.rank == root ? in.device : NULL, out.device, COUNT, type, root, r.comm, r.a));
        out.get(r);
        out.check_same(0, root, 100, COUNT, "ncclBroadcast");
    }
}

template <class T>
static void type_check(const Rank &r, ncclDataType_t type) {
    reductions<T>(r, type);
    movements<T>(r, type);
}

static void operations_body(Rank &r, bool) {
    type_check<float>(r, ncclFloat32);
    type_check<__nv_bfloat16>(r, ncclBfloat16);
    type_check<__half>(r, ncclFloat16);
    type_check<double>(r, ncclFloat64);
    type_check<signed char>(r, ncclInt8);
    type_check<unsigned char>(r, ncclUint8);
    type_check<int>(r, ncclInt32);
    type_check<unsigned>(r, ncclUint32);
    type_check<long long>(r, ncclInt64);
    type_check<unsigned long long>(r, ncclUint64);
}
static void operations() {
    for (int n = 1; n <= 4; n++) ranks(n, false, operations_body);
}

// What the rest of the API says.
static void queries_body(Rank &r, bool) {
    int n, rank, device, version;
    ncclResult_t error = ncclInternalError;
    CHECK(ncclCommCount(r.comm, &n));
    CHECK(ncclCommUserRank(r.comm, &rank));
    CHECK(ncclCommCuDevice(r.comm, &device));
    CHECK(ncclGetVersion(&version));
    CHECK(ncclCommGetAsyncError(r.comm, &error));
    expect(n == r.n && rank == r.rank && device == r.rank && version == NCCL_VERSION_CODE && error == ncclSuccess,
           "what the communicator says");
    expect(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0 && *ncclGetLastError(r.comm) == '\0', "errors");
    emulator_reset_counts();
    float *x = numbers(12), *y = fresh(12);
    CHECK(ncclAllReduce(x, x, 12, ncclFloat32, ncclSum, r.comm, r.a));
    CHECK(ncclAllGather(x, y, 3, ncclFloat32, r.comm, r.a));
    CHECK(ncclBroadcast(x, x, 0, ncclFloat32, 1, r.comm, r.a));
    while (cudaStreamQuery(r.a) == cudaErrorNotReady) usleep(100);
    uint64_t others = (uint64_t)r.n - 1;
    expect(emulator_counts().collectives == 3, "calls");
    expect(emulator_counts().sent_bytes == 2 * others * 48 / r.n + others * 12, "bytes sent");
    expect(value_at(x, 11) == 11 * r.n, "ncclAllReduce");
    expect(strcmp(ncclGetErrorString(ncclRemoteError), ncclGetErrorString(ncclInternalError)) != 0, "names of errors");
    CHECK(ncclCommFinalize(r.comm));
}
static void queries_start(int rank, int n, RankPage *page, void *) {
    emulator_devices(n);
    CHECK(cudaSetDevice(rank));
    Rank r = rank_begin(rank, n, page);
    rank_join(&r);
    queries_body(r, false);
    rank_end(r);
}
static void queries() {
    expect(ranks_run(4, queries_start, NULL) == 0, "queries");
}

// A chain of launches of many sizes in which each depends on those before, with kernels and events between.
static void chain_body(Rank &r, bool) {
    enum { ROUNDS = 40, MOST = 20000 };
    float *x = numbers(MOST, (float)r.rank), *y = fresh(MOST);
    double sum = 0;
    for (int p = 0; p < r.n; p++) sum += p;
    float expected = (float)r.rank;
    for (int round = 0; round < ROUNDS; round++) {
        int count = round % 8 == 7 ? MOST : 1 + round * 37 % 500;
        rank_fill<<<(count + 255) / 256, 256, 0, r.a>>>(y, (float)(r.rank + round), count);
        order(r, r.a, r.b);
        CHECK(ncclAllReduce(y, y, count, ncclFloat32, ncclSum, r.comm, r.b));
        order(r, r.b, r.a);
        rank_add<<<(count + 255) / 256, 256, 0, r.a>>>(x, y, count);
        expected += (float)(sum + r.n * round);
    }
    expect(value_at(x, 0) == expected, "chain");
}
static void chain() {
    for (int n = 2; n <= 4; n++) ranks(n, false, chain_body);
}

// Sends and receives of a pair in their order, unequal numbers between pairs, and to oneself.
static void pairs_body(Rank &r, bool) {
    float *x = numbers(100, (float)(1000 * r.rank)), *y = fresh(100);
    if (r.rank == 0) {
        for (int i = 0; i < 5; i++) CHECK(ncclSend(x + 10 * i, 10, ncclFloat32, 1, r.comm, r.a));
        CHECK(ncclSend(x + 50, 10, ncclFloat32, 2, r.comm, r.a));
        CHECK(ncclGroupStart());
        CHECK(ncclGroupStart());
        CHECK(ncclSend(x + 90, 10, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclRecv(y + 90, 10, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclGroupEnd());
        CHECK(ncclGroupEnd());
        expect(value_at(y, 99) == 99, "to oneself");
    } else if (r.rank == 1) {
        CHECK(ncclGroupStart());
        for (int i = 4; i >= 0; i--) CHECK(ncclRecv(y + 10 * i, 10, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclGroupEnd());
        CHECK(ncclRecv(y + 50, 50, ncclFloat32, 2, r.comm, r.a));
        expect(value_at(y, 49) == 9 && value_at(y, 9) == 49 && value_at(y, 99) == 2049, "order of a pair");
    } else {
        CHECK(ncclRecv(y, 10, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclSend(x, 50, ncclFloat32, 1, r.comm, r.a));
        expect(value_at(y, 9) == 59, "the third rank");
    }
}
static void pairs() { ranks(3, false, pairs_body); }

// A rank's host waits for another one's host outside of CUDA, while that one waits in CUDA for the first one's stream.
static void host_waits_body(Rank &r, bool) {
    float *x = numbers(100), *y = fresh(100);
    rank_fill<<<1, 128, 0, r.a>>>(x, 2, 100);
    order(r, r.a, r.b);
    if (r.rank == 0) {
        CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.b));
        CHECK(cudaStreamSynchronize(r.b));
        r.page->notes[0] = 1;
        usleep(50000);
        CHECK(ncclAllReduce(y, x, 100, ncclFloat32, ncclSum, r.comm, r.b));
        r.page->notes[0] = 2;
    } else {
        CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.b));
        while (r.page->notes[0] == 0) usleep(1000);
        while (r.page->notes[0] == 1) usleep(1000);
        CHECK(ncclAllReduce(y, x, 100, ncclFloat32, ncclSum, r.comm, r.b));
    }
    expect(value_at(x, 5) == 2 * r.n * r.n, "hosts that wait");
}
static void host_waits() { ranks(3, false, host_waits_body); }

// Two communicators, one after the other, and one destroyed before.
static void communicators_body(Rank &r, bool) {
    ncclUniqueId id;
    ncclComm_t other;
    if (r.rank == 0) CHECK(ncclGetUniqueId(&id));
    void *shared;
    CHECK(cudaMalloc(&shared, sizeof(id)));
    if (r.rank == 0) CHECK(cudaMemcpy(shared, &id, sizeof(id), cudaMemcpyHostToDevice));
    CHECK(ncclBroadcast(shared, shared, sizeof(id), ncclUint8, 0, r.comm, r.a));
    CHECK(cudaStreamSynchronize(r.a));
    CHECK(cudaMemcpy(&id, shared, sizeof(id), cudaMemcpyDeviceToHost));
    CHECK(ncclCommInitRank(&other, r.n, id, r.n - 1 - r.rank));
    float *x = numbers(10, (float)r.rank), *y = fresh(10 * r.n), *z = fresh(10 * r.n);
    CHECK(ncclAllGather(x, y, 10, ncclFloat32, r.comm, r.a));
    CHECK(ncclAllGather(x, z, 10, ncclFloat32, other, r.b));
    expect(value_at(y, 0) == 0 && value_at(z, 0) == (float)(r.n - 1), "two communicators");
    CHECK(ncclCommDestroy(other));
    CHECK(ncclAllGather(x, y, 10, ncclFloat32, r.comm, r.a));
}
static void communicators() { ranks(3, false, communicators_body); }

// A rank gives up what its peers never answer, from another thread than the one that waits.
static void *abort_soon(void *comm) {
    usleep(50000);
    CHECK(ncclCommAbort((ncclComm_t)comm));
    return NULL;
}
static void aborts_body(Rank &r, bool) {
    pthread_t thread;
    if (r.rank == 0) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        CHECK((cudaError_t)pthread_create(&thread, NULL, abort_soon, r.comm));
        CHECK(cudaStreamSynchronize(r.a));
        pthread_join(thread, NULL);
        expect(ncclGetLastError(NULL)[0] == '\0', "the last error");
        r.page->notes[0] = 1;
    } else {
        while (!r.page->notes[0]) usleep(1000);
    }
    _exit(0);
}
static void aborts() { ranks(2, false, aborts_body); }

// ---------------------------------------------------------------------------------------------------------------
// Ranks that do different things

static void different_operations(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(200);
        if (is_bug && r.rank == 1) {
            CHECK(ncclAllGather(x, y, 100, ncclFloat32, r.comm, r.a));
        } else {
            CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.a));
        }
    });
}
static void different_counts(bool bug) {
    ranks(3, bug, [](Rank &r, bool is_bug) {
        CHECK(ncclAllGather(numbers(100), fresh(300), is_bug && r.rank == 2 ? 99 : 100, ncclFloat32, r.comm, r.a));
    });
}
static void different_types(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        ncclDataType_t type = is_bug && r.rank == 1 ? ncclInt32 : ncclFloat32;
        CHECK(ncclReduceScatter(numbers(100), fresh(50), 50, type, ncclSum, r.comm, r.a));
    });
}
static void different_reductions(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        ncclRedOp_t op = is_bug && r.rank == 0 ? ncclMax : ncclAvg;
        CHECK(ncclAllReduce(numbers(100), fresh(100), 100, ncclFloat32, op, r.comm, r.a));
    });
}
static void different_roots(bool bug) {
    ranks(3, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclBroadcast(x, x, 100, ncclFloat32, is_bug ? r.rank : 1, r.comm, r.a));
    });
}
static void different_sizes(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (r.rank == 0) CHECK(ncclSend(numbers(100), 100, ncclFloat32, 1, r.comm, r.a));
        if (r.rank == 1) CHECK(ncclRecv(fresh(100), is_bug ? 50 : 100, ncclFloat32, 0, r.comm, r.a));
    });
}
static void different_orders(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        if (is_bug && r.rank == 1) CHECK(ncclRecv(y, 100, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (r.rank == 0) CHECK(ncclSend(x, 100, ncclFloat32, 1, r.comm, r.a));
        if (!is_bug && r.rank == 1) CHECK(ncclRecv(y, 100, ncclFloat32, 0, r.comm, r.a));
    });
}
static void send_without_recv(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (r.rank == 0) CHECK(ncclSend(numbers(100), 100, ncclFloat32, 1, r.comm, r.a));
        if (r.rank == 1 && !is_bug) CHECK(ncclRecv(fresh(100), 100, ncclFloat32, 0, r.comm, r.a));
    });
}
static void missing_call(bool bug) {
    setenv("EMULATOR_TIMEOUT", bug ? "0.2" : "30", 1);
    ranks(3, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 50, ncclFloat32, ncclSum, r.comm, r.a));
        CHECK(cudaStreamSynchronize(r.a));
        if (!is_bug || r.rank != 1) CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (is_bug && r.rank == 1) usleep(800000);
    });
}
static void missing_rank(bool bug) {
    setenv("EMULATOR_TIMEOUT", bug ? "0.2" : "30", 1);
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (is_bug && r.rank == 1) {
            usleep(600000);
            return;
        }
        rank_join(&r);
        rank_end(r);
    }, false);
}

// Ranks that end: the others must notice at once.
static void killed_rank(bool bug) {
    double begin = seconds();
    ranks(3, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        CHECK(cudaStreamSynchronize(r.a));
        if (is_bug && r.rank == 1) usleep(100000), raise(SIGKILL);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
    expect(seconds() - begin < 5, "time to notice");
}
static void faulty_rank(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        if (r.rank == 1) {
            rank_add<<<1, 128, 0, r.a>>>(x, is_bug ? y : numbers(100), 100);
        } else {
            usleep(50000);
        }
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void aborted_rank(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        ncclResult_t error = ncclSuccess;
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        CHECK(cudaStreamSynchronize(r.a));
        if (is_bug && r.rank == 1) {
            CHECK(ncclCommAbort(r.comm));
            _exit(0);
        }
        while (is_bug && error == ncclSuccess) CHECK(ncclCommGetAsyncError(r.comm, &error));
        bool is_told = error == ncclRemoteError && strstr(ncclGetLastError(r.comm), "rank 1 has failed or aborted");
        expect(!is_bug || is_told, "asynchronous error");
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}

// ---------------------------------------------------------------------------------------------------------------
// Groups, streams, life times

static void send_send(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        if (!is_bug) CHECK(ncclGroupStart());
        CHECK(ncclSend(x, 100, ncclFloat32, 1 - r.rank, r.comm, r.a));
        CHECK(ncclRecv(y, 100, ncclFloat32, 1 - r.rank, r.comm, r.a));
        if (!is_bug) CHECK(ncclGroupEnd());
        expect(value_at(y, 99) == 99, "exchange");
    });
}
static void send_ring(bool bug) {
    ranks(4, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        int next = (r.rank + 1) % r.n, before = (r.rank + r.n - 1) % r.n;
        if (!is_bug && r.rank == 0) CHECK(ncclRecv(y, 100, ncclFloat32, before, r.comm, r.a));
        CHECK(ncclSend(x, 100, ncclFloat32, next, r.comm, r.a));
        if (is_bug || r.rank != 0) CHECK(ncclRecv(y, 100, ncclFloat32, before, r.comm, r.a));
    });
}
static void send_self(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        if (!is_bug) CHECK(ncclGroupStart());
        CHECK(ncclSend(numbers(100), 100, ncclFloat32, 0, r.comm, r.a));
        CHECK(ncclRecv(fresh(100), 100, ncclFloat32, 0, r.comm, r.a));
        if (!is_bug) CHECK(ncclGroupEnd());
    });
}
static void group_overlap(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        CHECK(ncclGroupStart());
        CHECK(ncclSend(x, 50, ncclFloat32, 1 - r.rank, r.comm, r.a));
        CHECK(ncclRecv(is_bug && r.rank == 1 ? x + 49 : y, 50, ncclFloat32, 1 - r.rank, r.comm, r.a));
        CHECK(ncclGroupEnd());
    });
}
static void group_end(bool bug) {
    if (!bug) CHECK(ncclGroupStart());
    CHECK(ncclGroupEnd());
}
static void two_streams(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (!is_bug) order(r, r.a, r.b);
        CHECK(ncclAllReduce(y, y, 100, ncclFloat32, ncclSum, r.comm, r.b));
    });
}
static void race_send(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (!is_bug) order(r, r.a, r.b);
        rank_fill<<<1, 128, 0, r.b>>>(x, 3, 100);
        CHECK(cudaStreamSynchronize(r.b));
        expect(value_at(y, 99) == 198, "what was sent");
    });
}
static void race_write(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = fresh(100);
        rank_fill<<<1, 128, 0, r.b>>>(x, 3, 100);
        if (!is_bug) order(r, r.b, r.a);
        CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void race_receive(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *y = numbers(100), *z = numbers(100);
        CHECK(ncclAllReduce(x, y, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (!is_bug) order(r, r.a, r.b);
        rank_add<<<1, 128, 0, r.b>>>(z, y, 100);
        expect(value_at(z, 99) == 297, "what was received");
    });
}
static void host_reads_early(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100), *pinned;
        CHECK(cudaMallocHost(&pinned, 400));
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        CHECK(cudaMemcpyAsync(pinned, x, 400, cudaMemcpyDeviceToHost, r.a));
        if (!is_bug) CHECK(cudaStreamSynchronize(r.a));
        emulator_host_reads(pinned, 400);
        expect(pinned[99] == 198, "sum");
    });
}
static void destroy_pending(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
        if (!is_bug) CHECK(cudaStreamSynchronize(r.a));
        CHECK(ncclCommDestroy(r.comm));
        _exit(0);
    });
}
static void destroyed(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        rank_join(&r);
        if (is_bug) CHECK(ncclCommDestroy(r.comm));
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, ncclSum, r.comm, r.a));
    }, false);
}
static void host_function(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        static ncclComm_t comm;
        comm = r.comm;
        CHECK(cudaLaunchHostFunc(r.a, [](void *calls) {
            int n;
            if (calls) ncclCommCount(comm, &n);
        }, is_bug ? &comm : NULL));
    });
}

// ---------------------------------------------------------------------------------------------------------------
// Arguments and memory

static void wrong_rank(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (is_bug && r.rank == 1) r.rank = 2;
        rank_join(&r);
    }, false);
}
static void *join_other(void *rank) {
    Rank other = *(Rank *)rank;
    other.rank = 1;
    rank_join(&other);
    return NULL;
}
static void one_process(bool bug) {
    ranks(bug ? 1 : 2, bug, [](Rank &r, bool is_bug) {
        pthread_t thread;
        r.n = 2;
        if (is_bug) pthread_create(&thread, NULL, join_other, &r);
        rank_join(&r);
        rank_end(r);
    }, false);
}
static void wrong_size(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (is_bug && r.rank == 1) usleep(50000), r.n = 3;
        rank_join(&r);
    }, false);
}
static void same_rank(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        if (is_bug) r.rank = 1;
        rank_join(&r);
    }, false);
}
static void same_device(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        CHECK(cudaSetDevice(is_bug ? 1 : r.rank));
        rank_join(&r);
    }, false);
}
static void same_device_start(bool bug) {
    setenv("EMULATOR_DEVICES", "2", 1);
    same_device(bug);
}
static void wrong_id(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        if (is_bug) memset(&r.id, 0, sizeof(r.id));
        rank_join(&r);
    }, false);
}
static void old_id(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        if (!is_bug) CHECK(ncclGetUniqueId(&r.id));
        rank_join(&r);
    });
}
static void wrong_type(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, is_bug ? ncclFloat8e4m3 : ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void wrong_reduction(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclAllReduce(x, x, 100, ncclFloat32, is_bug ? ncclNumOps : ncclSum, r.comm, r.a));
    });
}
static void wrong_peer(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(100);
        CHECK(ncclBroadcast(x, x, 100, ncclFloat32, is_bug ? 2 : 1, r.comm, r.a));
    });
}
static void beyond(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        CHECK(ncclAllGather(numbers(100), fresh(is_bug ? 100 : 200), 100, ncclFloat32, r.comm, r.a));
    });
}
static void host_buffer(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        static float host[100];
        CHECK(ncclAllReduce(numbers(100), is_bug ? host : fresh(100), 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void misaligned(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        char *x = (char *)numbers(100);
        CHECK(ncclAllReduce(x + (is_bug ? 2 : 4), fresh(100), 99, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void uninitialised_send(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = fresh(100);
        CHECK(cudaMemsetAsync(x, 0, is_bug && r.rank == 1 ? 396 : 400, r.a));
        CHECK(ncclAllReduce(x, fresh(100), 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void regions(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *slab = fresh(1000);
        emulator_region(slab, 400, "shard", r.a);
        emulator_region(slab + 100, 400, "neighbour", r.a);
        CHECK(cudaMemsetAsync(slab, 0, 800, r.a));
        CHECK(ncclAllReduce(slab, fresh(200), is_bug ? 101 : 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void region_ended(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *slab = fresh(1000);
        emulator_region(slab, 400, "slot", r.a);
        if (is_bug) emulator_region_end(slab, r.a);
        CHECK(ncclAllGather(numbers(50), slab, 50, ncclFloat32, r.comm, r.a));
    });
}
static void overlap_gather(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(200);
        CHECK(ncclAllGather(is_bug ? x : x + 100 * r.rank, x, 100, ncclFloat32, r.comm, r.a));
    });
}
static void overlap_scatter(bool bug) {
    ranks(2, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(200);
        CHECK(ncclReduceScatter(x, is_bug ? x : x + 100 * r.rank, 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}
static void overlap_reduce(bool bug) {
    ranks(1, bug, [](Rank &r, bool is_bug) {
        float *x = numbers(200);
        CHECK(ncclAllReduce(x, x + (is_bug ? 99 : 100), 100, ncclFloat32, ncclSum, r.comm, r.a));
    });
}

// ---------------------------------------------------------------------------------------------------------------

#define PLANT(name, words) {"ranks_" #name, name, words}

const Plant RANK_PLANTS[] = {
    PLANT(different_operations,
          "different operations|rank 0 makes ncclAllReduce of 100 ncclFloat32, ncclSum (call 1)|rank 1 makes "
          "ncclAllGather of 100 ncclFloat32 (call 1)|by rank 0|by rank 1"),
    PLANT(different_counts, "different counts|ncclAllGather of 100 ncclFloat32|rank 2 makes ncclAllGather of 99"),
    PLANT(different_types, "different types|of 50 ncclFloat32, ncclSum|rank 1 makes ncclReduceScatter of 50 ncclInt32"),
    PLANT(different_reductions, "different reductions|ncclMax|ncclAvg"),
    PLANT(different_roots, "different roots|root 0|root 1"),
    PLANT(different_sizes,
          "different sizes|rank 0 makes ncclSend of 100 ncclFloat32 to rank 1|rank 1 makes ncclRecv of 50 ncclFloat32 "
          "from rank 0"),
    PLANT(different_orders,
          "deadlock|rank 0 waits for rank 1 in ncclAllReduce|rank 1 waits for rank 0 in ncclRecv|in the same order"),
    PLANT(send_without_recv,
          "missing call|rank 0 waits for rank 1 in ncclSend of 100 ncclFloat32 to rank 1 (call 1)|rank 1 has called "
          "ncclCommDestroy after 0 calls"),
    PLANT(missing_call,
          "time-out|for 0.2 s (EMULATOR_TIMEOUT)|waits for rank 1 in ncclAllReduce of 100 ncclFloat32, ncclSum (call "
          "2)|rank 1 has made 1 calls, the last ncclAllReduce of 50"),
    PLANT(missing_rank, "time-out|rank 0 waits in ncclCommInitRank for rank 1 of 2"),
    PLANT(killed_rank, "lost rank|rank 1 is gone|after 1 calls"),
    PLANT(faulty_rank,
          "lost rank|rank 0 waits for rank 1 in ncclAllReduce|rank 1 has ended with this fault: uninitialised read"),
    PLANT(aborted_rank, "missing call|rank 0 waits for rank 1|rank 1 has called ncclCommAbort after 1 calls"),
    PLANT(send_send,
          "deadlock|rank 0 waits for rank 1 in ncclSend|rank 1 waits for rank 0 in ncclSend|NCCL may block|"
          "ncclGroupStart"),
    PLANT(send_ring, "deadlock|rank 0 waits for rank 1|rank 3 waits for rank 0 in ncclSend|ncclGroupStart"),
    PLANT(send_self, "deadlock|rank 0 waits for rank 0 in ncclSend"),
    PLANT(group_overlap, "overlapping buffers|rank 1|ncclRecv of 50|ncclSend of 50|of the same group"),
    PLANT(group_end, "ncclGroupEnd without ncclGroupStart"),
    PLANT(two_streams, "race between streams|ncclAllReduce of 100 ncclFloat32 by rank|must be ordered"),
    PLANT(race_send, "race between streams|kernel rank_fill|ncclAllReduce of 100 ncclFloat32 by rank"),
    PLANT(race_write, "race between streams|kernel rank_fill|ncclAllReduce of 100 ncclFloat32 by rank"),
    PLANT(race_receive, "race between streams|ncclAllReduce of 100 ncclFloat32 by rank"),
    PLANT(host_reads_early, "race with the host|read of pinned host memory|write by cudaMemcpy of 400 bytes"),
    PLANT(destroy_pending, "pending work|ncclCommDestroy in rank|has not waited for ncclAllReduce"),
    PLANT(destroyed, "is no communicator, or is destroyed"),
    PLANT(host_function, "a host function of a stream calls the CUDA API"),
    PLANT(wrong_rank, "invalid argument|rank 2 of 2"),
    PLANT(one_process, "invalid argument|are one process, which is not emulated"),
    PLANT(wrong_size, "invalid argument|rank 1 says there are 3 ranks, another has said 2"),
    PLANT(same_rank, "invalid argument|two ranks say that they are rank 1 of 2"),
    {"ranks_same_device", same_device_start, "invalid argument|ranks 0 and 1 both use device 1"},
    PLANT(wrong_id, "invalid argument|does not come from ncclGetUniqueId"),
    PLANT(old_id, "invalid argument|all its ranks have come before"),
    PLANT(wrong_type, "invalid argument|ncclAllReduce: type 10"),
    PLANT(wrong_reduction, "invalid argument|ncclAllReduce: reduction 5"),
    PLANT(wrong_peer, "invalid argument|ncclBroadcast: rank 2 of 2"),
    PLANT(beyond, "invalid argument|ncclAllGather's recvbuff in rank|800 bytes"),
    PLANT(host_buffer, "invalid argument|ncclAllReduce's recvbuff in rank 0|is not device memory"),
    PLANT(misaligned, "misaligned access|ncclAllReduce's sendbuff"),
    PLANT(uninitialised_send, "uninitialised read|ncclAllReduce's sendbuff|byte 396|by rank 1"),
    PLANT(regions, "more than one region|ncclAllReduce's sendbuff: 404 bytes|region 'shard'"),
    PLANT(region_ended, "access outside of every region|ncclAllGather's recvbuff|the former region 'slot'"),
    PLANT(overlap_gather, "overlapping buffers|ncclAllGather of 100|in place"),
    PLANT(overlap_scatter, "overlapping buffers|ncclReduceScatter of 100|in place"),
    PLANT(overlap_reduce, "overlapping buffers|ncclAllReduce of 100|in place"),
};
const int N_RANK_PLANTS = sizeof(RANK_PLANTS) / sizeof(RANK_PLANTS[0]);

#define FAMILY(name) {"ranks_" #name, name}
const Family RANK_FAMILIES[] = {FAMILY(operations), FAMILY(queries),    FAMILY(chain),
                                FAMILY(pairs),      FAMILY(host_waits), FAMILY(communicators), FAMILY(aborts)};
const int N_RANK_FAMILIES = sizeof(RANK_FAMILIES) / sizeof(RANK_FAMILIES[0]);

// What a process leaves that is killed between ncclGetUniqueId and the last ncclCommInitRank goes with the next id.
void ranks_leave_segment(char *name, int n_name) {
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    snprintf(name, (size_t)n_name, "/dev/shm%s", (const char *)&id + 8);
}
