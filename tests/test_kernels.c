// test_kernels.c - every operation against its equation: the tests of all kernels (tests/kernels) in one program.
//
// One, since the half of it that nvcc makes takes long, and they share it; for one kernel alone, on the CPU:
// make build/kernels/test_layernorm. An argument: the tests to run, such as 'attention_*'.
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
