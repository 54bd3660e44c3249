/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every context of this process, on any device, shared or not. All functions may be called from any
 * thread, with any locks held.
 */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"

#define ANY_DEVICE ((CUdevice)-1)

/* `owner` is the context to which its memory belongs and whose drain includes its work: the context
 * itself, or the primary context of a green one. */
void contexts_add(CUcontext context, CUdevice device, CUcontext owner);
/* The context ends, and with it the green contexts that it owns. With memory_lock once there is a
 * client. */
void contexts_remove(CUcontext context);
unsigned contexts_ended(void);                     /* number of contexts that have ended */

bool contexts_find(CUcontext context, CUcontext *owner, CUdevice *device);
/* Whether the context was listed when contexts_ended() was `ended`, and has not ended since. */
bool contexts_lasts(CUcontext context, unsigned ended);
/* Context `number` of a device, in the order of listing, green contexts left out; NULL: no more. */
CUcontext contexts_of(CUdevice device, unsigned number);
/* False: a context could not be listed for want of memory, so its work cannot be waited for. */
bool contexts_complete(void);

/* The primary context, which the program retains: no further reference is kept. NULL: the driver
 * has failed. */
CUcontext contexts_primary(CUdevice device);

/* Lists the current context, however it was created, and returns its owner. `added`, if not NULL,
 * receives whether the context was unknown before. */
CUcontext contexts_learn(CUcontext current, bool *added);
/* Returns the owner of the current context (NULL: none is current), or the driver's error. */
CUresult contexts_current(CUcontext *owner);
