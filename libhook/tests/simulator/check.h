/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the simulator share: checks that name what failed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"
#include "program.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);              \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

#define EXPECT(code, call)                                                               \
    do {                                                                                 \
        CUresult result_ = (call);                                                       \
        if (result_ != (code)) {                                                         \
            const char *name_ = NULL;                                                    \
            cuGetErrorName(result_, &name_);                                             \
            fprintf(stderr, "%s:%d: %s gave %s instead of %s\n", __FILE__, __LINE__, #call, \
                    name_ != NULL ? name_ : "?", #code);                                 \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

#define OK(call) EXPECT(CUDA_SUCCESS, call)

static CUfunction fill, step, sum, add, spin, wait_flag;

/* The primary context of a device, with all kernels loaded. */
static inline CUcontext begin(int device)
{
    static const char text[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry nvshare_fill() { ret; }\n.visible .entry nvshare_step() { ret; }\n"
        ".visible .entry nvshare_add() { ret; }\n.visible .entry nvshare_checksum() { ret; }\n"
        ".visible .entry nvshare_spin() { ret; }\n.visible .entry nvshare_wait_flag() { ret; }\n";
    CUcontext context;
    CUmodule module;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&fill, module, "nvshare_fill"));
    OK(cuModuleGetFunction(&step, module, "nvshare_step"));
    OK(cuModuleGetFunction(&add, module, "nvshare_add"));
    OK(cuModuleGetFunction(&sum, module, "nvshare_checksum"));
    OK(cuModuleGetFunction(&spin, module, "nvshare_spin"));
    OK(cuModuleGetFunction(&wait_flag, module, "nvshare_wait_flag"));
    return context;
}

static inline CUresult launch(CUfunction function, CUstream stream, uint64_t a, uint64_t b,
                              uint64_t c, uint64_t d)
{
    void *parameters[] = {&a, &b, &c, &d};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static inline CUresult allow(int device, CUdeviceptr address, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, size, &access, 1);
}

/* A block at an address that is reserved already. */
static inline CUmemGenericAllocationHandle put_block(CUdeviceptr address, size_t size)
{
    CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, size, &properties, 0));
    OK(cuMemMap(address, size, 0, handle, 0));
    OK(allow(0, address, size));
    return handle;
}

static inline size_t free_memory(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}
