// test_device.c - what a device does to memory beside arithmetic: zeros, uploads, downloads.
#include "cases.h"

#include "elements.h"

typedef struct {
    Buffer *to, *from;
} DeviceCopyBuffers;

static void call_device(const Run *run, const Context *context, const void *operands) {
    const DeviceCopyBuffers *x = (const DeviceCopyBuffers *)operands;
    Device *device = context->device;
    const size_t n_bytes = run->n[0] * number_size(context->dtype);
    if (run->variant == 0) device_zero(device, data(x->to), n_bytes);
    if (run->variant == 1) device_upload(device, data(x->to), x->from->before + x->from->first, n_bytes);
    if (run->variant == 2) {  // by way of the host
        device_download(device, x->to->after, data(x->from), n_bytes);
        device_upload(device, data(x->to), x->to->after, n_bytes);
    }
}

// Variants: zero, upload, download.
static void test_device(Run *run) {
    DeviceCopyBuffers x;
    x.to = made(run, "to", MADE, run->dtype, run->n[0], 1);
    x.from = given(run, "from", run->dtype, run->n[0], 1);
    for (size_t i = 0; i < run->n[0]; i++) want(x.to, i, run->variant ? x.from->given[i] : 0, EXACT);
    execute(run, call_device, &x);
}

static const Operation DEVICE_OPERATIONS[] = {
    {"device_copies", test_device, ELEMENT_SHAPES, {"zero", "upload", "download"}, 0, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest DEVICE_TESTS[] = {NO_MORE_TESTS};
static const Group DEVICE_GROUP = {DEVICE_OPERATIONS, DEVICE_TESTS};
KERNEL_MAIN(DEVICE_GROUP)
