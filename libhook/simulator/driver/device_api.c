/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/device.h"
#include "driver/entry.h"

GETTER(cuDeviceGet, (CUdevice *device, int ordinal), ENTRY_INIT, device, device_check(ordinal),
       ordinal)

GETTER(cuDeviceGetCount, (int *count), ENTRY_INIT, count, CUDA_SUCCESS, device_count())

API(cuDeviceGetName, char *name, int length, CUdevice device)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(name == NULL || length <= 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(device) == NULL, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)length, "%s", SHARED_GPU_NAME);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    FAIL_IF(uuid == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(device) == NULL, CUDA_ERROR_INVALID_DEVICE);
    shared_uuid(device_at(device)->gpu, (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuDeviceGetUuid, _v2, (CUuuid *uuid, CUdevice device), ENTRY_INIT,
             get_uuid(uuid, device))

GETTER(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), ENTRY_INIT, bytes,
       device_check(device), shared_total(device_at(device)->gpu))

API(cuDeviceGetPCIBusId, char *text, int length, CUdevice device)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(text == NULL || length < 13, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(device) == NULL, CUDA_ERROR_INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02X:00.0", shared_pci_bus(device_at(device)->gpu));
    return CUDA_SUCCESS;
}

GETTER(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), ENTRY_INIT, can,
       device_at(device) != NULL ? device_check(peer) : CUDA_ERROR_INVALID_DEVICE, device != peer)

#define LAST_ATTRIBUTE 147           /* of CUDA 13.0 */

static int value_of(const struct device *device, int attribute)
{
    const int BUS = (int)shared_pci_bus(device->gpu);
    const char *concurrent = secure_getenv("NVSHARE_SIM_CONCURRENT");
    const int CONCURRENT = concurrent == NULL || strcmp(concurrent, "0") != 0;
    switch (attribute) {
#define ATTRIBUTE(name, number, value) case number: return value;
#include "driver/attributes.def"
#undef ATTRIBUTE
    }
    return 0;
}

API(cuDeviceGetAttribute, int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(value == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(device) == NULL, CUDA_ERROR_INVALID_DEVICE);
    FAIL_IF((int)attribute < 1 || attribute > LAST_ATTRIBUTE, CUDA_ERROR_INVALID_VALUE);
    *value = value_of(device_at(device), (int)attribute);
    return CUDA_SUCCESS;
}
