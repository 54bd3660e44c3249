/* SPDX-License-Identifier: Apache-2.0 */
/* What devices say of themselves. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "driver/device.h"
#include "driver/entry.h"

static int value_of(const struct device *device, int attribute, int *value)
{
    const int BUS = (int)shared_pci_bus(device->gpu);
    const char *concurrent = secure_getenv("NVSHARE_SIM_CONCURRENT");
    const int CONCURRENT = concurrent == NULL || strcmp(concurrent, "0") != 0;
    switch (attribute) {
#define ATTRIBUTE(name, number, is) case number: *value = is; return 1;
#include "driver/attributes.def"
#undef ATTRIBUTE
    }
    return 0;
}

API(cuDeviceGetAttribute, int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return value_of(device_at(device), (int)attribute, value) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

API(cuDeviceGetProperties, CUdevprop *properties, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *properties = (CUdevprop){
        .maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535}, .sharedMemPerBlock = 49152,
        .totalConstantMemory = 65536, .SIMDWidth = 32, .memPitch = 2147483647,
        .regsPerBlock = 65536, .clockRate = 1980000, .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

API(cuDeviceGetTexture1DLinearMaxWidth, size_t *width, CUarray_format format, unsigned channels,
    CUdevice device)
{
    ENTER(ENTRY_INIT);
    (void)format;
    if (width == NULL || channels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *width = 268435456;
    return CUDA_SUCCESS;
}

API(cuDeviceGetExecAffinitySupport, int *supported, CUexecAffinityType type, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (supported == NULL || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *supported = 0;
    return CUDA_SUCCESS;
}
