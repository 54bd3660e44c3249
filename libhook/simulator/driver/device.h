/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs that are visible to this process. */
#pragma once

#include <stdatomic.h>

#include "driver/object.h"
#include "nvshare/cuda_types.h"
#include "shared/shared_state.h"

struct context;
struct pool;

struct device {
    int ordinal;                     /* index after CUDA_VISIBLE_DEVICES, as CUDA counts */
    int gpu;                         /* index as in shared_state.h and NVML */
    struct context *primary;         /* created at the first retain, never freed */
    int retains;
    _Atomic uint32_t peers;          /* bit n: may access memory of device n */
    struct pool *default_pool, *current_pool;
};

/* FAIL_IF returns `error` from the calling function if the condition holds, TRY a call's error. */
#define FAIL_IF(condition, error)                                                        \
    do {                                                                                 \
        if (condition)                                                                   \
            return error;                                                                \
    } while (0)
#define TRY(call)                                                                        \
    do {                                                                                 \
        CUresult tried_ = call;                                                          \
        if (tried_ != CUDA_SUCCESS)                                                      \
            return tried_;                                                               \
    } while (0)

/* Declares the object of a handle; returns an error from the calling function if there is none. */
#define FIND(structure, name, found, error)                                              \
    structure *name = found;                                                             \
    FAIL_IF(name == NULL, error)
#define FIND_DEVICE(ordinal)                                                             \
    FIND(struct device, device, device_at(ordinal), CUDA_ERROR_INVALID_DEVICE)

/* Stores `value`, unless the program passes NULL as the pointer. */
#define GIVE_IF(pointer, value)                                                          \
    do {                                                                                 \
        if ((pointer) != NULL)                                                           \
            *(pointer) = (value);                                                        \
    } while (0)

/* Called by cuInit: finds the devices. */
CUresult devices_start(void);
int device_count(void);
struct device *device_at(CUdevice ordinal);  /* NULL: no such device */
static inline CUresult device_check(CUdevice ordinal)
{
    return device_at(ordinal) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
struct device *device_of_gpu(int gpu);       /* NULL: not visible to this process */
