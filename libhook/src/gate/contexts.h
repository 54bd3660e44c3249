/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every context of this process, on whichever device, whether that is shared or not. All functions
 * may be called from any thread, whatever lock it holds.
 */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"

#define ANY_DEVICE ((CUdevice)-1)

/* `owner` is the context to which its memory belongs and whose drain includes its work: itself, or
 * the primary one if it is green. */
void contexts_add(CUcontext context, CUdevice device, CUcontext owner);
/* It ends, and with it the green ones that it owns. With memory_lock once there is a client. */
void contexts_remove(CUcontext context);
unsigned contexts_ended(void);                     /* counts; what was made in them is gone */

bool contexts_find(CUcontext context, CUcontext *owner, CUdevice *device);
/* It was listed when contexts_ended() was `ended`, and has not ended since. */
bool contexts_lasts(CUcontext context, unsigned ended);
/* Those of a device that own themselves, in the order in which they were added; NULL: no more. */
CUcontext contexts_of(CUdevice device, unsigned number);
/* False: there was no memory to remember one, and nobody can wait for its work. */
bool contexts_complete(void);

CUcontext contexts_primary(CUdevice device);       /* whoever retains it; NULL: the driver has none */

/* The current one, however it was made: it is known from now on. Returns its owner. `added`, if not
 * NULL, says whether it was unknown. */
CUcontext contexts_learn(CUcontext current, bool *added);
/* The owner of the current one. The driver's error; NULL: none is. */
CUresult contexts_current(CUcontext *owner);
