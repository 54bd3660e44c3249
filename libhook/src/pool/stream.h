/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which stream a handle means. All functions may be called from any thread with no lock held.
 */
#pragma once

#include "driver/driver.h"

/* What a stream is known by among all there ever are in its context; 0: by nothing. */
uint64_t stream_name(CUstream stream);
/* The owner of its context, or of the current one if it is in any. The driver's error. */
CUresult stream_place(CUstream stream, CUcontext *context, CUdevice *device);

/* A stream is about to be destroyed: its handle will be another's. */
void stream_ends(void);
