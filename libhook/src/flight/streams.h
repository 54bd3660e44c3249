/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's work, asked of its streams, for drivers without cuCtxRecordEvent. With any other
 * nothing is listed. From any thread.
 */
#pragma once

#include "driver/real.h"

/* The driver can be asked for all work of a context at once. */
static inline bool streams_need_no_list(void)
{
    return HAVE_REAL(cuCtxRecordEvent);
}

/* The program has made one in the current context. False: no memory to remember it. */
bool streams_add(CUstream stream);
/* It is about to be destroyed; afterwards. */
struct listed_stream *streams_leave(CUstream stream);
void streams_left(struct listed_stream *listed);
/* So are all that were made in this context. */
void streams_end_with(CUcontext context);


/* For streams_look() to tell what was submitted before. */
uint64_t streams_moment(void);
/* Success: all that was submitted in this context, which is current, before `moment` is done;
 * or the driver's error. Never during a capture in it. */
CUresult streams_look(CUcontext context, uint64_t moment);
