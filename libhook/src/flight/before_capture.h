/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was in flight when the first of the captures that go on began. All of it with the lock of
 * capture.c held.
 */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"

/* No capture goes on, and one is about to begin. May take a millisecond. */
void before_capture_record(void);
/* None goes on any more. */
void before_capture_drop(void);
void before_capture_forget(CUcontext context);     /* which ends */
/* Nothing is in flight: what was in flight then is done, and nothing was submitted since. False:
 * something is, or that is not known. */
bool before_capture_is_over(void);
