/* SPDX-License-Identifier: Apache-2.0 */
/* A line is kept until the next call begins, because results are appended to the line. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

struct driver cu;

static const char *const names[] = {
#define HOOK(name, parameters) #name,
#include "../driver.def"
#undef HOOK
};
#define NAMES (sizeof names / sizeof *names)

static bool called[NAMES];
static char line[4096];
static size_t length, before_result;

void calls_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void **functions = (void **)&cu;
    if (library == NULL) {
        fprintf(stderr, "random: %s\n", dlerror());
        exit(2);
    }
    for (size_t i = 0; i < NAMES; i++)
        functions[i] = dlsym(library, names[i]);
}

void calls_list(const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    for (size_t i = 0; i < NAMES; i++)
        if (called[i])
            fprintf(file, "%s\n", names[i]);
    fclose(file);
}

static void append(const char *format, va_list list)
{
    int written = vsnprintf(line + length, sizeof line - length, format, list);
    length += (size_t)written;
    if (length >= sizeof line) {
        fprintf(stderr, "random: a line is too long: %s\n", line);
        exit(2);
    }
}

void tell(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    append(format, list);
    va_end(list);
}

void calls_end(void)
{
    if (length != 0)
        puts(line);
    /* The lines before a crash must reach the output. */
    fflush(stdout);
    length = 0;
}

void call_begins(size_t index, const char *name, const char *format, ...)
{
    va_list list;
    calls_end();
    called[index] = true;
    tell("%s(", name);
    va_start(list, format);
    append(format, list);
    va_end(list);
    tell(")");
}

CUresult call_ends(CUresult result)
{
    before_result = length;
    tell(" = %d", (int)result);
    return result;
}

void tell_bytes(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint64_t sum = 0xCBF29CE484222325u;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
        sum = (sum ^ word) * 0x100000001B3u;
        sum ^= sum >> 29;
    }
    tell(" %zu bytes %016llx", size, (unsigned long long)sum);
}

/* The reasons for which a result is not compared; all other results are compared. */
const char *const exceptions[EXCEPTIONS] = {
    [MAY_BE_READY] =
        "whether work has ended when one asks depends on how fast the machine is",
    [FREE_MEMORY] =
        "what is free depends on what others hold, the total on the limit that the daemon sets",
    [POOL_RESERVES] =
        "how much a pool takes at a time, and when it gives back, is the allocator's own choice",
    [HIGH_WATER] =
        "the most that was in use depends on when the frees of streams come to pass",
    [MAPPING_OF_THE_DRIVERS] =
        "the mapping around an allocation, where its granularity is the allocator's own",
    [REACH_OF_A_NIC] =
        "memory that may leave the card is not offered to devices that would keep its address",
    [HANDLE_FOR_A_RANGE] =
        "memory that may leave the card has to be still before it can be a file for other devices",
    [HARDWARE_DECOMPRESSION] =
        "it needs a way of allocating that mapped memory does not have",
};

void tell_exception(enum exception exception)
{
    tell(" (%s)", exceptions[exception]);
}

void excuse_result(enum exception exception)
{
    length = before_result;
    tell(" = (%s)", exceptions[exception]);
}

static uint64_t state;

void dice_seed(uint64_t seed)
{
    state = seed;
    state = roll(UINT64_MAX);        /* else seed n + 1 could roll what seed n rolls next */
}

uint64_t roll(uint64_t sides)
{
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (x ^ (x >> 31)) % sides;
}
