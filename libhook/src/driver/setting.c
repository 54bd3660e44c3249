/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE                  /* secure_getenv() */
#include "driver/setting.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver/kept.h"
#include "driver/locked.h"
#include "driver/log.h"

/* HAMi serves 16 devices at most. */
#define HAMI_LIMIT(device) { .name = "CUDA_DEVICE_MEMORY_LIMIT_" #device }

static KEPT_IN_CHILD struct {
    const char *name, *value;
} settings[] = {
    { .name = "CUDA_DEVICE_MEMORY_LIMIT" }, HAMI_LIMIT(0), HAMI_LIMIT(1), HAMI_LIMIT(2),
    HAMI_LIMIT(3), HAMI_LIMIT(4), HAMI_LIMIT(5), HAMI_LIMIT(6), HAMI_LIMIT(7), HAMI_LIMIT(8),
    HAMI_LIMIT(9), HAMI_LIMIT(10), HAMI_LIMIT(11), HAMI_LIMIT(12), HAMI_LIMIT(13), HAMI_LIMIT(14),
    HAMI_LIMIT(15), { .name = "CUDA_DEVICE_SM_LIMIT" }, { .name = "CUDA_INJECTION64_PATH" },
    { .name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" }, { .name = "CUDA_MPS_PIPE_DIRECTORY" },
    { .name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" },
    { .name = "LOCAL_WORLD_SIZE" }, { .name = "NVSHARE_COMPUTE_LIMIT" },
    { .name = "NVSHARE_DEBUG" }, { .name = "NVSHARE_DRAIN_TARGET_MS" },
    { .name = "NVSHARE_ENABLE_SINGLE_OVERSUB" }, { .name = "NVSHARE_EXAMINE" },
    { .name = "NVSHARE_GANG" }, { .name = "NVSHARE_KEEP_FREED_MS" },
    { .name = "NVSHARE_MEMORY_LIMIT" }, { .name = "NVSHARE_NAME" }, { .name = "NVSHARE_PRIORITY" },
    { .name = "NVSHARE_PROFILED" }, { .name = "NVSHARE_REQUIRED" }, { .name = "NVSHARE_SOCKET" },
    { .name = "NVSHARE_VERBOSE" }, { .name = "NVSHARE_WEIGHT" },
};
#define COUNT (sizeof settings / sizeof settings[0])

static MUTEX(settings_lock);
static KEPT_IN_CHILD _Atomic bool read_before = false;

void settings_read(void)
{
    LOCKED(settings_lock);
    for (size_t i = 0; i < COUNT && !read_before; i++) {
        const char *value = secure_getenv(settings[i].name);
        settings[i].value = value == NULL ? NULL : strdup(value);
    }
    read_before = true;
}

const char *setting(const char *name)
{
    if (!read_before)
        settings_read();
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(settings[i].name, name) == 0)
            return settings[i].value;
    return NULL;
}

bool setting_is_on(const char *name)
{
    const char *value = setting(name);
    return value != NULL && strcmp(value, "1") == 0;
}

unsigned long setting_milliseconds(const char *name, unsigned long usual, unsigned long most)
{
    const char *text = setting(name);
    char *end = NULL;
    unsigned long value = text == NULL ? usual : strtoul(text, &end, 10);
    if (text == NULL || (end != text && *end == '\0' && value <= most))
        return value;
    complain("%s=%s is not a number of milliseconds up to %lu; it is %lu", name, text, most, usual);
    return usual;
}
