/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's interface as a program of the benchmark uses it, found by name at run time. Before
 * it is included DRIVER(X) lists what is used besides DRIVER_START, in the same way: as
 * X(member, symbol, parameters); results are CUresult.
 */
#ifndef NVSHARE_BENCH_DRIVER_H
#define NVSHARE_BENCH_DRIVER_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long address;

#define DRIVER_START(X)                                                                            \
    X(init, cuInit, (unsigned))                                                                    \
    X(device, cuDeviceGet, (int *, int))                                                           \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                            \
    X(set_context, cuCtxSetCurrent, (void *))                                                      \
    X(synchronize, cuCtxSynchronize, (void))

static struct {
#define MEMBER(member, symbol, parameters) int (*member) parameters;
    DRIVER_START(MEMBER)
    DRIVER(MEMBER)
#undef MEMBER
} driver;

/* Ends the program unless the result is 0. */
static void expect(int result, const char *doing)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %s failed with error %d\n", program_invocation_short_name, doing, result);
    exit(1);
}

/* Microseconds. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* Finds the functions, and makes the primary context of the first GPU current. */
static void start_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int device;
    if (library == NULL) {
        fprintf(stderr, "%s: no CUDA driver: %s\n", program_invocation_short_name, dlerror());
        exit(1);
    }
#define FIND(member, symbol, parameters)                                                           \
    driver.member = (int (*) parameters)dlsym(library, #symbol);                                   \
    expect(driver.member == NULL, "finding " #symbol);
    DRIVER_START(FIND)
    DRIVER(FIND)
#undef FIND
    expect(driver.init(0), "cuInit");
    expect(driver.device(&device, 0), "finding the GPU");
    expect(driver.retain(&context, device), "making a context");
    expect(driver.set_context(context), "using the context");
}

#endif
