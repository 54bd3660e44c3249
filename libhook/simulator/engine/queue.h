/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of streams, and their order; explained at the top of queue.c. */
#pragma once

#include "engine/stream.h"
#include "engine/work.h"

/* The caller of these functions holds engine_lock. */

/* Queues copies of `works` behind `after` and the positions that the stream must wait for. Never
 * waits. Returns the operation's number. */
uint64_t stream_queue(struct stream *stream, const struct work *works, size_t count,
                      const struct position *after, size_t after_count);

/* Queues `work` in the context's recorder, behind all work that was submitted to the context. */
uint64_t context_queue(struct context *context, const struct work *work);

/* Waits for the operation, with the lock released; returns the error of the context, if any. */
CUresult stream_wait(struct stream *stream, uint64_t number);
CUresult context_wait(struct context *context);
/* As stream_wait() for the whole context; takes the lock itself. */
CUresult context_drain(struct context *context);
/* As context_drain(), while no other thread may submit work to the context: it waits in
 * context_enter(). The driver does so (580) when it loads a module or unregisters host memory. */
CUresult context_drain_alone(struct context *context);
void context_enter(struct context *context);

/* Makes all operations in flight that access these bytes fault. */
void streams_doom(CUdeviceptr base, size_t size);
