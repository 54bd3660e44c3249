/* SPDX-License-Identifier: Apache-2.0 */
/* Building blocks of wrappers. */
#pragma once

#include "driver/real.h"
#include "gate/gate.h"
#include "memory/pinned.h"

/* SIGNATURE() declares the wrapper of a function with parameters p1, p2 and so on of the given
 * types. CALL() passes these to the driver's function. */
#define EACH_1(X, a) X(a, p1)
#define EACH_2(X, a, b) EACH_1(X, a), X(b, p2)
#define EACH_3(X, a, b, c) EACH_2(X, a, b), X(c, p3)
#define EACH_4(X, a, b, c, d) EACH_3(X, a, b, c), X(d, p4)
#define EACH_5(X, a, b, c, d, e) EACH_4(X, a, b, c, d), X(e, p5)
#define EACH_6(X, a, b, c, d, e, f) EACH_5(X, a, b, c, d, e), X(f, p6)
#define EACH_7(X, a, b, c, d, e, f, g) EACH_6(X, a, b, c, d, e, f), X(g, p7)
#define EACH_8(X, a, b, c, d, e, f, g, h) EACH_7(X, a, b, c, d, e, f, g), X(h, p8)
#define EACH_9(X, a, b, c, d, e, f, g, h, i) EACH_8(X, a, b, c, d, e, f, g, h), X(i, p9)
#define EACH_10(X, a, b, c, d, e, f, g, h, i, j) EACH_9(X, a, b, c, d, e, f, g, h, i), X(j, p10)
#define EACH_11(X, a, b, c, d, e, f, g, h, i, j, k)                                \
    EACH_10(X, a, b, c, d, e, f, g, h, i, j), X(k, p11)
#define SELECT(a, b, c, d, e, f, g, h, i, j, k, each, ...) each
#define EACH(X, ...)                                                                              \
    SELECT(__VA_ARGS__, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, \
           EACH_2, EACH_1, )(X, __VA_ARGS__)
#define UNWRAP(...) __VA_ARGS__
#define DECLARE(type, name) type name
#define PASS(type, name) name
#define SIGNATURE(name, parameters) CUresult name(EACH(DECLARE, UNWRAP parameters))
#define CALL(name, parameters) REAL(name)(EACH(PASS, UNWRAP parameters))

/* Calls the driver unless `served`, which may set `result` by FAILED() or INVALID_IF(), is true. */
#define SERVED(name, served, parameters)                                   \
    SIGNATURE(name, parameters)                                            \
    {                                                                      \
        CUresult result = CUDA_SUCCESS;                                    \
        return (served) ? result : CALL(name, parameters);                 \
    }

#define FAILED(call) ((result = (call)) != CUDA_SUCCESS)
#define INVALID_IF(condition) FAILED((condition) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)

/* Executes `note` if the driver's call has succeeded. */
#define NOTED(name, note, parameters)                                      \
    SIGNATURE(name, parameters)                                            \
    {                                                                      \
        CUresult result = CALL(name, parameters);                          \
        if (result == CUDA_SUCCESS)                                        \
            note;                                                          \
        return result;                                                     \
    }

/* In functions for per-thread default streams (_ptsz) NULL means the thread's default stream. */
#define PER_THREAD(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

/* Repeats a call that failed without effect for lack of memory, while the daemon grants room. */
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

/* The body of a wrapper that creates an object which cannot be swapped: its `bytes` bytes, for
 * which `begin` has waited, count as pinned. `object`: the handle or address after `call`. */
#define COUNTED_CREATE(begin, bytes, kind, object, call)                   \
    CUresult created = (begin);                                            \
    if (created != CUDA_SUCCESS)                                           \
        return created;                                                    \
    created = (call);                                                      \
    if (created == CUDA_SUCCESS)                                           \
        pinned_remember(counted_key(kind, (uint64_t)(object)), bytes);     \
    pinned_end(created == CUDA_SUCCESS ? (bytes) : 0);                     \
    return created

/* The wrapper of a function that stores the created object in *p1. */
#define COUNTED(name, bytes, kind, parameters)                                       \
    SIGNATURE(name, parameters)                                                      \
    {                                                                                \
        const size_t size = (bytes);                                                 \
        COUNTED_CREATE(pinned_begin(size), size, kind, *p1, CALL(name, parameters)); \
    }

/* The wrapper that destroys an object of COUNTED(). */
#define COUNTED_DESTROY(name, kind, type)                                  \
    NOTED(name, pinned_forget(counted_key(kind, (uint64_t)p1)), (type))

/* The device to which memory at `location` counts; CU_DEVICE_CPU: host memory, or an invalid
 * location. For a locality domain (CUDA 13.4) or an unknown type, so that no memory goes uncounted:
 * the device in the lowest byte of `id` or, if that has no client, the current device. */
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
