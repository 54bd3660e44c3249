/* SPDX-License-Identifier: Apache-2.0 */
/* How contexts begin and end. */
#pragma once

#include "driver/context.h"

/* All with context_lock held. */
struct context *context_make(struct device *device, bool primary);   /* not alive yet; NULL: no memory */
CUresult primary_retain(struct device *device);
bool primary_release(struct device *device);         /* false: nobody had */
CUresult context_enliven(struct context *context, unsigned flags);   /* a new or a dead one */
void context_end(struct context *context);   /* waits for its work, then frees all that it holds */
