// device.c - what the emulated device says of itself, and the runtime's error codes.
//
// Invariant: the device is one that a program for sm_80 must run on: EMULATOR_TARGET and EMULATOR_MEMORY change it.
#include "state.h"

enum { MULTIPROCESSORS = 4 };

static __thread int thread_device;  // as CUDA has it, each thread begins with device 0

static bool is_device(int device) { return device >= 0 && device < emulator.options.n_devices; }

void emulator_devices(int n) {
    if (emulator.started) fail("invalid argument: emulator_devices after the first call of CUDA");
    if (n < 1) fail("invalid argument: emulator_devices(%d)", n);
    emulator.options.n_devices = n;
}

int device_current(void) { return thread_device; }

void device_use(void) {
    if (emulator.device == 0) emulator.device = thread_device + 1;
    if (emulator.device == thread_device + 1) return;
    fail(
        "wrong device: this thread's device is %d, the process has used device %d before; cudaSetDevice comes first, "
        "in each thread",
        thread_device, emulator.device - 1);
}

cudaError_t cudaGetDeviceCount(int *n) {
    API_ENTER;
    *n = emulator.options.n_devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    API_ENTER;
    *device = thread_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    API_ENTER;
    if (!is_device(device)) emulator.last_error = cudaErrorInvalidDevice;
    if (is_device(device)) thread_device = device;
    return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void) {
    API_ENTER;
    stream_synchronise_all();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    API_ENTER;
    int major = emulator.options.compute_capability / 10, minor = emulator.options.compute_capability % 10;
    if (!is_device(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = MOST_THREADS; break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_DEFAULT; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)(major == 8 ? 163 * 1024 : SHARED_BYTES); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)(major == 8 ? 164 * 1024 : 228 * 1024); break;
    case cudaDevAttrWarpSize: *value = LANES; break;
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrComputeCapabilityMajor: *value = major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = minor; break;
    case cudaDevAttrAsyncEngineCount: *value = 2; break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;  // kHz
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrL2CacheSize: *value = 40 << 20; break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrIntegrated:
    case cudaDevAttrMemoryPoolsSupported: *value = 0; break;
    default: fail("cudaDeviceGetAttribute: attribute %d is not emulated", (int)attribute);
    }
    return cudaSuccess;
}

static int attribute_of(enum cudaDeviceAttr attribute) {
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, 0);
    return value;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    API_ENTER;
    if (!is_device(device)) return cudaErrorInvalidDevice;
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "emulated");
    p->totalGlobalMem = emulator.options.memory_bytes;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = (size_t)attribute_of(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    p->sharedMemPerMultiprocessor = (size_t)attribute_of(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = LANES;
    p->memPitch = INT32_MAX;
    p->maxThreadsPerBlock = MOST_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = attribute_of(cudaDevAttrComputeCapabilityMajor);
    p->minor = attribute_of(cudaDevAttrComputeCapabilityMinor);
    p->textureAlignment = 512;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = p->hostRegisterSupported = 1;
    p->asyncEngineCount = 2;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 40 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int device) {
    snprintf(text, (size_t)n, "0000:00:%02d.0", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
    (void)limit, (void)value;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Errors

cudaError_t cudaGetLastError(void) {
    API_ENTER;
    cudaError_t last = emulator.last_error;
    emulator.last_error = cudaSuccess;
    return last;
}

cudaError_t cudaPeekAtLastError(void) {
    API_ENTER;
    return emulator.last_error;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError_t code) {
    for (size_t i = 0; i < sizeof(ERRORS) / sizeof(ERRORS[0]); i++) {
        if (ERRORS[i].code == code) return ERRORS[i].name;
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code) {
    for (size_t i = 0; i < sizeof(ERRORS) / sizeof(ERRORS[0]); i++) {
        if (ERRORS[i].code == code) return ERRORS[i].text;
    }
    return "unrecognized error code";
}
