// test_transfer.c - transfer.h: bytes between all tiers of the CPU device, in every order of the queues, and what PLAN
// counts of them. (The way between a GPU and the disk, by pieces through the host, needs a GPU: test_emulated.c has it
// in its runs with --offload KIND=disk.)
#include "device_helpers.h"

#include "../dev/transfer.h"

enum { PAGES = 4, BYTES = PAGES * MEMORY_PAGE };

typedef struct {
    Device device;
    Memory memory;
    Ledger plan;
    Transfers transfers;
    char *places[TIERS][2];
} Fixture;

static char directory[256];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    return 0;
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

static void open_fixture(Fixture *f, Order order) {
    memset(f, 0, sizeof(*f));
    open_cpu(&f->device, order);
    open_memory(&f->memory, &f->device, &f->plan, 4 * BYTES, directory);
    for (int t = 0; t < TIERS; t++) {
        for (int i = 0; i < 2; i++) {
            f->places[t][i] =
                (char *)memory_keep_aligned(&f->memory, (Tier)t, KIND_SCRATCH, BYTES, MEMORY_PAGE, "place");
        }
    }
    transfers_open(&f->transfers, &f->memory, true);
}

static void close_fixture(Fixture *f) {
    memory_close(&f->memory);
    close_cpu(&f->device);
}

// From the host's memory through a tier and another one back to the host, a link behind the other on one queue.
static void test_every_way(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        for (int through = 0; through < TIERS * TIERS; through++) {
            Fixture f;
            const Tier a = (Tier)(through % TIERS), b = (Tier)(through / TIERS);
            if (a == TIER_DISK && b == TIER_DISK) continue;
            open_fixture(&f, EVERY_ORDER[i]);
            char *from = f.places[TIER_HOST][0], *to = f.places[TIER_HOST][1];
            char *first = a == TIER_HOST
                              ? (char *)memory_push_aligned(&f.memory, a, KIND_SCRATCH, BYTES, MEMORY_PAGE, "a")
                              : f.places[a][0];
            char *second = b == TIER_HOST
                               ? (char *)memory_push_aligned(&f.memory, b, KIND_SCRATCH, BYTES, MEMORY_PAGE, "b")
                               : f.places[b][1];
            for (size_t k = 0; k < BYTES; k++) from[k] = (char)random_bits(through, i, k);
            transfer(&f.transfers, QUEUE_STASH, a, first, TIER_HOST, from, BYTES);
            transfer(&f.transfers, QUEUE_STASH, b, second, a, first, BYTES);
            transfer(&f.transfers, QUEUE_STASH, TIER_HOST, to, b, second, BYTES);
            assert_true(host_reads(&f.device, to, BYTES));
            assert_memory_equal(to, from, BYTES);
            const uint64_t disk = (a == TIER_DISK || b == TIER_DISK) ? BYTES : 0;
            assert_int_equal(f.memory.disk.n_written, disk);
            assert_int_equal(f.memory.disk.n_read, disk);
            close_fixture(&f);
        }
    }
}

// Places on the disk are places in the file: neighbours stay as they were.
static void test_places_on_the_disk(void **state) {
    (void)state;
    Fixture f;
    const Order order = {QUEUE_LAZY, 0};
    open_fixture(&f, order);
    char *from = f.places[TIER_HOST][0], *to = f.places[TIER_HOST][1], *disk = f.places[TIER_DISK][0];
    assert_int_equal(f.places[TIER_DISK][1] - disk, BYTES);
    memset(from, 'x', BYTES);
    transfer(&f.transfers, QUEUE_FETCH, TIER_DISK, disk + MEMORY_PAGE, TIER_HOST, from, 2 * MEMORY_PAGE);
    transfer(&f.transfers, QUEUE_FETCH, TIER_HOST, to, TIER_DISK, disk, BYTES);
    assert_true(host_reads(&f.device, to, BYTES));
    for (size_t k = 0; k < BYTES; k++) {
        assert_int_equal(to[k], k / MEMORY_PAGE == 1 || k / MEMORY_PAGE == 2 ? 'x' : 0);
    }
    // The host may not write what a queue still takes to the disk.
    transfer(&f.transfers, QUEUE_STASH, TIER_DISK, disk, TIER_HOST, from, MEMORY_PAGE);
    assert_true(host_writes(&f.device, from, MEMORY_PAGE));
    memset(from, 'y', MEMORY_PAGE);
    transfer(&f.transfers, QUEUE_STASH, TIER_HOST, to, TIER_DISK, disk, MEMORY_PAGE);
    assert_true(host_reads(&f.device, to, MEMORY_PAGE));
    assert_int_equal(to[0], 'x');
    close_fixture(&f);
}

