/* SPDX-License-Identifier: Apache-2.0 */
/* Stream captures, which no call of the library may invalidate. */
#pragma once

#include "driver/driver.h"
#include "driver/locked.h"
#include "driver/real.h"

bool capture_going_on(void);

/* Keeps captures from beginning until capture_allow(), for calls that synchronise a context on
 * their own. False: a capture is in progress; with `despite_captures` that is no reason to fail. */
bool capture_forbid(bool despite_captures);
void capture_allow(void);
void event_destroy(CUcontext context, CUevent event);
/* Destroys the events recorded in a context that is about to end. */
void capture_leave_context(CUcontext context);
/* Whether a capture is in progress and certainly no work is in flight; see capture.c. */
bool capture_without_work(void);

/* RELAXED: until the end of the scope this thread disturbs no capture, and the driver refuses it no
 * call because of a capture. capture_relax(): the same, until capture_exchange() of its result. */
#define RELAXED                                                                    \
    AT_END(capture_exchange) CUstreamCaptureMode relaxed_before = capture_relax(); \
    UNLESS_LEFT(capture_restore, NULL, relaxed_before)
void capture_restore(void *unused, uint64_t mode);
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

/* Whether the driver would now refuse this thread's allocations and frees, with the error *result.
 * The caller holds no lock. */
bool capture_refuses(CUresult *result);

/* The functions below list captures in progress; for any thread. */
struct capture;

/* Counts a capture that the driver is about to begin in `stream`. `ends_with_thread`: only this
 * thread can end the capture. NULL: out of memory. */
struct capture *capture_new(CUstream stream, bool ends_with_thread);
/* Lists a capture that has begun, or lists it again because it has not ended. */
void capture_add(struct capture *capture);
/* Unlists and returns the captures in `stream` or, if NULL, in `context`. NULL: there are none. */
struct capture *capture_take(CUstream stream, CUcontext context);
/* Stops counting these captures, which have ended. */
void capture_over(struct capture *captures);

/* Whether this thread has begun a capture that is in progress. */
bool capture_is_own(void);
/* us for which the oldest capture has been in progress; 0: there is none. */
uint64_t capture_oldest(void);
/* Ends captures begun by ended threads. The calling thread must be in relaxed capture mode. */
void captures_end_abandoned(void);
