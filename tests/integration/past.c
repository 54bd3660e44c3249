/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin linked against the driver. It works on memory that the program passes to the plugin, or
 * that the plugin allocates. */
#include <stddef.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemsetD8_v2(unsigned long long, unsigned char, size_t);
int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
int cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, void *);
int cuStreamSynchronize(void *);

int plugin_copy(unsigned long long to, unsigned long long from, size_t size);
int plugin_alone(void);

/* A pointer to the function, which the loader binds when the plugin is opened. */
static int (*const copy)(unsigned long long, unsigned long long, size_t, void *)
    = cuMemcpyDtoDAsync_v2;

int plugin_copy(unsigned long long to, unsigned long long from, size_t size)
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
    unsigned long long address;
    size_t right = 0;
    void *context;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0
        || cuCtxSetCurrent(context) != 0 || cuMemAlloc_v2(&address, sizeof bytes) != 0
        || cuMemsetD8_v2(address, 9, sizeof bytes) != 0
        || cuMemcpyDtoH_v2(bytes, address, sizeof bytes) != 0)
        return 0;
    while (right < sizeof bytes && bytes[right] == 9)
        right++;
    return right == sizeof bytes;
}
