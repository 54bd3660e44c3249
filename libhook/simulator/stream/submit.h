/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream's handle and a work to an operation or, in a capture, a node. */
#pragma once

#include "driver/entry.h"
#include "engine/queue.h"

/*
 * Two entry points in one. A program is compiled with one of two default
 * streams: the NULL stream, then it calls `name`; or each thread's own, then
 * it calls `name_ptsz`, or `name_ptds` if it passes no stream. In the body
 * `on` is the stream that is meant; the one that is passed is called `stream`.
 */
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

/* The stream that a handle means to the calling thread in `context`. */
CUresult stream_from(CUstream handle, struct context *context, struct stream **stream);

/* Declares `stream` and `result`, or fails the call. */
#define FIND_STREAM(handle)                                                              \
    struct stream *stream;                                                               \
    CUresult result = stream_from(handle, context_current(), &stream);                   \
    if (result != CUDA_SUCCESS)                                                          \
        return result

/* A program's new stream. */
CUresult stream_new(struct context *context, unsigned flags, int priority, CUstream *handle);

/* All that a context holds by now, as one event; and all its later work waits for one. NULL: no
 * context. Green ones go with their primary. */
CUresult context_record(struct context *context, CUevent event);
CUresult context_wait_event(struct context *context, CUevent event);

/* Captures the work if the stream is being captured, else queues it. With the engine's lock held. */
CUresult stream_submit(struct stream *stream, const struct work *work);
