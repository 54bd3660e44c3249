/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors (Xid) of the simulated GPUs. The file "xid" in NVSHARE_SIM_DIR contains a GPU's index and
 * an error number; the error is delivered once, to the first process that waits.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "nvml/nvml.h"

#define XID_CRITICAL_ERROR 8ull
#define STEP_MS 100

typedef struct set {
    bool registered[SHARED_GPUS];
} *nvmlEventSet_t;

struct event {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

NVML(nvmlEventSetCreate, nvmlEventSet_t *set)
{
    REQUIRE(set != NULL);
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML(nvmlEventSetFree, nvmlEventSet_t set)
{
    REQUIRE(set != NULL);
    free(set);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceRegisterEvents, nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    REQUIRE(set != NULL && nvml_index(device) >= 0);
    if ((types & ~XID_CRITICAL_ERROR) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    set->registered[nvml_index(device)] = true;
    return NVML_SUCCESS;
}

/* Takes the pending error if it is of a GPU of the set. True: *event describes it. */
static bool happened(nvmlEventSet_t set, struct event *event)
{
    char path[4200];
    unsigned gpu;
    const char *directory = secure_getenv("NVSHARE_SIM_DIR");
    snprintf(path, sizeof path, "%s/xid", directory != NULL ? directory : "/nowhere");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    bool read = fscanf(file, "%u %llu", &gpu, &event->data) == 2;
    fclose(file);
    if (!read || gpu >= (unsigned)shared_gpus() || !set->registered[gpu])
        return false;
    event->type = XID_CRITICAL_ERROR;
    event->gpu_instance = event->compute_instance = 0xffffffffu;
    return nvml_numbered(gpu, &event->device) == NVML_SUCCESS && unlink(path) == 0;
}

NVML(nvmlEventSetWait_v2, nvmlEventSet_t set, struct event *event, unsigned timeout_ms)
{
    REQUIRE(set != NULL && event != NULL);
    for (unsigned waited = 0;; waited += STEP_MS) {
        if (happened(set, event))
            return NVML_SUCCESS;
        if (waited >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
    }
}
