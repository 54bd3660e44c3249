/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: work becomes nodes of a graph and is not executed. */
#pragma once

#include "driver/captures.h"
#include "engine/stream.h"
#include "engine/work.h"

struct event;

/* The caller of these functions holds engine_lock. */

/* Adds a node that depends on the stream's last nodes. Takes references as stream_queue() does. */
CUresult capture_add(struct stream *stream, const struct work *work);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);

/* Work may not be queued in the NULL stream while a blocking stream of its context is captured:
 * the attempt invalidates the capture. */
CUresult capture_allows(struct stream *stream);

bool capture_blocks(const struct stream *stream);    /* a capture makes this NULL stream unusable */

/* Synchronising a captured stream, or a context that has one, invalidates the capture. */
CUresult capture_forbids_stream(struct stream *stream);
CUresult capture_forbids_context(struct context *context);

void capture_leave(struct stream *stream);           /* a captured stream is destroyed */
void capture_finish(struct capture *capture);        /* removes the capture from all its streams */

/* The nodes of the capture on which the stream's next node depends. */
void capture_set_ends(struct stream *stream, struct node *const *nodes, size_t count);
