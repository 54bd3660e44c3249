/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of the simulated management library share. */
#pragma once

#include <stdbool.h>

#include "shared/shared_state.h"

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct gpu *nvmlDevice_t;

#define NVML(name, ...)                                                                  \
    __attribute__((visibility("default"))) nvmlReturn_t name(__VA_ARGS__);               \
    __attribute__((visibility("default"))) nvmlReturn_t name(__VA_ARGS__)

#define UNPACK(...) __VA_ARGS__
#define NVML_FORWARD(name, parameters, call)                                             \
    NVML(name, UNPACK parameters)                                                        \
    {                                                                                    \
        return call;                                                                     \
    }

#define REQUIRE(condition)                                                               \
    do {                                                                                 \
        if (!nvml_running())                                                             \
            return NVML_ERROR_UNINITIALIZED;                                             \
        if (!(condition))                                                                \
            return NVML_ERROR_INVALID_ARGUMENT;                                          \
    } while (0)

/* What the file "cards" in NVSHARE_SIM_DIR says of a GPU: lines of its number and a word. `absent`:
 * the driver does not find it, and the GPUs behind it have lower indices; `lost`: it fell off the
 * bus; `silent`: questions about its memory fail; `exclusive`: one process may use it at a time;
 * `mig`: it is divided. */
bool nvml_card_is(int gpu, const char *word);

bool nvml_running(void);             /* after nvmlInit */
int nvml_index(nvmlDevice_t device); /* -1: the handle is not valid */
nvmlReturn_t nvml_numbered(unsigned number, nvmlDevice_t *device);
nvmlReturn_t nvml_give_text(const char *text, char *buffer, unsigned room);
