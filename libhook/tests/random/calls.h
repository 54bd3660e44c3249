/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the driver that a sequence makes, and its line in the transcript:
 *
 *     cuMemcpyDtoD_v2(b3+512, b7, 4096) = 0
 *     cuMemGetAddressRange_v2(b3+17) = 0 base=asked-17 size=1000
 *
 * A line has no address and no handle: a place is written as a block and an offset,
 * a returned address relative to the address in the query. Where the library may
 * differ from the driver with reason, the line has that reason (enum exception).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvshare/cuda_types.h"

struct driver {
#define HOOK(name, parameters) CUresult (*name) parameters;
#include "../driver.def"
#undef HOOK
};
extern struct driver cu;

/* Loads the functions of libcuda.so.1 by dlopen() and dlsym(); exits if there is no driver. */
void calls_load(void);
/* Prints the last call's line. The line of any other call is printed when the next call begins. */
void calls_end(void);
/* Writes the names of the called functions to the file `path`, one a line. */
void calls_list(const char *path);

void call_begins(size_t index, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
CUresult call_ends(CUresult result);

/* Calls the driver's function, if the driver has it. `...`: a format and values for the line. */
#define DO(name, arguments, ...) \
    (call_begins(offsetof(struct driver, name) / sizeof(void (*)(void)), #name, __VA_ARGS__), \
     call_ends(cu.name != NULL ? cu.name arguments : CUDA_ERROR_NOT_FOUND))
/* A row in the table of calls between which a roll chooses. */
#define WHEN(number, ...) case number: __VA_ARGS__; break;

/* Calls one of two functions with the same parameters, at random. */
#define EITHER(first, second, arguments, ...) \
    (one_in(2) ? DO(first, arguments, __VA_ARGS__) : DO(second, arguments, __VA_ARGS__))

/* Appends to the line of the last call. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tell_bytes(const void *data, size_t size);      /* appends their number and a checksum */

/* Results that may differ from the driver's; calls.c has the reasons. */
enum exception {
    MAY_BE_READY, FREE_MEMORY, POOL_RESERVES, HIGH_WATER, MAPPING_OF_THE_DRIVERS,
    REACH_OF_A_NIC, HANDLE_FOR_A_RANGE, HARDWARE_DECOMPRESSION, EXCEPTIONS
};
extern const char *const exceptions[EXCEPTIONS];
/* Appends the reason in place of a returned value. */
void tell_exception(enum exception exception);
/* Replaces also the result of the last call by the reason. */
void excuse_result(enum exception exception);

/* Pseudo-random numbers. A sequence's calls depend on its seed alone, never on the results. */
void dice_seed(uint64_t seed);
uint64_t roll(uint64_t sides);       /* 0 to sides - 1 */

static inline bool one_in(uint64_t n)
{
    return roll(n) == 0;
}

#define PICK(list) ((list)[roll(sizeof(list) / sizeof *(list))])
