/* SPDX-License-Identifier: Apache-2.0 */
/* Submits work to the stream of a handle: as an operation or, in a capture, as a node. */
#pragma once

#include "driver/entry.h"
#include "engine/queue.h"

/* A program is compiled for the NULL stream as its default (`name`) or one per thread
 * (`name_ptsz`, or `name_ptds` without a stream parameter). In the body `on` is the effective
 * stream, `stream` the argument. */
#define API_ON(name, stream_meant, parameters, ...)                                      \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        ENTER(ENTRY_CONTEXT);                                                            \
        CUstream on = stream_meant;                                                      \
        __VA_ARGS__                                                                      \
    }
#define API_PTSZ(name, parameters, ...)                                                  \
    API_ON(name, stream, parameters, __VA_ARGS__)                                        \
    API_ON(name##_ptsz, stream == NULL ? CU_STREAM_PER_THREAD : stream, parameters,      \
           __VA_ARGS__)
#define API_PTDS(name, parameters, ...)                                                  \
    API_ON(name, CU_STREAM_LEGACY, parameters, __VA_ARGS__)                              \
    API_ON(name##_ptds, CU_STREAM_PER_THREAD, parameters, __VA_ARGS__)

/* The stream that a handle denotes for the calling thread in `context`. */
CUresult stream_from(CUstream handle, struct context *context, struct stream **stream);

/* Declares `stream` and `result`; returns an error if there is no such stream. */
#define FIND_STREAM(handle)                                                              \
    struct stream *stream;                                                               \
    CUresult result = stream_from(handle, context_current(), &stream);                   \
    if (result != CUDA_SUCCESS)                                                          \
        return result

/* Creates a stream of the program. */
CUresult stream_new(struct context *context, unsigned flags, int priority, CUstream *handle);

/* Adds the work to the capture of the stream or queues it. engine_lock is held. */
CUresult stream_submit(struct stream *stream, const struct work *work);
