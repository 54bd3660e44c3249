/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's work, found by querying its streams, for drivers without cuCtxRecordEvent. With other
 * drivers nothing is listed. From any thread.
 */
#pragma once

#include "driver/real.h"

/* The driver can record all work of a context in one event. */
static inline bool streams_need_no_list(void)
{
    return HAVE_REAL(cuCtxRecordEvent);
}

/* The program has created a stream in the current context. False: out of memory. */
bool streams_add(CUstream stream);
/* The stream is about to be destroyed; the other function is called afterwards. */
struct listed_stream *streams_leave(CUstream stream);
void streams_left(struct listed_stream *listed);
/* All streams of this context are about to be destroyed. */
void streams_end_with(CUcontext context);


/* For streams_look(), to tell which work was submitted before. */
uint64_t streams_moment(void);
/* Success: all work submitted before `moment` in this context, which is current, is done; or the
 * driver's error. Must not be called during a capture in it. */
CUresult streams_look(CUcontext context, uint64_t moment);
