/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers of functions that allocate device memory which cannot be swapped.
 */
#pragma once

#include "api/wrapper.h"
#include "memory/pinned.h"

/* Tags in the keys of pinned_remember(): handles and addresses come from several address spaces,
 * none of which uses the highest bits. */
enum counted_kind { COUNTED_ADDRESS = 1, COUNTED_ARRAY, COUNTED_MIPMAP, COUNTED_PHYSICAL };

static inline uint64_t counted_key(enum counted_kind kind, uint64_t value)
{
    return (uint64_t)kind << 60 ^ value;
}

/* The body of a wrapper that creates an object of `bytes` on the card, identified afterwards by
 * `value`. */
#define COUNTED_CREATE(name, bytes, kind, value, arguments)                \
    size_t size = (bytes);                                                 \
    CUresult result = pinned_begin(size);                                  \
    if (result != CUDA_SUCCESS)                                            \
        return result;                                                     \
    result = REAL(name) arguments;                                         \
    if (result == CUDA_SUCCESS)                                            \
        pinned_remember(counted_key(kind, (uint64_t)(value)), size);       \
    pinned_end(result == CUDA_SUCCESS ? size : 0);                         \
    return result

/* The device on which memory at this location counts; CU_DEVICE_CPU: host memory, or the driver
 * refuses the location. For a locality domain (CUDA 13.4) the lowest byte of `id` is the device. A
 * location type that only a newer driver knows is treated as a locality domain, or counts on the
 * current device: no memory of a card goes uncounted. */
static inline CUdevice counted_device(CUmemLocation location)
{
    CUdevice current, device = location.id & 0xff;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location.id;
    if (location.type == CU_MEM_LOCATION_TYPE_INVALID || location.type == CU_MEM_LOCATION_TYPE_HOST
        || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA
        || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CU_DEVICE_CPU;
    return !pinned_counts_on(device) && REAL(cuCtxGetDevice)(&current) == CUDA_SUCCESS ? current
                                                                                      : device;
}

static inline size_t counted_round(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}
