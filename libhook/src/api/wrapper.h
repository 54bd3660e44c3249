/* SPDX-License-Identifier: Apache-2.0 */
/* Building blocks of wrappers. */
#pragma once

#include "driver/real.h"
#include "gate/gate.h"
#include "memory/pinned.h"

/* Visible to programs. The library's own references bind to this definition. */
#define EXPORT __attribute__((visibility("protected")))

/* In a variant for per-thread default streams NULL means the thread's own. */
#define PER_THREAD(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

/* Repeats a call, which failed without effect, while the daemon grants more room. */
#define AGAIN_WITH_ROOM(result, call)                                                     \
    for (struct room room = { 0 };                                                        \
         __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && room_begin(&room);) { \
        result = call;                                                                    \
        pinned_end(0);                                                                    \
    }

/* Tags in keys of pinned_remember(): handles and addresses do not use the highest bits. */
enum counted_kind {
    COUNTED_ADDRESS = 1, COUNTED_ARRAY, COUNTED_MIPMAP, COUNTED_HANDLE, COUNTED_MAPPING,
};

static inline uint64_t counted_key(enum counted_kind kind, uint64_t value)
{
    return (uint64_t)kind << 60 ^ value;
}

/* The body of a wrapper that creates an object which cannot be swapped: its `bytes` bytes are
 * counted as pinned. `value`: the handle or address of the object, after the call. */
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

/* The wrapper that destroys an object of COUNTED_CREATE. */
#define COUNTED_DESTROY(name, kind, type)                                  \
    EXPORT CUresult name(type object)                                      \
    {                                                                      \
        CUresult result = REAL(name)(object);                              \
        if (result == CUDA_SUCCESS)                                        \
            pinned_forget(counted_key(kind, (uint64_t)object));            \
        return result;                                                     \
    }

/* The device on which memory counts; CU_DEVICE_CPU: host memory, or invalid. For a locality domain
 * (CUDA 13.4), or an unknown type, the lowest byte of `id` is the device, or else the current one:
 * no memory goes uncounted. */
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
