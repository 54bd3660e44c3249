/* SPDX-License-Identifier: Apache-2.0 */
/* conformance [SECTION...]: asks, and prints the answers. */
#include "conformance.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

CUcontext context;
CUfunction fill, spin, wait_flag;

static const struct section {
    const char *name;
    void (*run)(void);
} sections[] = {
#define SECTION(name) {#name, name},
    SECTIONS(SECTION)
#undef SECTION
    {NULL, NULL},
};

void ask(const char *what, CUresult result)
{
    const char *name = NULL;
    cuGetErrorName(result, &name);
    if (name == NULL)
        printf("  %s: %d\n", what, (int)result);
    else
        printf("  %s: %s\n", what, name);
    fflush(stdout);
}

void tell(const char *what, long long value)
{
    printf("  %s = %lld\n", what, value);
    fflush(stdout);
}

static void require(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    ask(what, result);
    exit(1);
}

void begin(void)
{
    CUmodule module;
    require(cuInit(0), "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    require(cuCtxSetCurrent(context), "set current");
    require(cuModuleLoadData(&module, program_text), "load");
    require(cuModuleGetFunction(&fill, module, "nvshare_fill"), "fill");
    require(cuModuleGetFunction(&spin, module, "nvshare_spin"), "spin");
    require(cuModuleGetFunction(&wait_flag, module, "nvshare_wait_flag"), "wait_flag");
}

CUresult launch_fill(CUdeviceptr address, uint64_t words, CUstream stream)
{
    uint64_t value = 1;
    void *parameters[] = {&address, &words, &value};
    return cuLaunchKernel(fill, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

CUresult launch_spin(uint64_t microseconds, CUstream stream)
{
    void *parameters[] = {&microseconds};
    return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUresult launch_wait(CUdeviceptr flag, uint64_t value, CUstream stream)
{
    void *parameters[] = {&flag, &value};
    return cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUmemGenericAllocationHandle create_block(size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle = 0;
    require(cuMemCreate(&handle, size, &properties, 0), "create_block");
    return handle;
}

CUdeviceptr reserve(size_t size)
{
    CUdeviceptr address = 0;
    require(cuMemAddressReserve(&address, size, 0, 0, 0), "reserve");
    return address;
}

CUresult open_access(CUdeviceptr address, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, size, &access, 1);
}

CUdeviceptr mapped_block(size_t size, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr address = reserve(size);
    *handle = create_block(size);
    require(cuMemMap(address, size, 0, *handle, 0), "map");
    require(open_access(address, size), "access");
    return address;
}

static int run_apart(const struct section *section)
{
    int status = 0;
    printf("%s\n", section->name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        section->run();
        fflush(stdout);
        exit(0);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("  ended by signal %d\n", WTERMSIG(status));
    return status;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (const struct section *section = sections; section->name != NULL; section++) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted = wanted || strcmp(argv[i], section->name) == 0;
        if (wanted && run_apart(section) != 0)
            failed = 1;
    }
    return failed;
}
