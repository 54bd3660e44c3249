/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: work that becomes nodes of a graph instead of being done. */
#pragma once

#include "driver/captures.h"
#include "engine/stream.h"
#include "engine/work.h"

struct event;

/* All with the engine's lock held. */

/* Adds a node with the work behind the stream's last ones. Takes what the work points to as
 * stream_queue does. */
CUresult capture_add(struct stream *stream, const struct work *work);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);

/* May work be queued in a stream that is not being captured? Not in the NULL
 * stream while a blocking stream of its context is: that breaks the capture. */
CUresult capture_allows(struct stream *stream);

bool capture_blocks(const struct stream *stream);    /* a capture makes the NULL stream unusable */

/* Synchronising with a capturing stream, or with a context that has one, breaks the capture. */
CUresult capture_forbids_stream(struct stream *stream);
CUresult capture_forbids_context(struct context *context);

void capture_leave(struct stream *stream);           /* a captured stream is destroyed */
void capture_finish(struct capture *capture);        /* over, for every stream in it */

/* A capture's nodes that the stream's next one depends on. */
void capture_set_ends(struct stream *stream, struct node *const *nodes, size_t count);
void capture_add_ends(struct stream *stream, struct node *const *nodes, size_t count);
