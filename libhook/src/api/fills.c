/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills. Unlike a copy, a fill can be captured while nothing is mapped at its address (measured on
 * driver 580): the driver looks the address up when the graph is instantiated.
 */
#include "api/wrapper.h"

/* For the type of the elements: lines and planes, synchronous and in a stream. */
#define FILLS(name, type)                                                                     \
    GATED_PTDS(cuMemsetD##name##_v2, GATE_NO_STREAM,                                          \
        (CUdeviceptr to, type value, size_t count),                                           \
        (to, value, count))                                                                   \
    GATED_PTDS(cuMemsetD2D##name##_v2, GATE_NO_STREAM,                                        \
        (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),              \
        (to, pitch, value, width, height))                                                    \
    GATED_PTSZ(cuMemsetD##name##Async, stream,                                                \
        (CUdeviceptr to, type value, size_t count, CUstream stream),                          \
        (to, value, count, stream))                                                           \
    GATED_PTSZ(cuMemsetD2D##name##Async, stream,                                              \
        (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,               \
         CUstream stream),                                                                    \
        (to, pitch, value, width, height, stream))                                            \
    /* Variants with the 32-bit addresses of CUDA 2 and 3.0. */                               \
    GATED(cuMemsetD##name, GATE_NO_STREAM,                                                    \
        (CUdeviceptr_v1 to, type value, unsigned int count),                                  \
        (to, value, count))                                                                   \
    GATED(cuMemsetD2D##name, GATE_NO_STREAM,                                                  \
        (CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width,               \
         unsigned int height),                                                                \
        (to, pitch, value, width, height))

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
