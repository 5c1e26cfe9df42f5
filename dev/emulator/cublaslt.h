// cublaslt.h - what the two halves of the cuBLASLt stand-in share: the objects behind its handles.
//
// Invariant: an object is used only between its creation and its destruction, and is what the caller says it is.
#ifndef EMULATOR_CUBLASLT_H
#define EMULATOR_CUBLASLT_H

#include <cublasLt.h>

#include "state.h"

typedef enum { OBJECT_HANDLE, OBJECT_DESC, OBJECT_LAYOUT, OBJECT_PREFERENCE } ObjectKind;

typedef struct MatmulDesc {
    int32_t compute, scale, pointer_mode, trans_a, trans_b, trans_c, bias_type, aux_type, sm_count;
    uint32_t epilogue;
    int8_t fast_accumulation;
    void *bias, *aux;
    int64_t aux_ld, aux_stride, bias_stride;
} MatmulDesc;

typedef struct MatrixLayout {
    uint32_t type;
    int32_t order, batches;
    uint64_t rows, columns;
    int64_t ld, stride;
} MatrixLayout;

typedef struct MatmulPreference {
    uint32_t search_mode, reduction_mask, alignment[4];
    uint64_t workspace, implementation_mask;
    float most_waves;
} MatmulPreference;

// What a cublasLtMatmulAlgo_t holds here: self-contained, so that it may be written to a file.
typedef struct Algorithm {
    uint32_t magic, id;
    uint32_t splits, scheme, tile, stages;
    uint64_t problem;      // hash of what it was found for
    uint64_t workspace;    // bytes it needs
    uint8_t alignment[4];  // log2 of the bytes that A, B, C, D were promised to be aligned to
} Algorithm;

enum { ALGORITHM_MAGIC = 0x454d4c54 };

void *object_checked(const void *handle, ObjectKind kind, const char *call);

#endif
