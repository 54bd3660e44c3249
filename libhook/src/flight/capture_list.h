/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The captures in progress. All functions may be called from any thread.
 */
#pragma once

#include "driver/driver.h"

struct capture;

/* Counts a capture that the driver is about to begin in `stream`. `ends_with_thread`: only this
 * thread can end the capture. NULL: out of memory. */
struct capture *capture_new(CUstream stream, bool ends_with_thread);
/* Lists a capture that has begun, or lists it again because it has not ended. */
void capture_add(struct capture *capture);
/* Removes the captures in `stream` or, if that is NULL, in `context`. NULL: there are none. */
struct capture *capture_take(CUstream stream, CUcontext context);
/* Stops counting these captures, which have ended. */
void capture_over(struct capture *captures);

/* Whether this thread has begun a capture that is in progress. */
bool capture_is_own(void);
/* us for which the oldest capture has been in progress; 0: there is none. */
uint64_t capture_oldest(void);
/* Ends captures whose thread has ended. The calling thread must be in relaxed capture mode. */
void captures_end_abandoned(void);
