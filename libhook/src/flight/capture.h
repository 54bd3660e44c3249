/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. While any capture is going on nothing is called that would break it.
 */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"
#include "driver/locked.h"
#include "driver/real.h"

/* A capture begins: before the driver's begin; undone by capture_ends() if that failed. Waits
 * for who forbids it, a few microseconds. */
void capture_begins(void);
void capture_ends(void);             /* after the driver's end, whatever it returned */
bool capture_going_on(void);

/* Keeps captures from beginning until capture_allow(), for calls that synchronise
 * a context on their own. False: one is going on, unless that does not matter (`whatever`). */
bool capture_forbid(bool whatever);
void capture_allow(void);
/* A context ends: nobody asks it for its work any more. */
void capture_leave_context(CUcontext context);
/* Captures go on, and nothing is in flight, as far as that can be known: see capture.c. */
bool capture_alone(void);

/* RELAXED: until the end of the block this thread disturbs no capture, and the driver refuses it
 * nothing on account of one. capture_relax(): for good; returns what was before. */
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

/* Whether the driver refuses now, to this thread, to allocate, to free and the
 * like: then the call is to end with `*result`. No lock held. */
bool capture_refuses(CUresult *result);