// Memory is given back once no queue uses it any more, also that of the device and of the disk.
static void test_memory_is_not_closed_under_a_transfer(void **state) {
    (void)state;
    for (int i = 0; i < 20 * N_ORDERS; i++) {
        Fixture f;
        open_fixture(&f, EVERY_ORDER[i % N_ORDERS]);
        for (int k = 0; k < 8; k++) {
            transfer(&f.transfers, (Queue)(1 + k % 3), TIER_DISK, f.places[TIER_DISK][k % 2], TIER_DEVICE,
                     f.places[TIER_DEVICE][k % 2], BYTES);
        }
        close_fixture(&f);
    }
}

// PLAN counts what goes to the disk and comes from it, and what is copied; nothing is moved.
static void test_a_plan_counts(void **state) {
    (void)state;
    Device cpu, plan;
    Memory memory;
    Transfers transfers;
    memset(&cpu, 0, sizeof(cpu));
    cpu.kind = cpu.real = DEVICE_CPU;
    device_stand_in(&plan, &cpu);
    memory_open_plan(&memory, &plan);
    transfers_open(&transfers, &memory, true);
    for (int t = 0; t < TIERS; t++) assert_int_equal(memory_slab_used(&memory.slabs[t]), 0);  // a CPU needs no buffers
    char *host = memory.slabs[TIER_HOST].base, *device = memory.slabs[TIER_DEVICE].base;
    char *disk = memory.slabs[TIER_DISK].base;
    transfer(&transfers, QUEUE_STASH, TIER_DISK, disk, TIER_HOST, host, 3);
    transfer(&transfers, QUEUE_STASH, TIER_DISK, disk, TIER_DEVICE, device, 10);
    transfer(&transfers, QUEUE_FETCH, TIER_DEVICE, device, TIER_DISK, disk, 100);
    assert_int_equal(memory.disk.n_written, 13);
    assert_int_equal(memory.disk.n_read, 100);
    assert_true(plan.bytes == 0);
    transfer(&transfers, QUEUE_FETCH, TIER_DEVICE, device, TIER_HOST, host, 1000);
    assert_true(plan.bytes == 2000);
    assert_int_equal(memory.disk.n_read, 100);
    memory_close(&memory);
}

// For a GPU two buffers of 4 MiB are kept for each of the three queues that may ask, if a disk is in use.
static void test_buffers_of_a_gpu(void **state) {
    (void)state;
    for (int disk = 0; disk < 2; disk++) {
        Device gpu, plan;
        Memory memory;
        Transfers transfers;
        memset(&gpu, 0, sizeof(gpu));
        gpu.kind = gpu.real = DEVICE_CUDA;
        device_stand_in(&plan, &gpu);
        memory_open_plan(&memory, &plan);
        transfers_open(&transfers, &memory, disk);
        assert_int_equal(memory_slab_used(&memory.slabs[TIER_HOST]), disk ? 3 * 2 * (4 << 20) : 0);
        assert_int_equal(memory.slabs[TIER_HOST].kinds[KIND_FILES], disk ? 3 * 2 * (4 << 20) : 0);
        assert_int_equal(memory_slab_used(&memory.slabs[TIER_DEVICE]), 0);
        memory_close(&memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way),
        cmocka_unit_test(test_places_on_the_disk),
        cmocka_unit_test(test_memory_is_not_closed_under_a_transfer),
        cmocka_unit_test(test_a_plan_counts),
        cmocka_unit_test(test_buffers_of_a_gpu),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
