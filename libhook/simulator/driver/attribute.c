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
