/* SPDX-License-Identifier: Apache-2.0 */
/* What a device's graphs hold of its memory. */
#include "driver/device.h"
#include "driver/entry.h"
#include "space/graph_memory.h"

API(cuDeviceGetGraphMemAttribute, CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    ENTER(ENTRY_INIT);
    const struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
        && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        return CUDA_ERROR_NOT_SUPPORTED;     /* no high marks */
    LOCKED(engine_lock);
    *(cuuint64_t *)value =
        graph_memory_bytes(device, attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    return CUDA_SUCCESS;
}

API(cuDeviceGraphMemTrim, CUdevice ordinal)
{
    ENTER(ENTRY_INIT);
    const struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(engine_lock);
    graph_memory_trim(device);
    return CUDA_SUCCESS;
}
