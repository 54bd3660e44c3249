/* SPDX-License-Identifier: Apache-2.0 */
/* For test programs that hold memory on the card. While a program pauses, the test may have the
 * program's memory evicted; a line on stdin makes the program continue. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver.h"

#define SIZE (32u << 20)

static CUcontext context;
static CUdeviceptr memory;

static inline void must(int right, const char *what)
{
    if (right)
        return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static inline void begin(void)
{
    must(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0
         && cuCtxSetCurrent(context) == 0 && cuMemAlloc_v2(&memory, SIZE) == 0
         && cuMemsetD32_v2(memory, 0x12345678, SIZE / 4) == 0, "beginning");
}

static inline void check(void)
{
    unsigned *words = malloc(SIZE);
    must(cuCtxSetCurrent(context) == 0 && cuMemcpyDtoH_v2(words, memory, SIZE) == 0, "copying");
    for (size_t i = 0; i < SIZE / 4; i++)
        must(words[i] == 0x12345678, "a word");
    free(words);
}

static inline void *check_in_thread(void *unused)
{
    check();
    return unused;
}

static inline void pause_here(const char *word)
{
    puts(word);
    fflush(stdout);
    must(getchar() == '\n', "a line");
}

/* True for a socket that is not a listening socket of the driver. */
static inline int is_socket_of_library(int descriptor)
{
    struct sockaddr_un address = { .sun_family = 0 };
    socklen_t size = sizeof address;
    return getsockname(descriptor, (struct sockaddr *)&address, &size) == 0
        && strncmp(address.sun_path + 1, "cuda-", 5) != 0;
}

/* In main(): executes `statement` and returns 0 if the program was started for the case `name`. */
#define WHEN(name, statement) \
    do { \
        if (strcmp(what, name) == 0) { \
            statement; \
            return 0; \
        } \
    } while (0)
