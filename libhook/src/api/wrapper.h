/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building blocks of wrappers. hooks.def says how wrappers are found.
 */
#pragma once

#include "driver/real.h"
#include "gate/gate.h"

/* Visible to programs; the library's own references, such as the list of wrappers, bind to this
 * definition, whichever other library defines the name. */
#define EXPORT __attribute__((visibility("protected")))

/* The wrapper of a function that submits work on `stream`, or whose arguments must be in resident
 * memory. */
#define GATED(name, stream, parameters, arguments) \
    EXPORT CUresult name parameters                \
    {                                              \
        gate_enter(stream);                        \
        CUresult result = REAL(name) arguments;    \
        gate_leave();                              \
        return result;                             \
    }

/* In a variant for per-thread default streams, 0 means the thread's own. */
#define PER_THREAD(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

/* The function and its variant for per-thread default streams. */
#define GATED_PTSZ(name, stream, parameters, arguments) \
    GATED(name, stream, parameters, arguments)          \
    GATED(name##_ptsz, PER_THREAD(stream), parameters, arguments)
#define GATED_PTDS(name, stream, parameters, arguments) \
    GATED(name, stream, parameters, arguments)          \
    GATED(name##_ptds, stream, parameters, arguments)
