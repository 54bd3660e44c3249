/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS_IN_BLOCK 256
#define MOST_BLOCKS 4096                 /* enough to fill any card; kernels loop over the words */

extern const char device_kernels[];      /* kernels.ptx, ended by a zero */
__asm__(".pushsection .rodata\n"
        ".hidden device_kernels\n"
        ".globl device_kernels\n"
        "device_kernels:\n"
        ".incbin \"demo/kernels.ptx\"\n"
        ".byte 0\n"
        ".popsection\n");

void device_die(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("nvshare-workload: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

void device_expect(const struct device *device, CUresult result, const char *doing)
{
    if (result == CUDA_SUCCESS)
        return;
    const char *words = NULL;
    if (device->error_string(result, &words) != CUDA_SUCCESS || words == NULL)
        words = "an error the driver has no words for";
    device_die(result == CUDA_ERROR_OUT_OF_MEMORY ? EXIT_NO_MEMORY : EXIT_FAILED,
               "%s failed: %s (%d)", doing, words, result);
}

static CUfunction kernel(const struct device *device, CUmodule module, const char *name)
{
    CUfunction function;
    device_expect(device, device->module_function(&function, module, name), name);
    return function;
}

void device_open(struct device *device, int ordinal)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        device_die(EXIT_NO_DRIVER, "no CUDA driver: %s", dlerror());
#define FIND(member, symbol, parameters)                                                           \
    device->member = (CUresult (*) parameters)dlsym(library, #symbol);                             \
    if (device->member == NULL)                                                                    \
        device_die(EXIT_NO_DRIVER, "the CUDA driver has no %s; it is too old", #symbol);
    DEVICE_FUNCTIONS(FIND)
#undef FIND
    device_expect(device, device->init(0), "starting the CUDA driver (cuInit)");
    CUdevice handle;
    if (device->device_get(&handle, ordinal) != CUDA_SUCCESS)
        device_die(EXIT_USAGE, "--device %d: there is no such GPU", ordinal);
    device_expect(device, device->device_name(device->name, sizeof device->name, handle),
                  "asking for the GPU's name");
    device_expect(device, device->primary_context_retain(&device->context, handle),
                  "making a context on the GPU");
    device_expect(device, device->context_set(device->context), "using the context");
    CUmodule module;
    device_expect(device, device->module_load(&module, device_kernels), "loading the kernels");
    device->fill = kernel(device, module, "nvshare_fill");
    device->step = kernel(device, module, "nvshare_step");
    device->advance = kernel(device, module, "nvshare_advance");
    device->checksum = kernel(device, module, "nvshare_checksum");
    device->spin = kernel(device, module, "nvshare_spin");
    device_expect(device, device->memory_information(&device->free, &device->total),
                  "asking how much memory is free");
}

void device_launch(const struct device *device, CUfunction kernel, uint64_t count, CUstream stream,
                   void **parameters, const char *doing)
{
    uint64_t blocks = (count + THREADS_IN_BLOCK - 1) / THREADS_IN_BLOCK;
    if (blocks > MOST_BLOCKS)
        blocks = MOST_BLOCKS;
    device_expect(device,
                  device->launch(kernel, (unsigned int)blocks, 1, 1, THREADS_IN_BLOCK, 1, 1, 0,
                                 stream, parameters, NULL),
                  doing);
}
