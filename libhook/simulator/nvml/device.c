/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the simulated management library: handles and figures. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml/nvml.h"

struct memory {
    unsigned long long total, free, used;
};

struct utilization {
    unsigned gpu, memory;            /* percent */
};

struct pci {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct process {                     /* layout of version 3 */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

#define NO_INSTANCE 0xffffffffu

/* State at the last query of the utilisation. */
struct gpu {
    uint64_t busy, at;
    _Atomic unsigned percent;
};

static struct {
    pthread_mutex_t lock;            /* protects the following fields */
    struct gpu gpus[SHARED_GPUS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

int nvml_index(nvmlDevice_t device)
{
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++)
        if (device == &state.gpus[gpu])
            return gpu < shared_gpus() ? gpu : -1;
    return -1;
}

bool nvml_card_is(int gpu, const char *word)
{
    char path[4200], said[16];
    const char *directory = secure_getenv("NVSHARE_SIM_DIR");
    int number;
    bool found = false;
    snprintf(path, sizeof path, "%s/cards", directory != NULL ? directory : "/nowhere");
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fscanf(file, "%d %15s", &number, said) == 2)
        found = number == gpu && strcmp(said, word) == 0;
    if (file != NULL)
        fclose(file);
    return found;
}

NVML(nvmlDeviceGetCount_v2, unsigned *devices)
{
    REQUIRE(devices != NULL);
    *devices = 0;
    for (int gpu = 0; gpu < shared_gpus(); gpu++)
        *devices += !nvml_card_is(gpu, "absent");
    return NVML_SUCCESS;
}

/* `number`: of a GPU, whether or not the driver finds it. */
nvmlReturn_t nvml_numbered(unsigned number, nvmlDevice_t *device)
{
    REQUIRE(device != NULL && number < (unsigned)shared_gpus());
    *device = &state.gpus[number];
    return NVML_SUCCESS;
}

static nvmlReturn_t at_index(unsigned index, nvmlDevice_t *device)
{
    REQUIRE(device != NULL);
    for (int gpu = 0; gpu < shared_gpus(); gpu++) {
        if (nvml_card_is(gpu, "absent") || index-- > 0)
            continue;
        return nvml_card_is(gpu, "lost") ? NVML_ERROR_GPU_IS_LOST
            : nvml_numbered((unsigned)gpu, device);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_FORWARD(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device),
             at_index(index, device))

NVML(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
    REQUIRE(uuid != NULL && device != NULL);
    for (int gpu = 0; gpu < shared_gpus(); gpu++) {
        char text[41];
        shared_uuid_text(gpu, text);
        if (strcmp(uuid, text) == 0 && !nvml_card_is(gpu, "absent")) {
            if (nvml_card_is(gpu, "lost"))
                return NVML_ERROR_GPU_IS_LOST;
            *device = &state.gpus[gpu];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

#define EXCLUSIVE_PROCESS 3          /* a value of nvmlComputeMode_t */

/* Defines a function that returns one figure of a device. */
#define NVML_FIGURE(name, type, figure)                                                  \
    NVML(name, nvmlDevice_t device, type *value)                                         \
    {                                                                                    \
        REQUIRE(value != NULL && nvml_index(device) >= 0);                                   \
        *value = figure;                                                                 \
        return NVML_SUCCESS;                                                             \
    }

NVML(nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned room)
{
    REQUIRE(uuid != NULL && nvml_index(device) >= 0);
    char text[41];
    shared_uuid_text(nvml_index(device), text);
    return nvml_give_text(text, uuid, room);
}

/* Cards of another folder are others, although their UUIDs are the same. */
NVML(nvmlDeviceGetSerial, nvmlDevice_t device, char *serial, unsigned room)
{
    REQUIRE(serial != NULL && nvml_index(device) >= 0);
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)shared_serial());
    return nvml_give_text(text, serial, room);
}

NVML(nvmlDeviceGetName, nvmlDevice_t device, char *name, unsigned room)
{
    REQUIRE(name != NULL && nvml_index(device) >= 0);
    return nvml_give_text(SHARED_GPU_NAME, name, room);
}

NVML(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, struct pci *pci)
{
    REQUIRE(pci != NULL && nvml_index(device) >= 0);
    unsigned bus = shared_pci_bus(nvml_index(device));
    *pci = (struct pci){.bus = bus, .device_id = 0x233510de, .subsystem_id = 0x18be10de};
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "0000:%02X:00.0", bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", bus);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, struct memory *memory)
{
    REQUIRE(memory != NULL && nvml_index(device) >= 0);
    if (nvml_card_is(nvml_index(device), "lost") || nvml_card_is(nvml_index(device), "absent"))
        return NVML_ERROR_GPU_IS_LOST;
    if (nvml_card_is(nvml_index(device), "silent"))
        return NVML_ERROR_UNKNOWN;
    memory->total = shared_total(nvml_index(device));
    memory->used = shared_used(nvml_index(device));
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* The part of the time since the last query in which kernels ran. */
NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, struct utilization *rates)
{
    REQUIRE(rates != NULL && nvml_index(device) >= 0);
    uint64_t busy = shared_busy(nvml_index(device)), now = monotonic_nanoseconds();
    pthread_mutex_lock(&state.lock);
    uint64_t passed = now - device->at;
    if (device->at != 0 && passed > 10000000) {
        uint64_t percent = (busy - device->busy) * 100 / passed;
        device->percent = percent > 100 ? 100 : (unsigned)percent;
    }
    if (device->at == 0 || passed > 10000000) {
        device->busy = busy;
        device->at = now;
    }
    *rates = (struct utilization){device->percent, device->percent};
    pthread_mutex_unlock(&state.lock);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetTemperature, nvmlDevice_t device, int sensor, unsigned *celsius)
{
    REQUIRE(celsius != NULL && sensor == 0 && nvml_index(device) >= 0);
    *celsius = 30 + device->percent / 4;
    return NVML_SUCCESS;
}

NVML_FIGURE(nvmlDeviceGetPowerUsage, unsigned, 75000 + 6000 * device->percent)
NVML_FIGURE(nvmlDeviceGetComputeMode, int,
            nvml_card_is(nvml_index(device), "exclusive") ? EXCLUSIVE_PROCESS : 0)

NVML(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    REQUIRE(current != NULL && pending != NULL && nvml_index(device) >= 0);
    if (!nvml_card_is(nvml_index(device), "mig"))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

#define P2P_NVLINK 2                 /* a value of nvmlGpuP2PCapsIndex_t */
#define P2P_NOT_SUPPORTED 5          /* a value of nvmlGpuP2PStatus_t; 0: supported */

/* All GPUs can access each other, by NVLink if NVSHARE_SIM_NVLINK is 1. */
NVML(nvmlDeviceGetP2PStatus, nvmlDevice_t device, nvmlDevice_t other, int capability, int *status)
{
    REQUIRE(status != NULL && nvml_index(device) >= 0 && nvml_index(other) >= 0 && device != other);
    bool there = capability != P2P_NVLINK || size_setting("NVSHARE_SIM_NVLINK", 0) == 1;
    *status = there ? 0 : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* Lists the processes that have a context. */
NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t device, unsigned *room,
     struct process *list)
{
    REQUIRE(room != NULL && (list != NULL || *room == 0) && nvml_index(device) >= 0);
    struct shared_usage users[SHARED_PROCESSES];
    unsigned found = (unsigned)shared_users(nvml_index(device), users, SHARED_PROCESSES);
    bool fits = found <= *room;
    *room = found;
    if (!fits)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        list[i] = (struct process){(unsigned)users[i].pid, users[i].bytes, NO_INSTANCE,
                                   NO_INSTANCE};
    return NVML_SUCCESS;
}
