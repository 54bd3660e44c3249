/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/device.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct {
    struct device list[SHARED_GPUS];
    int count;
} devices;

static void show(int gpu)
{
    devices.list[devices.count] = (struct device){.ordinal = devices.count, .gpu = gpu};
    devices.count++;
}

/* The GPU with the name "GPU-" and a UUID that begins with the given digits; -1: no GPU, or
 * several. */
static int gpu_of_uuid(const char *name, size_t length, int gpus)
{
    int found = -1;
    for (int gpu = 0; gpu < gpus; gpu++) {
        char text[41];
        shared_uuid_text(gpu, text);
        if (length > 4 && length < sizeof text && strncasecmp(name, text, length) == 0)
            found = found == -1 ? gpu : -2;
    }
    return found < 0 ? -1 : found;
}

/* Parses CUDA_VISIBLE_DEVICES: indices and UUIDs, up to the first entry that matches no GPU. */
static void show_visible(const char *list, int gpus)
{
    bool shown[SHARED_GPUS] = {false};
    while (*list != '\0') {
        size_t length = strcspn(list, ",");
        char *end;
        long number = strtol(list, &end, 10);
        int gpu = end == list + length && length != 0 && number >= 0 && number < gpus
            ? (int)number : gpu_of_uuid(list, length, gpus);
        if (gpu < 0)
            return;
        if (shown[gpu]) {            /* as in the driver, a repeated device hides all devices */
            devices.count = 0;
            return;
        }
        shown[gpu] = true;
        show(gpu);
        list += length + (list[length] == ',');
    }
}

CUresult devices_start(void)
{
    FAIL_IF(!shared_open(), CUDA_ERROR_OPERATING_SYSTEM);
    int gpus = shared_gpus();
    const char *visible = secure_getenv("CUDA_VISIBLE_DEVICES");
    devices.count = 0;
    if (visible != NULL)
        show_visible(visible, gpus);
    else
        for (int gpu = 0; gpu < gpus; gpu++)
            show(gpu);
    return devices.count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int device_count(void)
{
    return devices.count;
}

struct device *device_at(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < devices.count ? &devices.list[ordinal] : NULL;
}

struct device *device_of_gpu(int gpu)
{
    for (int i = 0; i < devices.count; i++)
        if (shared_actual(devices.list[i].gpu) == gpu)
            return &devices.list[i];
    return NULL;
}
