/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin linked against the driver. It works on memory that the program passes to the plugin, or
 * that the plugin allocates. */
#include <stddef.h>

#include "driver.h"

int plugin_copy(CUdeviceptr to, CUdeviceptr from, size_t size);
int plugin_alone(void);

/* A pointer to the function, which the loader binds when the plugin is opened. */
static CUresult (*const copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = cuMemcpyDtoDAsync_v2;

int plugin_copy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    int half = cuMemcpyDtoDAsync_v2(to, from, size / 2, NULL);
    int rest = copy(to + size / 2, from + size / 2, size - size / 2, NULL);
    int end = cuStreamSynchronize(NULL);
    return half != 0 ? half : rest != 0 ? rest : end;
}

/* Returns whether all calls have succeeded. */
int plugin_alone(void)
{
    static unsigned char bytes[1 << 20];
    CUdeviceptr address;
    size_t right = 0;
    CUcontext context;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0
        || cuCtxSetCurrent(context) != 0 || cuMemAlloc_v2(&address, sizeof bytes) != 0
        || cuMemsetD8_v2(address, 9, sizeof bytes) != 0
        || cuMemcpyDtoH_v2(bytes, address, sizeof bytes) != 0)
        return 0;
    while (right < sizeof bytes && bytes[right] == 9)
        right++;
    return right == sizeof bytes;
}
