/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points that the tests call, under the names and in the
 * versions that cuda.h 13.0 gives them. With NVSHARE_CHECK_CUDA_H cuda.h itself.
 */
#pragma once

#ifdef NVSHARE_CHECK_CUDA_H
#include <cuda.h>
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int gx, unsigned int gy,
    unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
    CUstream stream, void **parameters, void **extra);
#else
#include "nvshare/cuda_types.h"

#define cuArrayCreate cuArrayCreate_v2
#define cuCtxCreate cuCtxCreate_v4
#define cuCtxDestroy cuCtxDestroy_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
#define cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuEventElapsedTime cuEventElapsedTime_v2
#define cuGetProcAddress cuGetProcAddress_v2
#define cuGraphAddDependencies cuGraphAddDependencies_v2
#define cuGraphAddKernelNode cuGraphAddKernelNode_v2
#define cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
#define cuGraphExecUpdate cuGraphExecUpdate_v2
#define cuGraphInstantiate cuGraphInstantiateWithFlags
#define cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2
#define cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
#define cuIpcOpenMemHandle cuIpcOpenMemHandle_v2
#define cuMemAdvise cuMemAdvise_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocPitch cuMemAllocPitch_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetAddressRange cuMemGetAddressRange_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuMemPrefetchAsync cuMemPrefetchAsync_v2
#define cuMemcpy2D cuMemcpy2D_v2
#define cuMemcpy2DAsync cuMemcpy2DAsync_v2
#define cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2
#define cuMemcpy3D cuMemcpy3D_v2
#define cuMemcpy3DAsync cuMemcpy3DAsync_v2
#define cuMemcpyAtoH cuMemcpyAtoH_v2
#define cuMemcpyBatchAsync cuMemcpyBatchAsync_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyHtoA cuMemcpyHtoA_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemsetD16 cuMemsetD16_v2
#define cuMemsetD2D16 cuMemsetD2D16_v2
#define cuMemsetD2D32 cuMemsetD2D32_v2
#define cuMemsetD2D8 cuMemsetD2D8_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuMemsetD8 cuMemsetD8_v2
#define cuModuleGetGlobal cuModuleGetGlobal_v2
#define cuStreamBatchMemOp cuStreamBatchMemOp_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v3
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#define cuStreamWaitValue64 cuStreamWaitValue64_v2
#define cuStreamWriteValue32 cuStreamWriteValue32_v2
#define cuStreamWriteValue64 cuStreamWriteValue64_v2

CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *descriptor);
CUresult cuArrayDestroy(CUarray handle);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle,
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int count);
CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray handle, unsigned int level);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle);
CUresult cuMemPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
    CUmemLocation *places, size_t *firsts, size_t place_count, unsigned long long flags,
    CUstream stream);
CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
    CUdevice device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDisablePeerAccess(CUcontext handle);
CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags);
CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version);
CUresult cuCtxGetCacheConfig(CUfunc_cache *config);
CUresult cuCtxGetCurrent(CUcontext *handle);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetFlags(unsigned int *flags);
CUresult cuCtxGetLimit(size_t *value, CUlimit limit);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle);
CUresult cuCtxSetCacheConfig(CUfunc_cache config);
CUresult cuCtxSetCurrent(CUcontext handle);
CUresult cuCtxSetLimit(CUlimit limit, size_t value);
CUresult cuCtxSynchronize(void);
CUresult cuCtxWaitEvent(CUcontext handle, CUevent event_handle);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice ordinal);
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuEventCreate(CUevent *handle, unsigned int flags);
CUresult cuEventDestroy(CUevent handle);
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to);
CUresult cuEventQuery(CUevent handle);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags);
CUresult cuEventSynchronize(CUevent handle);
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function);
CUresult cuFuncGetName(const char **name, CUfunction function);
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **string);
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult *status);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, CUgraph child_handle);
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    const CUgraphEdgeData *edges, size_t count);
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count);
CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, CUevent event);
CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, CUevent event);
CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, const CUDA_HOST_NODE_PARAMS *parameters);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, const CUDA_MEMCPY3D *copy, CUcontext context);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    size_t count, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context);
CUresult cuGraphClone(CUgraph *handle, CUgraph original);
CUresult cuGraphCreate(CUgraph *handle, unsigned int flags);
CUresult cuGraphDestroy(CUgraph handle);
CUresult cuGraphDestroyNode(CUgraphNode handle);
CUresult cuGraphExecDestroy(CUgraphExec handle);
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
    const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
    const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context);
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info);
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *room);
CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *room);
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
    unsigned long long flags);
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphKernelNodeSetParams(CUgraphNode node,
    const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *p);
CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *p);
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled);
CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type);
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled);
CUresult cuInit(unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuIpcGetMemHandle(CUipcMemHandle *result, CUdeviceptr address);
CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy,
    unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
    CUstream stream, void **parameters);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data);
CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
    void **parameters, void **extra);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
    void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int gx, unsigned int gy,
    unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
    CUstream stream, void **parameters, void **extra);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name);
CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle);
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary handle);
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
    void **values, unsigned int count, CUlibraryOption *library_options, void **library_values,
    unsigned int library_count);
CUresult cuLibraryUnload(CUlibrary handle);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
    CUdeviceptr hint, unsigned long long flags);
CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice,
    CUmemLocation location);
CUresult cuMemAlloc(CUdeviceptr *address, size_t size);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
    CUstream stream);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags);
CUresult cuMemAllocPitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
    unsigned int element);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
    const CUmemAllocationProp *properties, unsigned long long flags);
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemFree(CUdeviceptr address);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemFreeHost(void *memory);
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
    CUdeviceptr address);
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address);
CUresult cuMemGetAllocationGranularity(size_t *grain, const CUmemAllocationProp *properties,
    CUmemAllocationGranularity_flags option);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
    CUmemGenericAllocationHandle handle);
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemHostAlloc(void **memory, size_t size, unsigned int flags);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned int flags);
CUresult cuMemHostGetFlags(unsigned int *flags, void *memory);
CUresult cuMemHostRegister(void *memory, size_t size, unsigned int flags);
CUresult cuMemHostUnregister(void *memory);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
    CUmemAllocationHandleType type);
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
    CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties);
CUresult cuMemPoolDestroy(CUmemoryPool handle);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void *value);
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep);
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUmemLocation location,
    unsigned int flags, CUstream stream);
CUresult cuMemRangeGetAttribute(void *data, size_t room, CUmem_range_attribute attribute,
    CUdeviceptr address, size_t size);
CUresult cuMemRangeGetAttributes(void **data, size_t *rooms, CUmem_range_attribute *attributes,
                                 size_t count, CUdeviceptr address, size_t size);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
    size_t count);
CUresult cuMemUnmap(CUdeviceptr address, size_t size);
CUresult cuMemcpy2D(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream);
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy3D(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyAtoH(void *to, CUarray from, size_t offset, size_t bytes);
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
    CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, CUstream stream);
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyHtoA(CUarray to, size_t offset, const void *from, size_t bytes);
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
    CUcontext from_context, size_t bytes);
CUresult cuMemsetD16(CUdeviceptr address, unsigned short value, size_t count);
CUresult cuMemsetD2D16(CUdeviceptr address, size_t pitch, unsigned short value, size_t width,
    size_t height);
CUresult cuMemsetD2D32(CUdeviceptr address, size_t pitch, unsigned int value, size_t width,
    size_t height);
CUresult cuMemsetD2D32Async(CUdeviceptr address, size_t pitch, unsigned int value,
    size_t width, size_t height, CUstream stream);
CUresult cuMemsetD2D8(CUdeviceptr address, size_t pitch, unsigned char value, size_t width,
    size_t height);
CUresult cuMemsetD32(CUdeviceptr address, unsigned int value, size_t count);
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t count);
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count,
    CUstream stream);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name);
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle);
CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule handle,
    const char *name);
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule handle);
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address);
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
    void **values, CUdeviceptr address);
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
    CUdeviceptr address);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data,
    unsigned int flags);
CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
    CUstreamBatchMemOpParams *list, unsigned int flags);
CUresult cuStreamBeginCapture(CUstream stream , CUstreamCaptureMode mode);
CUresult cuStreamCopyAttributes(CUstream to, CUstream from);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamEndCapture(CUstream stream , CUgraph *graph);
CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute,
    CUstreamAttrValue *value);
CUresult cuStreamGetCaptureInfo(CUstream stream , CUstreamCaptureStatus *status,
    cuuint64_t *id, CUgraph *graph, const CUgraphNode **ends, const CUgraphEdgeData **edges,
    size_t *count);
CUresult cuStreamGetCtx(CUstream handle , CUcontext *context);
CUresult cuStreamGetDevice(CUstream handle , CUdevice *device);
CUresult cuStreamGetFlags(CUstream handle , unsigned int *flags);
CUresult cuStreamGetPriority(CUstream handle , int *priority);
CUresult cuStreamIsCapturing(CUstream stream , CUstreamCaptureStatus *status);
CUresult cuStreamQuery(CUstream handle);
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
    const CUstreamAttrValue *value);
CUresult cuStreamSynchronize(CUstream handle);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
    unsigned int flags);
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
    unsigned int flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
    unsigned int flags);
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
    unsigned int flags);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

#endif
