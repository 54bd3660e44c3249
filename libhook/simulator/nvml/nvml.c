/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated management library, with the functions that monitoring needs. Its figures come from
 * the state that all processes share, so they equal the sums of the programs' own calls. Structures
 * have the layout of nvml.h 13.0.
 */
#define _GNU_SOURCE
#include "nvml/nvml.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic bool is_running;

static nvmlReturn_t start(void)
{
    atomic_store(&is_running, shared_open());
    return nvml_running() ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

NVML_FORWARD(nvmlInit_v2, (void), start())
NVML_FORWARD(nvmlInitWithFlags, (unsigned flags), ((void)flags, start()))

static nvmlReturn_t stop(void)
{
    return atomic_exchange(&is_running, false) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

NVML_FORWARD(nvmlShutdown, (void), stop())

bool nvml_running(void)
{
    return atomic_load(&is_running);
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t code);
const char *nvmlErrorString(nvmlReturn_t code)
{
    switch ((int)code) {
#define TEXT(code, text) case code: return text;
    TEXT(NVML_SUCCESS, "Success")
    TEXT(NVML_ERROR_UNINITIALIZED, "Uninitialized")
    TEXT(NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument")
    TEXT(NVML_ERROR_NOT_SUPPORTED, "Not Supported")
    TEXT(NVML_ERROR_NOT_FOUND, "Not Found")
    TEXT(NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size")
    TEXT(NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded")
    TEXT(NVML_ERROR_TIMEOUT, "Timeout")
    TEXT(NVML_ERROR_GPU_IS_LOST, "GPU is lost")
    TEXT(NVML_ERROR_UNKNOWN, "Unknown Error")
    TEXT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument Version Mismatch")
#undef TEXT
    }
    return "Unknown Error";
}

nvmlReturn_t nvml_give_text(const char *text, char *buffer, unsigned room)
{
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

NVML(nvmlSystemGetDriverVersion, char *version, unsigned room)
{
    REQUIRE(version != NULL);
    return nvml_give_text(driver_version(), version, room);
}

NVML(nvmlSystemGetCudaDriverVersion, int *version)
{
    REQUIRE(version != NULL);
    *version = driver_cuda_version();
    return NVML_SUCCESS;
}
