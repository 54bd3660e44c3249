/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of every shape, advice on managed memory, and what contexts and streams remember. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

void shapes(void)
{
    begin();
    CUdeviceptr p, q;
    CUarray array;
    char host[4096];
    memset(host, 0, sizeof host);
    cuMemAlloc(&p, 65536);
    cuMemAlloc(&q, 65536);
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 64,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = 512,
                          .WidthInBytes = 64, .Height = 4};
    ASK(cuMemcpy2D(&flat));
    flat.srcPitch = 32;
    ASK(cuMemcpy2D(&flat));
    flat.srcPitch = 0;
    ASK(cuMemcpy2D(&flat));
    flat.Height = 0;
    ASK(cuMemcpy2D(&flat));
    flat.Height = 4;
    flat.WidthInBytes = 0;
    ASK(cuMemcpy2D(&flat));
    flat.WidthInBytes = 64;
    flat.srcMemoryType = 9;
    ASK(cuMemcpy2D(&flat));
    flat.srcMemoryType = CU_MEMORYTYPE_HOST;
    flat.Height = 1000;
    ASK(cuMemcpy2D(&flat));
    ASK(cuMemcpy2DUnaligned(NULL));
    CUDA_MEMCPY3D deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = 64,
                          .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = q,
                          .dstPitch = 128, .dstHeight = 8, .WidthInBytes = 64, .Height = 4,
                          .Depth = 3};
    ASK(cuMemcpy3D(&deep));
    deep.Depth = 0;
    ASK(cuMemcpy3D(&deep));
    deep.Depth = 3;
    deep.srcHeight = 2;
    ASK(cuMemcpy3D(&deep));
    deep.srcHeight = 4;
    deep.srcLOD = 1;
    ASK(cuMemcpy3D(&deep));
    CUDA_ARRAY_DESCRIPTOR shape = {64, 4, CU_AD_FORMAT_FLOAT, 1};
    ASK(cuArrayCreate(&array, &shape));
    ASK(cuMemcpyHtoA(array, 0, host, 64));
    ASK(cuMemcpyAtoH(host, array, 0, 64));
    ASK(cuArrayDestroy(array));
    shape.NumChannels = 3;
    ASK(cuArrayCreate(&array, &shape));
    shape.NumChannels = 1;
    shape.Width = 0;
    ASK(cuArrayCreate(&array, &shape));
    ASK(cuMemsetD2D8(p, 16, 1, 64, 4));
    ASK(cuMemsetD2D8(p, 64, 1, 16, 4));
    ASK(cuMemsetD2D32(p, 64, 1, 0, 4));
    ASK(cuMemsetD16(p + 1, 1, 4));
    ASK(cuMemcpyPeer(p, context, q, context, 64));
    ASK(cuMemcpyPeer(p, NULL, q, context, 64));
    ASK(cuCtxSynchronize());
}

void batches(void)
{
    begin();
    CUstream stream;
    CUdeviceptr p, to[2], from[2];
    size_t sizes[2] = {64, 64}, indices[1] = {0};
    CUmemcpyAttributes attributes[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&p, 4096);
    to[0] = p;
    to[1] = p + 64;
    from[0] = p + 1024;
    from[1] = p + 2048;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, stream));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, NULL));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, CU_STREAM_PER_THREAD));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 0, attributes, indices, 1, stream));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, stream));
    sizes[1] = 0;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, stream));
    sizes[1] = 64;
    to[1] = reserve(BLOCK);
    from[1] = p;
    to[0] = p + 4096 - 8;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 1, attributes, indices, 1, stream));
    ASK(cuStreamSynchronize(stream));
    ASK(cuCtxSynchronize());
}

void managed_memory(void)
{
    begin();
    CUdeviceptr p, plain;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemLocation none = {CU_MEM_LOCATION_TYPE_DEVICE, 99}, odd = {77, 0};
    int value = 77;
    cuMemAlloc(&plain, 65536);
    ASK(cuMemAllocManaged(&p, 65536, CU_MEM_ATTACH_GLOBAL));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, none));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, odd));
    ASK(cuMemAdvise(p, 0, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemAdvise(p, 65536, 77, here));
    ASK(cuMemAdvise(plain, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemPrefetchAsync(p, 65536, here, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, host, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, none, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, here, 1, NULL));
    ASK(cuMemPrefetchAsync(p, 0, here, 0, NULL));
    ASK(cuMemPrefetchAsync(plain, 65536, here, 0, NULL));
    ASK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 65536));
    tell("mostly read", value);
    ASK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 65536));
    ASK(launch_fill(p, 8192, NULL));
    ASK(cuCtxSynchronize());
    tell("the processor sees it", *(uint64_t *)(uintptr_t)p == 1);
    *(uint64_t *)(uintptr_t)p = 5;
    uint64_t got;
    ASK(cuMemcpyDtoH(&got, p, 8));
    tell("and the card", got == 5);
    ASK(cuMemcpyHtoD(p + 65536 - 4, &got, 8));
    ASK(cuMemFreeHost((void *)(uintptr_t)p));
    ASK(cuMemFree(p));
}

void settings(void)
{
    begin();
    size_t size;
    int value;
    CUfunc_cache cache;
    ASK(cuCtxGetLimit(&size, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH));
    ASK(cuCtxGetLimit(&size, 50));
    ASK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
    ASK(cuCtxGetLimit(&size, CU_LIMIT_MALLOC_HEAP_SIZE));
    tell("heap", (long long)size);
    ASK(cuDeviceGetAttribute(&value, 0, 0));
    ASK(cuDeviceGetAttribute(&value, 5000, 0));
    ASK(cuDeviceGetAttribute(&value, 1, 77));
    ASK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    ASK(cuCtxGetCacheConfig(&cache));
    tell("cache", cache);
    CUstream a, b;
    CUstreamAttrValue attribute;
    cuStreamCreate(&a, 0);
    cuStreamCreateWithPriority(&b, 0, -3);
    memset(&attribute, 0, sizeof attribute);
    ASK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    tell("priority", attribute.priority);
    attribute.priority = -1;
    ASK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    ASK(cuStreamGetPriority(a, &value));
    tell("priority", value);
    ASK(cuStreamCopyAttributes(a, b));
    ASK(cuStreamGetPriority(a, &value));
    tell("priority", value);
    ASK(cuProfilerStart());
    ASK(cuProfilerStop());
    ASK(cuDeviceGetPCIBusId((char *)&attribute, 5, 0));
    ASK(cuDeviceGetByPCIBusId(&value, "nonsense"));
    ASK(cuDeviceGetByPCIBusId(&value, "0000:FE:1F.0"));
}
