/* SPDX-License-Identifier: Apache-2.0 */
#include "service/terms.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/setting.h"

#define INVALID 0
#define NO_TERM UINT64_MAX           /* valid, and sets nothing */
#define DEFAULT_WEIGHT 100           /* events.py: an owner cannot give a program more */
#define UNLIMITED 100                /* percent */
#define UNITLESS_LEAST (1 << 20)     /* bytes; quantity.py: a smaller size needs a unit */

static bool is_digit(char letter)
{
    return letter >= '0' && letter <= '9';
}

/* Reads a number as 1, 12.5; -1: there is none. Not strtod(): programs may set a locale in which
 * the point is a comma. */
static double read_number(const char **text)
{
    const char *at = *text;
    double value = is_digit(*at) ? 0 : -1, place = 1;
    for (; is_digit(*at); at++)
        value = value * 10 + (*at - '0');
    if (value >= 0 && *at == '.' && is_digit(at[1]))
        for (at++; is_digit(*at); at++)
            value += (*at - '0') * (place /= 10);
    *text = at;
    return value;
}

/* Whether the text to `end` is this word, whatever the case of its letters. */
static bool is_word(const char *text, const char *end, const char *word)
{
    for (; text < end && (*text | 0x20) == *word; word++)
        text++;
    return text == end && *word == '\0';
}

/* Bytes of a size up to `end`, as nvshared/quantity.py reads it. */
static uint64_t read_size(const char *text, const char *end)
{
    static const struct { const char *name; double bytes; } UNITS[] = {
        { "", 1 }, { "b", 1 }, { "k", 0x1p10 }, { "m", 0x1p20 }, { "g", 0x1p30 }, { "t", 0x1p40 },
        { "kib", 0x1p10 }, { "mib", 0x1p20 }, { "gib", 0x1p30 }, { "tib", 0x1p40 },
        { "kb", 1e3 }, { "mb", 1e6 }, { "gb", 1e9 }, { "tb", 1e12 },
    };
    while (*text == ' ')
        text++;
    while (end > text && end[-1] == ' ')
        end--;
    double number = read_number(&text);
    while (text < end && *text == ' ')
        text++;
    if (number < 0 || (text == end && number > 0 && number < UNITLESS_LEAST))
        return INVALID;
    for (size_t i = 0; i < sizeof UNITS / sizeof UNITS[0]; i++)
        if (is_word(text, end, UNITS[i].name))
            return number * UNITS[i].bytes < 0x1p63 ? (uint64_t)(number * UNITS[i].bytes) : INVALID;
    return INVALID;
}

static uint64_t memory(const char *text, CUdevice device)
{
    (void)device;
    return read_size(text, text + strlen(text));
}

/* For HAMi 0 is no limit. */
static uint64_t hami_memory(const char *text, CUdevice device)
{
    return strcmp(text, "0") == 0 ? NO_TERM : memory(text, device);
}

/* 0=1G,1=512MB: a size for each device. */
static uint64_t mps_memory(const char *text, CUdevice device)
{
    uint64_t found = NO_TERM;
    for (const char *at = text, *end; *at != '\0'; at = *end == ',' ? end + 1 : end) {
        end = strchr(at, ',') != NULL ? strchr(at, ',') : at + strlen(at);
        while (*at == ' ')
            at++;
        double index = read_number(&at);
        uint64_t size = *at == '=' ? read_size(at + 1, end) : INVALID;
        if (index < 0 || size == INVALID)
            return INVALID;
        if (index == device)
            found = size;
    }
    return found;
}

static uint64_t whole(const char *text, uint64_t most)
{
    uint64_t value = 0;
    for (; is_digit(*text) && value <= most; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return *text == '\0' && value <= most ? value : INVALID;
}

static uint64_t percent(const char *text, CUdevice device)
{
    char digits[8] = "";
    size_t length = strlen(text);
    (void)device;
    length -= length > 0 && text[length - 1] == '%';
    if (length >= sizeof digits)
        return INVALID;
    memcpy(digits, text, length);
    return whole(digits, UNLIMITED);
}

static uint64_t hami_percent(const char *text, CUdevice device)
{
    return strcmp(text, "0") == 0 ? NO_TERM : percent(text, device);
}

/* Under MPS the driver itself applies the value: it must not apply twice. */
static uint64_t mps_percent(const char *text, CUdevice device)
{
    (void)device;
    if (setting("CUDA_MPS_PIPE_DIRECTORY") != NULL || access("/tmp/nvidia-mps/control", F_OK) == 0)
        return NO_TERM;
    double value = read_number(&text);
    return *text != '\0' || value <= 0 || value > UNLIMITED ? INVALID
         : value < 1 ? 1 : (uint64_t)value;
}

static uint64_t weight(const char *text, CUdevice device)
{
    (void)device;
    return whole(text, DEFAULT_WEIGHT);
}

static uint64_t priority(const char *text, CUdevice device)
{
    static const char *const NAMES[] = { "background", "normal", "high" };
    (void)device;
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(text, NAMES[i]) == 0)
            return i + 1;
    return INVALID;
}

#define MEMORY offsetof(struct nvshare_terms, memory_limit)
#define COMPUTE offsetof(struct nvshare_terms, compute_limit)
#define A_SIZE "a size such as 8GiB or 512M"
#define A_PERCENTAGE "a percentage of the time from 1 to 100"

static const struct variable {
    const char *name;
    uint64_t (*read)(const char *text, CUdevice device);
    size_t term;
    const char *valid;
} variables[] = {
    { "NVSHARE_MEMORY_LIMIT", memory, MEMORY, A_SIZE },
    { "NVSHARE_COMPUTE_LIMIT", percent, COMPUTE, A_PERCENTAGE },
    { "NVSHARE_WEIGHT", weight, offsetof(struct nvshare_terms, weight),
      "a whole number from 1 to 100" },
    { "NVSHARE_PRIORITY", priority, offsetof(struct nvshare_terms, priority),
      "background, normal or high" },
    { "CUDA_DEVICE_MEMORY_LIMIT", hami_memory, MEMORY, A_SIZE },
    { "CUDA_DEVICE_SM_LIMIT", hami_percent, COMPUTE, A_PERCENTAGE },
    { "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", mps_memory, MEMORY,
      "a size for each GPU, such as 0=8G,1=512M" },
    { "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", mps_percent, COMPUTE, A_PERCENTAGE },
};
#define COUNT (sizeof variables / sizeof variables[0])

static bool reported[COUNT];

static void apply(const struct variable *variable, const char *name, CUdevice device,
                  struct nvshare_terms *terms)
{
    bool *was_reported = &reported[variable - variables];
    const char *text = setting(name);
    uint64_t value = text == NULL || *text == '\0' ? NO_TERM : variable->read(text, device);
    uint64_t *term = (uint64_t *)((char *)terms + variable->term);
    if (value == INVALID && !*was_reported)
        complain("%s=%s is invalid: give %s; only the administrator's terms apply", name, text,
                 variable->valid);
    *was_reported |= value == INVALID;
    if (value != INVALID && value != NO_TERM && (*term == 0 || value < *term))
        *term = value;
}

void terms_read(CUdevice device, struct nvshare_terms *terms)
{
    char name[40];
    memset(terms, 0, sizeof *terms);
    for (size_t i = 0; i < COUNT; i++) {
        apply(&variables[i], variables[i].name, device, terms);
        /* HAMi has a variable for each device, too. */
        if (variables[i].read == hami_memory) {
            snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", (int)device);
            apply(&variables[i], name, device, terms);
        }
    }
}
