/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of more than one line, and batches of copies, between memory of this library on two cards
 * that cannot access each other's memory. As for single lines (peers.h), the driver call must name
 * both contexts.
 */
#pragma once

#include "driver/driver.h"

/* Whether `copy` is such a copy; if so, *peer describes the same copy for cuMemcpy3DPeer. */
bool apart_2d(const CUDA_MEMCPY2D *copy, CUDA_MEMCPY3D_PEER *peer);
bool apart_3d(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D_PEER *peer);

/* A batch of lines: the parameters of cuMemcpyBatchAsync(). */
struct apart_batch {
    const CUdeviceptr *to, *from;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *indices;
    size_t attribute_count;
    CUstream stream;
};

/* apart_lines() and apart_operations(): whether a batch contains such a copy. If so, the apart_copy
 * functions submit its copies one after the other, which the driver's rules allow. *failed, if not
 * NULL, is set as by the driver. */
bool apart_lines(const struct apart_batch *batch);
CUresult apart_copy_lines(const struct apart_batch *batch, size_t *failed);
bool apart_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations,
                      unsigned long long flags, CUstream stream);
CUresult apart_copy_operations(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
                               CUstream stream);
