/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the arguments of all copy functions to one kind of work. */
#pragma once

#include "engine/work.h"

/* A side of a copy, given by a host pointer, a device pointer, or an address of either kind. */
struct side side_host(const void *pointer);
struct side side_device(CUdeviceptr address);
struct side side_unified(CUdeviceptr address);

struct work copy_line(struct side to, struct side from, size_t bytes);
CUresult copy_from_2d(const CUDA_MEMCPY2D *copy, struct work *work);
CUresult copy_from_3d(const CUDA_MEMCPY3D *copy, struct work *work);
CUresult copy_from_peer(const CUDA_MEMCPY3D_PEER *copy, struct work *work);

/* Whether all bytes of a copy or fill lie in allocations or mappings. Other work is valid. */
bool work_is_valid(const struct work *work, const struct device *device);
