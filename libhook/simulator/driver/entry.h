/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of every entry point of the simulated driver.
 *
 *     API(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size, ...)
 *     {
 *         ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
 *         ...
 *     }
 *
 * To add an entry point, write it so and move its line in entries.def from UNSUPPORTED to ENTRY. An
 * ENTRY without a definition does not link.
 */
#pragma once

#include <stdbool.h>

#include "driver/context.h"
#include "nvshare/cuda_types.h"

#define API(name, ...)                                                                   \
    __attribute__((visibility("default"))) CUresult name(__VA_ARGS__);                   \
    __attribute__((visibility("default"))) CUresult name(__VA_ARGS__)

enum entry_needs {
    ENTRY_INIT = 0,                  /* cuInit has been called in this process */
    ENTRY_CONTEXT = 1 << 0,          /* a context is current that is neither destroyed nor broken */
    ENTRY_UNSAFE = 1 << 1,           /* forbidden during captures */
    ENTRY_ANY = 1 << 2,              /* callable before cuInit */
    ENTRY_CALLBACK = 1 << 3,         /* callable from a host function, where the driver allows it */
};

/* The error with which the call of this symbol must fail: state, context, capture,
 * NVSHARE_SIM_FAIL. */
CUresult entry(const char *name, unsigned needs);
void entry_left(const CUresult *entered);

#define ENTER(needs) ENTER_AS(__func__, needs)
#define ENTER_AS(name, needs)                                                            \
    __attribute__((cleanup(entry_left))) CUresult entered_ = entry(name, (needs));       \
    if (entered_ != CUDA_SUCCESS)                                                        \
        return entered_

#define UNPACK(...) __VA_ARGS__
/* Defines an entry point that checks the call and forwards it to a function. */
#define FORWARD(name, parameters, needs, call)                                           \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        ENTER(needs);                                                                    \
        return call;                                                                     \
    }
/* Defines two versions of an entry point with the same body. */
#define FORWARD_BOTH(name, suffix, parameters, needs, call)                              \
    FORWARD(name, parameters, needs, call)                                               \
    FORWARD(name##suffix, parameters, needs, call)

/* Stores `value` in *`place`, unless `place` is NULL or `refusal` an error. */
#define GETTER(name, parameters, needs, place, refusal, value)                           \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        ENTER(needs);                                                                    \
        CUresult refusal_ = (place) == NULL ? CUDA_ERROR_INVALID_VALUE : (refusal);      \
        if (refusal_ == CUDA_SUCCESS)                                                    \
            *(place) = (value);                                                          \
        return refusal_;                                                                 \
    }

/* Sets a subscriber, as of CUPTI: called in the thread of each call that passes the checks,
 * unless that thread is inside the subscriber. NULL: none. */
__attribute__((visibility("default"))) void simulator_subscribe(void (*subscriber)(const char *name));

/* Enclose a wait for work within a call. The thread counts as outside the driver meanwhile, as it may
 * leave by a jump out of a signal handler. entry_wakes() gets the result of entry_sleeps(). */
unsigned entry_sleeps(void);
void entry_wakes(unsigned before);

/* Starts a thread of the driver. */
pthread_t driver_thread(void *(*run)(void *), void *argument);

/* State of the driver in this process. */
bool driver_running(void);           /* between cuInit and the process's exit */
bool driver_ended(void);             /* the process exits */

/* Waits until a copy of `size` bytes that starts now has ended, or the process exits. */
void wait_for_copy(int gpu, enum shared_direction direction, size_t size);

/* Marks the calling thread as running a callback, which may not call the driver. */
void entry_in_callback(bool running);
