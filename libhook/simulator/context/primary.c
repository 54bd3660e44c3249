/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts: one for each device, which those who retain it share. */
#include "context/life.h"
#include "driver/entry.h"

CUresult primary_retain(struct device *device)
{
    CUresult result = CUDA_SUCCESS;
    if (device->primary == NULL)
        device->primary = context_make(device, true);
    if (device->primary == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!atomic_load(&device->primary->alive))
        result = context_enliven(device->primary, device->primary_flags);
    device->retains += result == CUDA_SUCCESS;
    return result;
}

API(cuDevicePrimaryCtxRetain, CUcontext *handle, CUdevice ordinal)
{
    ENTER(ENTRY_INIT);
    struct device *device = device_at(ordinal);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(context_lock);
    CUresult result = primary_retain(device);
    if (result == CUDA_SUCCESS)
        *handle = (CUcontext)device->primary;
    return result;
}

/* With context_lock held. */
static void end_primary(struct device *device)
{
    if (device->primary != NULL && atomic_load(&device->primary->alive))
        context_end(device->primary);
}

bool primary_release(struct device *device)
{
    bool retained = device->retains > 0;
    device->retains -= retained;
    if (device->retains == 0)
        end_primary(device);
    return retained;
}

/* One retain too few is what the first version says nothing of. */
static CUresult release(CUdevice ordinal, CUresult too_often)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(context_lock);
    bool retained = primary_release(device);
    return retained ? CUDA_SUCCESS : too_often;
}

FORWARD(cuDevicePrimaryCtxRelease, (CUdevice device), ENTRY_INIT, release(device, CUDA_SUCCESS))
FORWARD(cuDevicePrimaryCtxRelease_v2, (CUdevice device), ENTRY_INIT,
        release(device, CUDA_ERROR_INVALID_CONTEXT))

/* Whoever retained it holds it still, empty; only the first version forgets them. */
static CUresult reset(CUdevice ordinal, bool forget)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(context_lock);
    if (forget)
        device->retains = 0;
    end_primary(device);
    return CUDA_SUCCESS;
}

FORWARD(cuDevicePrimaryCtxReset, (CUdevice device), ENTRY_INIT, reset(device, true))
FORWARD(cuDevicePrimaryCtxReset_v2, (CUdevice device), ENTRY_INIT, reset(device, false))

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~0xffu) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(context_lock);
    device->primary_flags = flags;
    if (device->primary != NULL)
        device->primary->flags = flags | CU_CTX_MAP_HOST;
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuDevicePrimaryCtxSetFlags, _v2, (CUdevice device, unsigned int flags), ENTRY_INIT,
             set_primary_flags(device, flags))
API(cuDevicePrimaryCtxGetState, CUdevice ordinal, unsigned int *flags, int *active)
{
    ENTER(ENTRY_INIT);
    struct device *device = device_at(ordinal);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(context_lock);
    *flags = device->primary_flags;
    *active = device->primary != NULL && atomic_load(&device->primary->alive);
    return CUDA_SUCCESS;
}
