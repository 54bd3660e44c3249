/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wrappers are made of. See hooks.def for how they are found.
 */
#pragma once

#include "driver/real.h"
#include "gate/gate.h"

/* Seen by programs; and our own references, such as the list of wrappers,
 * mean this definition, whoever else defines the name. */
#define EXPORT __attribute__((visibility("protected")))

/* The wrapper of a function that submits work on `stream`, or to whose
 * arguments device memory must be there. */
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
