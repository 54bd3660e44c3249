/* SPDX-License-Identifier: Apache-2.0 */
/* The list of the process's contexts on all GPUs. Any thread may call, with any locks held. */
#pragma once

#include <stdbool.h>

#include "driver/driver.h"

#define ANY_DEVICE ((CUdevice)-1)

/* `owner` has the memory of `context`, and a drain of `owner` includes the work of `context`.
 * `owner` is `context` itself, or the primary context of a green context. */
void contexts_add(CUcontext context, CUdevice device, CUcontext owner);
/* Unlists a context and the green contexts that it owns. memory_lock is held if a client exists. */
void contexts_remove(CUcontext context);
unsigned contexts_ended(void);                     /* number of contexts that have ended */

bool contexts_find(CUcontext context, CUcontext *owner, CUdevice *device);
/* Whether the context was listed at contexts_ended() == `ended`, and has not ended since. */
bool contexts_lasts(CUcontext context, unsigned ended);
/* Adds `change` to the number of cuCtxAttach() without cuCtxDetach(). False: the sum would be below
 * 0, or the context is not listed. */
bool contexts_attach(CUcontext context, int change);
/* The listed context of `device` at index `number`, green contexts not counted; NULL: no more. */
CUcontext contexts_of(CUdevice device, unsigned number);

/* The primary context, without retaining it. NULL: the driver has failed. */
CUcontext contexts_primary(CUdevice device);

/* Lists `current`, the current context. True: newly listed. *owner: `current` if not known. */
bool contexts_learn(CUcontext current, CUcontext *owner, CUdevice *device);
/* As contexts_find(), but lists an unlisted context by making it current for a moment. */
CUresult contexts_describe(CUcontext context, CUcontext *owner, CUdevice *device);
/* *owner: the owner of the current context, or NULL. Returns the driver's error. */
CUresult contexts_current(CUcontext *owner);
