/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The captures that are going on. All functions may be called from any thread.
 */
#pragma once

#include "driver/driver.h"

struct capture;

/* One that the driver is about to begin in `stream`: it counts from now on. Without its thread
 * nobody has a use for it, if it `ends_with_thread`. NULL: no memory. */
struct capture *capture_new(CUstream stream, bool ends_with_thread);
/* It has begun, or goes on after all. */
void capture_add(struct capture *capture);
/* Takes out those in `stream` or, if that is NULL, in `context`. NULL: there are none. */
struct capture *capture_take(CUstream stream, CUcontext context);
/* All of these are over: they count no longer. */
void capture_over(struct capture *captures);

/* One is going on that this thread has begun. */
bool capture_is_own(void);
/* For how many microseconds the oldest has been going on; 0: there is none. */
uint64_t capture_oldest(void);
/* Ends those that nobody can end any more. For a thread that disturbs no capture. */
void captures_end_abandoned(void);
