/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The captures in progress. All functions may be called from any thread.
 */
#pragma once

#include "driver/driver.h"

struct capture;

/* A capture that the driver is about to begin in `stream`: it counts from now on.
 * `ends_with_thread`: it is useless once this thread has ended. NULL: out of memory. */
struct capture *capture_new(CUstream stream, bool ends_with_thread);
/* The capture has begun, or turned out not to be over. */
void capture_add(struct capture *capture);
/* Removes the captures in `stream` or, if that is NULL, in `context`. NULL: there are none. */
struct capture *capture_take(CUstream stream, CUcontext context);
/* These captures are over: they count no longer. */
void capture_over(struct capture *captures);

/* This thread has begun a capture in progress. */
bool capture_is_own(void);
/* us for which the oldest capture has been in progress; 0: there is none. */
uint64_t capture_oldest(void);
/* Ends captures that no thread can end any more. For a thread that disturbs no capture. */
void captures_end_abandoned(void);
