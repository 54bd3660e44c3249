/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of more than one line, or of many at once, between memory of ours on two cards that do not
 * reach each other. As for single lines (peers.h), the driver must be told of both contexts.
 */
#pragma once

#include "driver/driver.h"

/* Whether it is such a copy; then *peer is the same for cuMemcpy3DPeer. */
bool apart_2d(const CUDA_MEMCPY2D *copy, CUDA_MEMCPY3D_PEER *peer);
bool apart_3d(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D_PEER *peer);

/* Many lines at once, as cuMemcpyBatchAsync() has them. */
struct apart_batch {
    const CUdeviceptr *to, *from;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *indices;
    size_t attribute_count;
    CUstream stream;
};

/* Whether any of them is. Then these submit one after the other, which the driver's rules allow.
 * *failed, if it is not NULL, is set as the driver does. */
bool apart_lines(const struct apart_batch *batch);
CUresult apart_copy_lines(const struct apart_batch *batch, size_t *failed);
bool apart_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations,
                      unsigned long long flags, CUstream stream);
CUresult apart_copy_operations(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
                               CUstream stream);
