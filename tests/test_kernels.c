// test_kernels.c - every operation against its equation on CUDA: all kernels of tests/kernels in one program.
//
// One, since nvcc takes half a minute for all of them together, and up to half of that for each alone. On the CPU each
// file is a program of its own, which compiles in seconds. This one is for the emulator (build/emulated/test_kernels)
// and for a GPU (scripts/gpu_check.sh). An argument: the tests to run, such as 'attention_*'.
#define ALL_KERNELS

#include "kernels/test_encoder.c"
#include "kernels/test_layernorm.c"
#include "kernels/test_residual.c"
#include "kernels/test_gelu.c"
#include "kernels/test_classifier.c"
#include "kernels/test_matmul.c"
#include "kernels/test_bias.c"
#include "kernels/test_attention.c"
#include "kernels/test_norm.c"
#include "kernels/test_adamw.c"
#include "kernels/test_device.c"

int main(int argc, char **argv) {
    const Group groups[] = {ENCODER_GROUP, LAYERNORM_GROUP, RESIDUAL_GROUP, GELU_GROUP, CLASSIFIER_GROUP, MATMUL_GROUP,
                            BIAS_GROUP, ATTENTION_GROUP, NORM_GROUP, ADAMW_GROUP, DEVICE_GROUP};
    return group_main(groups, sizeof(groups) / sizeof(groups[0]), argc, argv);
}
