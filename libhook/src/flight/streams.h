/* SPDX-License-Identifier: Apache-2.0 */
/* Queries streams, for drivers without cuCtxRecordEvent; identifies streams. For any thread. */
#pragma once

#include "driver/real.h"

/* Whether the driver can record all work of a context in one event. */
static inline bool streams_need_no_list(void)
{
    return HAVE_REAL(cuCtxRecordEvent);
}

/* Lists a stream that the program has created in the current context. False: out of memory. */
bool streams_add(CUstream stream);
void streams_destroy(CUstream stream);             /* called before a stream is destroyed */
void streams_end_with(CUcontext context);

uint64_t streams_moment(void);                     /* how often a listed stream was seen empty */
/* Success: `context`, which is current and has no capture, has done all work before `moment`. */
CUresult streams_query(CUcontext context, uint64_t moment);

/* A number that no other stream of the context ever has; 0: unknown, as before CUDA 12. */
uint64_t stream_name(CUstream stream);
/* The stream's device and context. Returns the driver's error. */
CUresult stream_device(CUstream stream, CUcontext *context, CUdevice *device);
