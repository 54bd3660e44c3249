/* SPDX-License-Identifier: Apache-2.0 */
/* The work of streams, and the order in which it is done. See the essay in queue.c. */
#pragma once

#include "engine/stream.h"
#include "engine/work.h"

/* All with the engine's lock held. */

/* Queues works, copied, behind `after`, copied, and behind all that a stream of
 * this kind waits for anyway. Never waits. Returns the operation's number. */
uint64_t stream_queue(struct stream *stream, const struct work *works, size_t count,
                      const struct position *after, size_t after_count);

/* Waits, giving the lock up meanwhile; returns the context's error, if any. */
CUresult stream_wait(struct stream *stream, uint64_t number);
CUresult context_wait(struct context *context);
/* The same, with the lock taken and released. */
CUresult context_drain(struct context *context);

/* Work in flight that touches these bytes shall fault. */
void streams_doom(CUdeviceptr base, size_t size);
