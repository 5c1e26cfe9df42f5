# train_gpt: make setup, make train, ./train_gpt. `make help` lists everything.
#
# Libraries are looked for when a recipe runs (scripts/libraries.sh), so `make setup train` works in one go.

ifeq ($(origin CC),default)
CC = gcc
endif
ifeq ($(origin CXX),default)
CXX = g++
endif
ARCH ?= native
WARNINGS = -Wall -Wextra -Wpedantic
# No contraction and no fast-math: the same numbers from every compiler. errno and traps of math functions are not
# used; without them loops vectorise.
CFLAGS ?= -O3
NUMBERS = -march=$(ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math
C11 = -x c -std=c11 $(CFLAGS) $(NUMBERS) $(WARNINGS)

PROGRAM = train_gpt.cu
# The CUDA half of X.h is X.cuh, which X.h includes; a .cuh without a .h is what these share.
CUDA_HALVES = $(wildcard dev/kernels/*.cuh)
HEADERS = $(wildcard dev/*.h dev/kernels/*.h data/*.h) $(CUDA_HALVES)
# tests/test_X.c is the test of X, tests/kernels/test_X.c that of a kernel; tests/properties has what is true of the
# whole program. Of the first, some start programs or have the whole trainer in them; the others are the unit tests.
# What only CUDA has, and all kernels' tests in one program, run on the emulator and on a GPU (EMULATED_TESTS).
CUDA_TESTS = tests/test_emul% tests/test_tune.c tests/test_kernels.c
ALL_TESTS = $(sort $(patsubst tests/%.c,%,$(filter-out $(CUDA_TESTS), \
    $(wildcard tests/test_*.c tests/kernels/test_*.c tests/properties/*.c))))
PROGRAM_TESTS = test_collective test_gpu_check test_launch test_model test_onednn test_program test_ranks test_table \
    test_threads properties/%
UNIT_TESTS = $(filter-out $(PROGRAM_TESTS),$(ALL_TESTS))
TESTS = $(ALL_TESTS)
# RUN=valgrind: the unit tests under valgrind, which does not know every instruction of a new processor.
RUN ?=
BUILD = build
ifneq ($(RUN),)
ARCH = x86-64-v3
BUILD = build/$(RUN)
endif
ifneq ($(SANITIZE),)
BUILD = build/sanitized
endif
# CUDA=1 builds for GPUs as well, CUDA=0 does not; otherwise it is built where nvcc and a GPU are found.
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA ?= $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1 || echo 0),0)
# Code for the GPU that is there, otherwise for compute capability 8.0 and 9.0, and PTX for newer ones.
GPU_TARGETS ?= $(if $(shell nvidia-smi -L 2>/dev/null),-arch=native,$(GPU_TARGETS_DEFAULT))
GPU_TARGETS_DEFAULT = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
empty =
comma = ,
space = $(empty) $(empty)
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -fmad=false -Xcompiler $(subst $(space),$(comma),$(NUMBERS) -Wall -Wextra)

# The libraries of the program for GPUs, as nvcc takes them.
CUDA_LIBRARIES = sh scripts/libraries.sh $(CC) cuda=$(NVCC) | sed -E 's/-fopenmp|-Wno-unknown-pragmas/-Xcompiler &/'

# Tests of CUDA code on the emulator (dev/emulator); they need nvcc, but no GPU.
EMULATED_TESTS = test_emulator emulated/test_kernels emulated/test_tune emulated/test_emulated \
    emulated/properties/test_same_bits
EMULATED_BENCH = $(if $(RUN)$(SANITIZE),,$(if $(NVCC),build/emulated/bench_gpu))
RUN_TESTS = $(if $(RUN),$(UNIT_TESTS),$(TESTS) $(if $(SANITIZE),,$(if $(NVCC),$(EMULATED_TESTS))))

# The CUDA emulator (dev/emulator): objects that nvcc makes run without a GPU. Needs nvcc, not a driver.
# NCCL's stand-in needs its header; without it the rest is built.
NCCL_HEADER = $(firstword $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h))
USE_NCCL = $(if $(NCCL_HEADER),-DUSE_NCCL=1)
EMULATOR_OBJECTS = $(patsubst dev/emulator/%.c,build/emulator/%.o, \
    $(filter-out $(if $(NCCL_HEADER),,dev/emulator/nccl%),$(wildcard dev/emulator/*.c)))
EMULATOR_HEADERS = $(wildcard dev/emulator/*.h)
# What makes an object that the emulator can run: PTX for sm_80 as text, with line numbers.
NVCC_EMULATED = -gencode arch=compute_80,code=compute_80 --no-compress
# What such a program is linked with, instead of -lcudart -lcublasLt; by $(CXX).
EMULATOR_LIBRARIES = build/libemulator.a -lm -lpthread -lrt
# Ranks of an emulated program are started by MPI where that is installed.
MPI_LINK = $(shell mpicc --showme:link 2>/dev/null)
MPI_COMPILE = $(if $(MPI_LINK),-DUSE_MPI=1 -DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1 $(shell mpicc --showme:compile))

# With -j, `make setup train` must not start building before the set-up is done.
ifneq ($(filter setup,$(MAKECMDGOALS)),)
train_gpt build: | setup
endif

.DELETE_ON_ERROR:
.PHONY: FORCE help setup train data test test-all test-machines test-emulator bench bench-offload table picture \
    pictures emulated emulator asan check-headers check-compilers check-cuda check-readme check-style gpu-programs \
    bench-gpu gpu-resources clean

help: ## lists the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 18
	@echo "variables: CC, CXX, ARCH=$(ARCH) (x86-64-v3: a program to carry elsewhere), WITHOUT=\"onednn openmp mpi nccl\","
	@echo "RUN=valgrind (make test: the unit tests under valgrind, built for x86-64-v3),"
	@echo "CUDA=1 or 0 (with or without CUDA)"

setup: ## installs what is missing (Debian packages)
	@sh scripts/setup.sh

train: train_gpt data ## builds ./train_gpt and the default token files

# What things are built with, and what the program is built for: they are built again when it changes.
SETTINGS = $(CC) $(CXX) $(CFLAGS) $(NUMBERS) $(SANITIZE) without $(WITHOUT)
$(BUILD)/settings: FORCE | build
	@mkdir -p $(@D) && echo '$(SETTINGS)' | cmp -s - $@ || echo '$(SETTINGS)' >$@

build/cuda_is_$(CUDA): | build
	@rm -f build/cuda_is_* && touch $@

train_gpt: $(PROGRAM) $(HEADERS) Makefile scripts/libraries.sh $(BUILD)/settings build/cuda_is_$(CUDA)
ifeq ($(CUDA),1)
	@echo "for the CPU and CUDA"
	@libraries=$$($(CUDA_LIBRARIES)) && set -x && \
	$(NVCC) -x cu $(NVCC_FLAGS) $(GPU_TARGETS) $(PROGRAM) -o $@.new $$libraries -lcublasLt
else
	@echo "for the CPU$(if $(NVCC),; no GPU is here$(comma) CUDA=1 builds for one all the same)"
	@libraries=$$(sh scripts/libraries.sh $(CC)) && set -x && $(CC) $(C11) $(PROGRAM) -o $@.new -x none $$libraries
endif
	@mv $@.new $@

emulated: train_gpt_emulated ## ./train_gpt_emulated: the trainer whose cuda device is the emulator

# Programs for nvcc, with the emulator in place of a GPU.
NVCC_PROGRAM = $(NVCC) -x cu $(NVCC_FLAGS) $(NVCC_EMULATED) -DEMULATED $(USE_NCCL) $(MPI_COMPILE) -Idev/emulator \
    -Xcompiler -fopenmp
build/emulated/train_gpt.o: $(PROGRAM) $(HEADERS) $(EMULATOR_HEADERS) Makefile $(BUILD)/settings | build
	@mkdir -p $(@D) && $(NVCC_PROGRAM) -c $< -o $@

train_gpt_emulated: build/emulated/train_gpt.o build/libemulator.a
	@$(CXX) $^ $(EMULATOR_LIBRARIES) $(MPI_LINK) -fopenmp -o $@

build/emulated/bench_gpu: tests/bench_gpu.c tests/median.h $(HEADERS) $(EMULATOR_HEADERS) build/libemulator.a Makefile \
    $(BUILD)/settings
	@mkdir -p $(@D) && $(NVCC_PROGRAM) -diag-suppress 177 -Xcompiler -Wno-unused-function -c $< -o $@.o && \
	$(CXX) $@.o $(EMULATOR_LIBRARIES) $(MPI_LINK) -fopenmp -o $@

EMULATED_NEEDS = $(PROGRAM) $(HEADERS) $(wildcard tests/*.h tests/kernels/*) $(EMULATOR_HEADERS) build/libemulator.a Makefile $(BUILD)/settings
EMULATED_TEST = mkdir -p $(@D) && $(NVCC_PROGRAM) -diag-suppress 177 -Xcompiler -Wno-unused-function -c $< -o $@.o && \
	$(CXX) $@.o $(EMULATOR_LIBRARIES) $(MPI_LINK) -fopenmp -lcmocka -o $@
build/emulated/test_%: tests/test_%.c $(EMULATED_NEEDS)
	@$(EMULATED_TEST)

build/emulated/properties/test_%: tests/properties/test_%.c $(EMULATED_NEEDS)
	@$(EMULATED_TEST)

build:
	@mkdir -p build

data: data/train.bin ## makes the default token files

build/make_tokens: data/make_tokens.c dev/error.h | build
	@$(CC) -std=c11 -O2 $(WARNINGS) $< -o $@

data/train.bin: build/make_tokens data/make_default.sh
	@sh data/make_default.sh build/make_tokens data

# What a test includes, the compiler says (-MMD). Tests of headers need no speed: they are compiled in a second. Kernels
# are built as the program's are.
TEST_NEEDS = Makefile scripts/libraries.sh $(BUILD)/settings
TEST_CFLAGS = $(CFLAGS)
TEST = mkdir -p $(@D) && libraries=$$(sh scripts/libraries.sh $(CC) quiet) && \
	$(CC) -std=gnu11 $(TEST_CFLAGS) -g $(NUMBERS) $(WARNINGS) $(SANITIZE) -MMD -MP -MF $@.d -MT $@ $< -o $@ $$libraries -lcmocka
$(patsubst %,$(BUILD)/%,$(filter-out kernels/%,$(UNIT_TESTS))): TEST_CFLAGS = -O1
$(BUILD)/test_%: tests/test_%.c $(TEST_NEEDS) | build
	@$(TEST)

$(BUILD)/properties/test_%: tests/properties/test_%.c $(TEST_NEEDS) | build
	@$(TEST)

$(BUILD)/kernels/test_%: tests/kernels/test_%.c $(TEST_NEEDS) | build
	@$(TEST)

-include $(wildcard $(BUILD)/*.d $(BUILD)/properties/*.d $(BUILD)/kernels/*.d)

build/emulator/%.o: dev/emulator/%.c $(EMULATOR_HEADERS) Makefile $(BUILD)/settings
	@mkdir -p $(@D) && $(CC) -std=gnu11 -D_GNU_SOURCE -O3 -g $(NUMBERS) $(WARNINGS) -I$(CUDA_HOME)/include -c $< -o $@

build/libemulator.a: $(EMULATOR_OBJECTS)
	@rm -f $@ && ar rcs $@ $^

NO_NVCC = echo "skipped, as there is no nvcc:"
emulator: $(if $(NVCC),build/libemulator.a) ## the CUDA emulator alone, a library for any program: build/libemulator.a
	@$(if $(NVCC),echo "dev/emulator/README.md says how to link a program with $<",$(NO_NVCC) $@)

# Its own tests: a program of which one half is CUDA code that nvcc makes for the emulator.
EMULATOR_TESTS = $(patsubst %,build/emulator/tests/%.o,plants families products $(if $(NCCL_HEADER),ranks))
build/emulator/tests/%.o: dev/emulator/tests/%.cu dev/emulator/tests/plants.h $(EMULATOR_HEADERS) Makefile
	@mkdir -p $(@D) && $(NVCC) $(NVCC_FLAGS) $(NVCC_EMULATED) -Idev/emulator -c $< -o $@

$(BUILD)/test_emulator: dev/emulator/tests/test_emulator.c dev/emulator/tests/plants.h $(EMULATOR_TESTS) \
    build/libemulator.a tests/test_helpers.h Makefile | build
	@mkdir -p $(@D) && $(CC) -std=gnu11 $(CFLAGS) -g $(NUMBERS) $(WARNINGS) $(USE_NCCL) -Idev/emulator -Itests \
	    -c $< -o $@.o && $(CXX) $@.o $(EMULATOR_TESTS) $(EMULATOR_LIBRARIES) -lcmocka -o $@

test-emulator: $(if $(NVCC),$(BUILD)/test_emulator) ## runs the emulator's own tests
	@$(if $(NVCC),sh tests/run.sh "$(RUN)" $<,$(NO_NVCC) $@)

build/bench_emulator: build/emulator/tests/bench.o build/libemulator.a
	@$(CXX) $^ $(EMULATOR_LIBRARIES) -o $@

build/interpose.so: tests/interpose.c | build
	@$(CC) -std=gnu11 -O2 $(WARNINGS) -shared -fPIC $< -o $@ -ldl

# The stand-in for oneDNN (tests/onednn): any program runs on it with LD_LIBRARY_PATH=build/onednn. It is compiled
# against the library's own header, and not made where that is missing.
ONEDNN_SOURCES = $(patsubst %,tests/onednn/%.c,objects onednn product)
ONEDNN_PROGRAMS = build/onednn/plants build/onednn/products
ONEDNN_COMPILE = $(CC) -std=gnu11 -O3 -g $(NUMBERS) $(WARNINGS) -fopenmp
HAS_ONEDNN = sh scripts/libraries.sh $(CC) quiet | grep -q USE_ONEDNN
build/onednn/libdnnl.so.2: $(wildcard tests/onednn/*) Makefile scripts/libraries.sh $(BUILD)/settings | build
	@$(HAS_ONEDNN) || { echo "skipped, as oneDNN is not there: $@"; exit 0; }; mkdir -p $(@D) && \
	$(ONEDNN_COMPILE) -fPIC -shared -fvisibility=hidden -DDNNL_DLL -DDNNL_DLL_EXPORTS -Xlinker -soname -Xlinker $(@F) \
	    -Xlinker -z -Xlinker defs $(ONEDNN_SOURCES) -o $@.new && mv $@.new $@

$(ONEDNN_PROGRAMS): build/onednn/%: tests/onednn/%.c build/onednn/libdnnl.so.2 $(HEADERS) Makefile
	@[ ! -e build/onednn/libdnnl.so.2 ] || \
	$(ONEDNN_COMPILE) -Wno-unused-function -DUSE_ONEDNN=1 $< -o $@ build/onednn/libdnnl.so.2 -lm -lpthread

STYLED = train_gpt.cu $(wildcard data/*.[ch] data/*.sh dev/*.h dev/kernels/* dev/emulator/*.[ch] dev/emulator/tests/*.c* \
    tests/*.[ch] tests/*.sh tests/*/*.[ch] scripts/*.sh)
check-style: ## lines, parameters and comments of the sources are within the project's rules
	@sh scripts/check_style.sh $(STYLED) && echo "check-style: $(words $(STYLED)) files"

check-readme: train_gpt data ## the README and the lessons are true: files, targets, flags, commands, pictures
	@sh scripts/check_readme.sh

# What the test programs call.
TEST_TOOLS = build/make_tokens build/interpose.so
TEST_PROGRAMS = train_gpt data build/bench build/bench_offload $(ONEDNN_PROGRAMS)
NEEDED = $(if $(RUN)$(SANITIZE),,$(TEST_PROGRAMS) $(EMULATED_BENCH))
test: $(TEST_TOOLS) $(NEEDED) $(RUN_TESTS:%=$(BUILD)/%) ## runs all tests (RUN=valgrind: the unit tests)
	@$(if $(NVCC),,echo "skipped, as there is no nvcc: $(EMULATED_TESTS)")
	@sh tests/run.sh "$(RUN)" $(RUN_TESTS:%=$(BUILD)/%)

test-machines: $(TEST_TOOLS) $(TEST_PROGRAMS) $(TESTS:%=$(BUILD)/%) ## runs what depends on the machine as on others
	@sh tests/machines.sh make

test-all: ## runs all tests with their full grids
	@TEST_ALL=1 $(MAKE) --no-print-directory test

build/bench: tests/bench.c tests/bench_helpers.h tests/median.h $(PROGRAM) $(HEADERS) Makefile scripts/libraries.sh \
    $(BUILD)/settings | build
	@libraries=$$(sh scripts/libraries.sh $(CC) quiet) && \
	$(CC) -std=gnu11 $(CFLAGS) $(NUMBERS) -Wall -Wextra $< -o $@ $$libraries

bench: build/bench ## measures the training step against the machine's matmul rate and copy bandwidth
	@build/bench

build/bench_offload: tests/bench_offload.c tests/bench_helpers.h tests/median.h $(PROGRAM) $(HEADERS) Makefile \
    scripts/libraries.sh $(BUILD)/settings | build
	@libraries=$$(sh scripts/libraries.sh $(CC) quiet) && \
	$(CC) -std=gnu11 $(CFLAGS) $(NUMBERS) -Wall -Wextra $< -o $@ $$libraries

bench-offload: build/bench_offload ## measures what offload costs, beside the disk's and memory's own bandwidth
	@cd build && ./bench_offload

table: train_gpt data ## measures the trade-off table: memory and time of every technique (build/table.md, .csv, .svg)
	@sh scripts/table.sh build/table

# STEPS in the environment: of each run. Redrawn when numbers of a plan, or scripts/picture.sh, have changed.
picture: train_gpt data ## runs without and with memory flags, draws their memory by phase (build/picture/memory.svg)
	@sh scripts/pictures.sh measure build/picture

pictures: train_gpt ## draws the pictures of the README and the lessons anew (dev/pictures)
	@sh scripts/pictures.sh draw dev/pictures

asan: ## the unit and model tests under the address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory test TESTS="$(UNIT_TESTS) test_model" CFLAGS="-O1" \
	    SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=all"

INCLUDED_TWICE = printf '\#ifndef _GNU_SOURCE\n\#define _GNU_SOURCE\n\#endif\n\#include "%s"\n\#include "%s"\n\
    int main(void) { return 0; }\n'
PLAIN_HEADERS = $(filter %.h,$(HEADERS))
NVCC_HEADERS = $(wildcard dev/kernels/*.h) $(foreach half,$(CUDA_HALVES),$(if $(wildcard $(half:.cuh=.h)),,$(half)))
check-headers: ## every header compiles alone and twice, as C, as C++ and by nvcc; CUDA halves have one place
	@for header in $(PLAIN_HEADERS); do for language in c++:-std=c++17 c:-std=c11; do \
	    $(INCLUDED_TWICE) $$header $$header | $(CC) -x $${language%%:*} $${language##*:} -march=$(ARCH) -I. $(WARNINGS) \
	    -Wno-unused-function -Werror -fsyntax-only -fopenmp - || exit 1; done; done
	@if grep -n __CUDACC__ $(CUDA_HALVES); then echo "check-headers: a .cuh is CUDA throughout" >&2; exit 1; fi
	@for half in $(CUDA_HALVES); do header=$${half%.cuh}.h; [ ! -e $$header ] || \
	    [ "$$(grep -cE "include \"([^\"]*/)?$${half##*/}\"" $(HEADERS) /dev/null | grep -v ':0$$')" = "$$header:1" ] || \
	    { echo "check-headers: $$half is to be included by $$header, in one place" >&2; exit 1; }; done
	@$(if $(NVCC),for header in $(NVCC_HEADERS); do $(INCLUDED_TWICE) $$header $$header | $(NVCC) -x cu -std=c++17 \
	    -arch=sm_80 --ptx -fdevice-syntax-only -Werror all-warnings -diag-suppress 177 -I. -o /dev/null - || exit 1; \
	    done,echo "skipped, as there is no nvcc: the CUDA halves")
	@echo "check-headers: $(words $(HEADERS)) headers"

# The same text as C11 and C++17 without warnings, and the same numbers from both programs.
check-compilers: | build ## gcc, g++ and clang compile without warnings; gcc's and g++'s programs give the same bits
	@libraries=$$(sh scripts/libraries.sh $(CC) quiet) && \
	$(CC) $(C11) -Werror $(PROGRAM) -o build/train_gpt_c -x none $$libraries && \
	$(CXX) -x c++ -std=c++17 $(CFLAGS) $(NUMBERS) $(WARNINGS) -Werror $(PROGRAM) -o build/train_gpt_cpp \
	    -x none $$libraries && \
	{ ! command -v clang >/dev/null || clang $(C11) -Werror -fsyntax-only \
	    $$(echo $$libraries | sed 's/ -[lL][^ ]*//g; s/ -Xlinker [^ ]*//g') \
	    -idirafter "$$(dirname "$$($(CC) -print-file-name=include/omp.h)")" $(PROGRAM); }
	@for precision in fp32 bf16; do for language in c cpp; do \
	    build/train_gpt_$$language -e 2x51x3 --vocab 67 -t 37 -b 3 -i random -r 2 -p $$precision -x 3 -n 3 -m 2 \
	    -o build/compilers_$$language >build/compilers_$$language.log || exit 1; done; \
	cmp build/compilers_c/checkpoint_00000003.bin build/compilers_cpp/checkpoint_00000003.bin || exit 1; done
	@WITHOUT="onednn openmp mpi" && export WITHOUT && libraries=$$(sh scripts/libraries.sh $(CC) quiet) && \
	$(CC) $(C11) -Werror $(PROGRAM) -o build/train_gpt_bare -x none $$libraries && \
	build/train_gpt_bare -e 2x51x3 --vocab 67 -t 37 -b 3 -i random -p bf16 -x 2 -m 2 -g 30 >build/compilers_bare.log
	@echo "check-compilers: no warnings, the same bits from $(CC) and $(CXX)"

# For a real GPU (scripts/gpu_check.sh): the program, the tests that need one, and the benchmark, in a folder of their
# own, since ./train_gpt may be built without CUDA.
GPU_BUILD = build/gpu
NVCC_GPU = $(NVCC) -x cu $(NVCC_FLAGS) $(GPU_TARGETS) -Xcompiler -fopenmp,-Wno-unused-function -diag-suppress 177
GPU_PROGRAMS = $(GPU_BUILD)/train_gpt $(GPU_BUILD)/bench_gpu $(GPU_BUILD)/test_kernels $(GPU_BUILD)/test_emulated
$(GPU_BUILD)/train_gpt: $(PROGRAM) $(HEADERS) Makefile $(BUILD)/settings | build
	@mkdir -p $(@D) && $(NVCC_GPU) $< -o $@ -lcublasLt

$(GPU_BUILD)/bench_gpu: tests/bench_gpu.c tests/median.h $(HEADERS) Makefile $(BUILD)/settings | build
	@mkdir -p $(@D) && $(NVCC_GPU) $< -o $@ -lcublasLt

$(GPU_BUILD)/test_%: tests/test_%.c $(PROGRAM) $(HEADERS) $(wildcard tests/*.h tests/kernels/*) Makefile $(BUILD)/settings | build
	@mkdir -p $(@D) && $(NVCC_GPU) $< -o $@ -lcublasLt -lcmocka

gpu-programs: $(GPU_PROGRAMS) ## the programs that scripts/gpu_check.sh runs on a GPU

bench-gpu: $(GPU_BUILD)/bench_gpu ## measures attention and the memory-bound kernels on the GPU that is here
	@$<

# Every target, warnings being errors; needs nvcc, no GPU.
CUDA_TARGETS = 80 86 89 90 100 120
check-cuda: | build ## nvcc compiles the program for every kind of GPU without warnings
	@$(if $(NVCC),libraries=$$($(CUDA_LIBRARIES)) && $(NVCC) -x cu $(NVCC_FLAGS) $$libraries -Werror all-warnings \
	    $(foreach target,$(CUDA_TARGETS),-gencode arch=compute_$(target)$(comma)code=sm_$(target)) \
	    -c $(PROGRAM) -o build/check_cuda.o && \
	    echo "check-cuda: sm_$(subst $(space),$(comma) sm_,$(CUDA_TARGETS))",$(NO_NVCC) $@)

gpu-resources: ## registers, shared memory, spills and resident warps of every kernel on every kind of GPU
	@$(if $(NVCC),sh scripts/gpu_resources.sh $(NVCC) -x cu $(NVCC_FLAGS) -Xcompiler -fopenmp,$(NO_NVCC) $@)

clean: ## removes what was built
	rm -rf build train_gpt train_gpt.new train_gpt_emulated data/*.bin
