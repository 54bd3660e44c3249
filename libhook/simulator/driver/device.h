/* SPDX-License-Identifier: Apache-2.0 */
/* The cards that this process sees. */
#pragma once

#include <stdatomic.h>

#include "nvshare/cuda_types.h"
#include "shared/shared_state.h"

struct context;
struct pool;

struct device {
    int ordinal;                     /* as CUDA counts, after CUDA_VISIBLE_DEVICES */
    int gpu;                         /* as shared_state.h and NVML count */
    struct context *primary;         /* made at the first retain, kept for ever */
    int retains;
    unsigned primary_flags;
    _Atomic uint32_t peers;          /* bit per device ordinal whose allocations this one may touch */
    struct pool *default_pool, *current_pool;
};

/* Finds the devices; by cuInit. */
CUresult devices_start(void);
int device_count(void);
struct device *device_at(CUdevice ordinal);  /* NULL: no such device */
static inline CUresult device_check(CUdevice ordinal)
{
    return device_at(ordinal) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
struct device *device_of_gpu(int gpu);       /* NULL: not visible to this process */
