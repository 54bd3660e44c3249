/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream behind a handle. All functions may be called from any thread with no lock held.
 */
#pragma once

#include "driver/driver.h"

/* A number that no other stream of the context ever has; 0: not known. */
uint64_t stream_name(CUstream stream);
/* The stream's device, and its context (NULL if the stream belongs to whichever is current).
 * Returns the driver's error. */
CUresult stream_device(CUstream stream, CUcontext *context, CUdevice *device);

/* A stream is about to be destroyed: the driver may reuse its handle. */
void stream_ends(void);
