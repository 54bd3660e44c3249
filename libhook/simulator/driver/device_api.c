/* SPDX-License-Identifier: Apache-2.0 */
/* What programs ask of devices. */
#include <stdio.h>

#include "driver/device.h"
#include "driver/entry.h"

API(cuDeviceGet, CUdevice *device, int ordinal)
{
    ENTER(ENTRY_INIT);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API(cuDeviceGetCount, int *count)
{
    ENTER(ENTRY_INIT);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
}

API(cuDeviceGetName, char *name, int length, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (name == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", SHARED_GPU_NAME);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    shared_uuid(device_at(device)->gpu, (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

FORWARD(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device), ENTRY_INIT, get_uuid(uuid, device))
FORWARD(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device), ENTRY_INIT, get_uuid(uuid, device))

API(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = shared_total(device_at(device)->gpu);
    return CUDA_SUCCESS;
}

API(cuDeviceTotalMem, unsigned int *bytes, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    size_t total = shared_total(device_at(device)->gpu);
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
    return CUDA_SUCCESS;
}

API(cuDeviceGetPCIBusId, char *text, int length, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (text == NULL || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)length, "0000:%02X:00.0", shared_pci_bus(device_at(device)->gpu));
    return CUDA_SUCCESS;
}

API(cuDeviceGetByPCIBusId, CUdevice *device, const char *text)
{
    ENTER(ENTRY_INIT);
    unsigned domain = 0, bus, slot, function = 0;
    if (device == NULL || text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < device_count(); i++)
        if (domain == 0 && slot == 0 && bus == shared_pci_bus(device_at(i)->gpu)) {
            *device = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

API(cuDeviceCanAccessPeer, int *can, CUdevice device, CUdevice peer)
{
    ENTER(ENTRY_INIT);
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL || device_at(peer) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

API(cuDeviceGetP2PAttribute, int *value, CUdevice_P2PAttribute attribute, CUdevice device,
    CUdevice peer)
{
    ENTER(ENTRY_INIT);
    if (value == NULL || attribute < 1 || (int)attribute > 5)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL || device_at(peer) == NULL || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && (int)attribute != 5;
    return CUDA_SUCCESS;
}
