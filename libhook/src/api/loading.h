/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers of functions for which the driver may need memory of the card itself: code that is
 * loaded, at a launch too, stacks, graphs. Where others fill the card they make room, and the call
 * is made again: one that was out of memory has done nothing.
 */
#pragma once

#include "api/wrapper.h"
#include "memory/pinned.h"

/* For as long as it is out of memory and others can make more room. */
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

/* One that submits work, too. */
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
