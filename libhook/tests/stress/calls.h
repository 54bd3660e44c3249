/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions as a program finds them that was not linked against
 * the driver: dlopen and dlsym. NULL: this driver does not have it. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

extern const char kernels_ptx[];     /* libhook/demo/kernels.ptx */
__asm__(".section .rodata\n.global kernels_ptx\nkernels_ptx: .incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n.text\n");

#define HOOK(name, parameters) __attribute__((unused)) static CUresult (*name) parameters;
#include "../driver.def"
#undef HOOK

static inline void load_calls(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "stress: %s\n", dlerror());
        exit(2);
    }
#define HOOK(name, parameters) *(void **)&name = dlsym(driver, #name);
#include "../driver.def"
#undef HOOK
}

static inline void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "stress: %s failed: error %d\n", what, (int)result);
    exit(1);
}
