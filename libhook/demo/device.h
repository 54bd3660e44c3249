/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU as the workload program uses it: the driver, found with dlopen and
 * dlsym as the CUDA runtime finds it, and the kernels of kernels.ptx.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../src/driver/driver.h"

/* How the program ends. */
enum { EXIT_RIGHT = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_MEMORY = 3, EXIT_NO_DRIVER = 5 };

/* X(member, symbol, parameters): the driver's functions that the program calls; all return a
 * CUresult. */
#define DEVICE_FUNCTIONS(X)                                                                       \
    X(init, cuInit, (unsigned int))                                                               \
    X(error_string, cuGetErrorString, (CUresult, const char **))                                  \
    X(device_get, cuDeviceGet, (CUdevice *, int))                                                 \
    X(device_name, cuDeviceGetName, (char *, int, CUdevice))                                      \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                  \
    X(context_set, cuCtxSetCurrent, (CUcontext))                                                  \
    X(context_synchronize, cuCtxSynchronize, (void))                                              \
    X(memory_information, cuMemGetInfo_v2, (size_t *, size_t *))                                  \
    X(allocate, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                           \
    X(set, cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                   \
    X(host_allocate, cuMemHostAlloc, (void **, size_t, unsigned int))                             \
    X(copy_to_device, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))        \
    X(copy_to_host, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                               \
    X(module_load, cuModuleLoadData, (CUmodule *, const void *))                                  \
    X(module_function, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))               \
    X(stream_create, cuStreamCreate, (CUstream *, unsigned int))                                  \
    X(stream_synchronize, cuStreamSynchronize, (CUstream))                                        \
    X(launch, cuLaunchKernel,                                                                     \
      (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,          \
       unsigned int, unsigned int, CUstream, void **, void **))

struct device {
#define MEMBER(member, symbol, parameters) CUresult (*member) parameters;
    DEVICE_FUNCTIONS(MEMBER)
#undef MEMBER
    CUcontext context;
    CUfunction fill, step, advance, checksum, spin;
    char name[128];
    size_t free, total;                  /* bytes, as cuMemGetInfo returned at the start */
};

/* Prints one line on stderr, then exits with `code`. */
_Noreturn void device_die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes the device's primary context current and loads the kernels. Exits with one line
 * if there is no driver, no such device, or no memory for a context. */
void device_open(struct device *device, int ordinal);

/* Unless the result is success, ends the program with one line that names `doing`. */
void device_expect(const struct device *device, CUresult result, const char *doing);

/* Launches a kernel over `count` words with the parameters as cuLaunchKernel takes them. */
void device_launch(const struct device *device, CUfunction kernel, uint64_t count, CUstream stream,
                   void **parameters, const char *doing);
