/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory freed in a stream whose work may still touch it.
 *
 * All functions are called with memory_lock held unless they say otherwise.
 */
#pragma once

#include "driver/driver.h"

struct async_allocation;

/* A position in a stream, after all work that it holds now. */
struct mark {
    struct pending_frees *pending;
    struct marker *marker;
};
/* Called without the lock. Returns the driver's error if the event cannot be recorded; there is no
 * mark then. */
CUresult pending_frees_mark(CUstream stream, struct mark *mark);
void pending_frees_unmark(const struct mark *mark); /* discards an unused mark */
void pending_frees_put(struct async_allocation *async, const struct mark *mark);
void pending_frees_leave(struct async_allocation *async); /* the same stream reuses it */
/* Makes allocations idle whose work is done. True if there were any. */
bool pending_frees_look(void);
/* Makes the stream, which reuses the allocation, wait for the work that still touches it. */
CUresult pending_frees_order(struct async_allocation *async, CUstream stream);
void pending_frees_context_ends(CUcontext context);
