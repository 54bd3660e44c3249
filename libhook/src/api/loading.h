/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers of functions for which the driver may allocate card memory itself: for code (also at a
 * launch), stacks, graphs. If a call returns OUT_OF_MEMORY because other clients fill the card, the
 * library gets room from them and repeats the call: the failed call has had no effect.
 */
#pragma once

#include "api/wrapper.h"
#include "memory/pinned.h"

/* Repeats the call while it runs out of memory and other clients can make more room. */
#define AGAIN_WITH_ROOM(result, call)                                              \
    for (struct room room = { 0 };                                                          \
         __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && room_begin(&room);) { \
        result = call;                                                             \
        room_end();                                                                \
    }

#define LOADING(name, parameters, arguments)                                       \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        CUresult result = REAL(name) arguments;                                    \
        AGAIN_WITH_ROOM(result, REAL(name) arguments)                              \
        return result;                                                             \
    }

/* As LOADING, for a call that also submits work. */
#define GATED_LOADING(name, stream, parameters, arguments)                         \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        gate_enter(stream);                                                        \
        CUresult result = REAL(name) arguments;                                    \
        gate_leave();                                                              \
        AGAIN_WITH_ROOM(result, REAL(name) arguments)                              \
        return result;                                                             \
    }
#define GATED_LOADING_PTSZ(name, stream, parameters, arguments)                    \
    GATED_LOADING(name, stream, parameters, arguments)                             \
    GATED_LOADING(name##_ptsz, PER_THREAD(stream), parameters, arguments)
