/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was freed in a stream, until the stream has come there.
 *
 * All functions are called with memory_lock held unless they say otherwise.
 */
#pragma once

#include "driver/driver.h"

struct async_allocation;

/* A place in a stream, behind all that it holds by now. */
struct mark {
    struct pending_frees *pending;
    struct marker *marker;
};
/* Without the lock. The driver's error if it takes no mark; then there is none. */
CUresult pending_frees_mark(CUstream stream, struct mark *mark);
void pending_frees_unmark(const struct mark *mark); /* was for nothing */
void pending_frees_put(struct async_allocation *async, const struct mark *mark);
void pending_frees_leave(struct async_allocation *async); /* the stream itself uses it again */
/* Makes those idle whose work is done. True if there were any. */
bool pending_frees_look(void);
/* The stream, which uses it from now on, first waits for what it waits for. */
CUresult pending_frees_order(struct async_allocation *async, CUstream stream);
void pending_frees_context_ends(CUcontext context);
