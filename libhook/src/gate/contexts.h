/* SPDX-License-Identifier: Apache-2.0 */
/* Every context of this process, shared or not. Any thread may call these, with any locks. */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"

#define ANY_DEVICE ((CUdevice)-1)

/* `owner` has the memory of `context`, and its drain includes the work of `context`. It is
 * `context` itself, or the primary context of a green context. */
void contexts_add(CUcontext context, CUdevice device, CUcontext owner);
/* The context and the green contexts that it owns end. With memory_lock once there is a client. */
void contexts_remove(CUcontext context);
unsigned contexts_ended(void);                     /* number of contexts that have ended */

bool contexts_find(CUcontext context, CUcontext *owner, CUdevice *device);
/* Whether the context was listed at contexts_ended() == `ended`, and has not ended since. */
bool contexts_lasts(CUcontext context, unsigned ended);
/* Adds `change` to the number of cuCtxAttach() without cuCtxDetach(). False: the sum would be below
 * 0, or the context is not listed. */
bool contexts_attach(CUcontext context, int change);
/* Context `number` of a device in listing order, without green contexts; NULL: no more. */
CUcontext contexts_of(CUdevice device, unsigned number);

/* The primary context, without retaining it. NULL: the driver has failed. */
CUcontext contexts_primary(CUdevice device);

/* Lists the current context. True: it was not listed before. *owner: `current`, if unknown. */
bool contexts_learn(CUcontext current, CUcontext *owner, CUdevice *device);
/* As contexts_find(); makes a context that is not listed current, and lists it. */
CUresult contexts_describe(CUcontext context, CUcontext *owner, CUdevice *device);
/* The owner of the current context, NULL if none is current; or the driver's error. */
CUresult contexts_current(CUcontext *owner);
