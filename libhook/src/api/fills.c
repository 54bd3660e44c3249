/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills. Unlike a copy one can be captured while nothing is mapped at its
 * address (measured on driver 580), which is looked up when the graph is
 * instantiated.
 */
#include "api/wrapper.h"

GATED_PTDS(cuMemsetD8_v2, GATE_NO_STREAM,
    (CUdeviceptr to, unsigned char value, size_t count),
    (to, value, count))
GATED_PTDS(cuMemsetD16_v2, GATE_NO_STREAM,
    (CUdeviceptr to, unsigned short value, size_t count),
    (to, value, count))
GATED_PTDS(cuMemsetD32_v2, GATE_NO_STREAM,
    (CUdeviceptr to, unsigned int value, size_t count),
    (to, value, count))
GATED_PTDS(cuMemsetD2D8_v2, GATE_NO_STREAM,
    (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
    (to, pitch, value, width, height))
GATED_PTDS(cuMemsetD2D16_v2, GATE_NO_STREAM,
    (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
    (to, pitch, value, width, height))
GATED_PTDS(cuMemsetD2D32_v2, GATE_NO_STREAM,
    (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height),
    (to, pitch, value, width, height))

GATED_PTSZ(cuMemsetD8Async, stream,
    (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
    (to, value, count, stream))
GATED_PTSZ(cuMemsetD16Async, stream,
    (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
    (to, value, count, stream))
GATED_PTSZ(cuMemsetD32Async, stream,
    (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
    (to, value, count, stream))
GATED_PTSZ(cuMemsetD2D8Async, stream,
    (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
     CUstream stream),
    (to, pitch, value, width, height, stream))
GATED_PTSZ(cuMemsetD2D16Async, stream,
    (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
     CUstream stream),
    (to, pitch, value, width, height, stream))
GATED_PTSZ(cuMemsetD2D32Async, stream,
    (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
     CUstream stream),
    (to, pitch, value, width, height, stream))

/* With the 32-bit addresses of CUDA 2 and 3.0. */

GATED(cuMemsetD8, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned char value, unsigned int count),
    (to, value, count))
GATED(cuMemsetD16, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned short value, unsigned int count),
    (to, value, count))
GATED(cuMemsetD32, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned int value, unsigned int count),
    (to, value, count))
GATED(cuMemsetD2D8, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width,
     unsigned int height),
    (to, pitch, value, width, height))
GATED(cuMemsetD2D16, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width,
     unsigned int height),
    (to, pitch, value, width, height))
GATED(cuMemsetD2D32, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, unsigned int pitch, unsigned int value, unsigned int width,
     unsigned int height),
    (to, pitch, value, width, height))
