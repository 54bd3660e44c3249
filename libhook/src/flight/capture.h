/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. During a capture the library makes no call that would invalidate it.
 */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"
#include "driver/locked.h"
#include "driver/real.h"

/* A capture begins: called before the driver's begin; capture_ends() undoes it if that fails. Waits
 * a few microseconds for threads that forbid captures. */
void capture_begins(void);
void capture_ends(void);             /* after the driver's end, whatever it returned */
bool capture_going_on(void);

/* Keeps captures from beginning until capture_allow(), for calls that synchronise a context on
 * their own. False: a capture is in progress, unless that does not matter (`whatever`). */
bool capture_forbid(bool whatever);
void capture_allow(void);
/* Stops querying a context that ends. */
void capture_leave_context(CUcontext context);
/* Whether a capture is in progress and it is known that no work is in flight; see capture.c. */
bool capture_alone(void);

/* RELAXED: until the end of the block this thread disturbs no capture, and the driver refuses it no
 * call because of one. capture_relax(): permanently; returns the previous mode. */
#define RELAXED AT_END(capture_exchange) CUstreamCaptureMode relaxed_before = capture_relax()
static inline void capture_exchange(CUstreamCaptureMode *mode)
{
    REAL(cuThreadExchangeStreamCaptureMode)(mode);
}
static inline CUstreamCaptureMode capture_relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    capture_exchange(&mode);
    return mode;
}

/* Whether the driver would now refuse this thread's allocations and frees: the call must then
 * return `*result`. No lock held. */
bool capture_refuses(CUresult *result);
