/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the driver that a sequence makes, and its line in the transcript:
 *
 *     cuMemcpyDtoD_v2(b3+512, b7, 4096) = 0
 *     cuMemGetAddressRange_v2(b3+17) = 0 base=asked-17 size=1000
 *
 * Nothing in a line may be an address or a handle: places are named after what
 * they lie in, answers told relative to what was asked. Where the driver and
 * the library may differ with reason, the answer goes through an EXCEPTION.
 */
#pragma once

#include "nvshare/cuda_types.h"
#include "dice.h"

/* What the library has no hook for and the sequences need. */
#define OTHERS(X) \
    X(cuDeviceGet, (CUdevice *, int)) \
    X(cuCtxGetCurrent, (CUcontext *)) \
    X(cuCtxPopCurrent_v2, (CUcontext *)) \
    X(cuCtxGetDevice, (CUdevice *)) \
    X(cuCtxGetApiVersion, (CUcontext, unsigned *)) \
    X(cuCtxGetLimit, (size_t *, CUlimit)) \
    X(cuCtxSynchronize, (void)) \
    X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *)) \
    X(cuModuleUnload, (CUmodule)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuStreamSynchronize_ptsz, (CUstream)) \
    X(cuStreamQuery, (CUstream)) \
    X(cuStreamGetFlags, (CUstream, unsigned *)) \
    X(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *)) \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
    X(cuEventCreate, (CUevent *, unsigned)) \
    X(cuEventRecord, (CUevent, CUstream)) \
    X(cuEventQuery, (CUevent)) \
    X(cuEventSynchronize, (CUevent)) \
    X(cuEventElapsedTime, (float *, CUevent, CUevent)) \
    X(cuEventDestroy_v2, (CUevent)) \
    X(cuMemHostAlloc, (void **, size_t, unsigned)) \
    X(cuMemAllocHost_v2, (void **, size_t)) \
    X(cuMemFreeHost, (void *)) \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
    X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, \
                                       CUmemAllocationHandleType)) \
    X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, \
                                      CUmemAllocationGranularity_flags)) \
    X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceSetMemPool, (CUdevice, CUmemoryPool)) \
    X(cuMemPoolGetAccess, (CUmemAccess_flags *, CUmemoryPool, CUmemLocation *)) \
    X(cuGraphCreate, (CUgraph *, unsigned)) \
    X(cuGraphDestroy, (CUgraph)) \
    X(cuGraphExecDestroy, (CUgraphExec)) \
    X(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *)) \
    X(cuGraphNodeGetType, (CUgraphNode, CUgraphNodeType *)) \
    X(cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, \
                                const CUDA_KERNEL_NODE_PARAMS *)) \
    X(cuGraphMemcpyNodeGetParams, (CUgraphNode, CUDA_MEMCPY3D *)) \
    X(cuGraphMemsetNodeGetParams, (CUgraphNode, CUDA_MEMSET_NODE_PARAMS *))

struct driver {
#define HOOK(name, parameters) CUresult (*name) parameters;
#include "../../src/driver/hooks.def"
#undef HOOK
#define CALL(name, parameters) CUresult (*name) parameters;
    OTHERS(CALL)
#undef CALL
};
extern struct driver cu;

/* From libcuda.so.1, by dlopen and dlsym; exits if there is none. */
void calls_load(void);
/* The last line, which no other call follows. */
void calls_end(void);
/* Which functions were called, one a line. */
void calls_list(const char *path);

void call_begins(size_t index, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
CUresult call_ends(CUresult result);

/* Calls, unless this driver lacks the function; its arguments as text come last. */
#define DO(name, arguments, ...) \
    (call_begins(offsetof(struct driver, name) / sizeof(void (*)(void)), #name, __VA_ARGS__), \
     call_ends(cu.name != NULL ? cu.name arguments : CUDA_ERROR_NOT_FOUND))
/* One or the other of two with the same parameters. */
#define EITHER(first, second, arguments, ...) \
    (one_in(2) ? DO(first, arguments, __VA_ARGS__) : DO(second, arguments, __VA_ARGS__))

/* More of the line that the last call began. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tell_bytes(const void *data, size_t size);      /* a checksum of them */

/* Where equality cannot be demanded; exceptions.c says why. */
enum exception {
    MAY_BE_READY, FREE_MEMORY, POOL_RESERVES, HIGH_WATER, MAPPING_OF_THE_DRIVERS,
    REACH_OF_A_NIC, HANDLE_FOR_A_RANGE, HARDWARE_DECOMPRESSION, EXCEPTIONS
};
extern const char *const exceptions[EXCEPTIONS];
/* Takes the place of the answer: which exception it is. */
void tell_exception(enum exception exception);
/* Of the last call the result, too. */
void excuse_result(enum exception exception);
