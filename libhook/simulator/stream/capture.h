/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: work that becomes nodes of a graph instead of being done. */
#ifndef NVSHARE_SIMULATOR_CAPTURE_H
#define NVSHARE_SIMULATOR_CAPTURE_H

#include "engine/stream.h"

struct event;

/* What a call that is unsafe during captures gets, in the calling thread's
 * mode: success, or an error, and then the captures in question are broken. */
CUresult capture_prohibits(void);

/* All below: with the engine's lock held. */

/* Adds a node with the work behind the stream's last ones. Takes what the work points to as stream_queue does. */
CUresult capture_add(struct stream *stream, const struct work *work);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);

/* May work be queued in a stream that is not being captured? Not in the NULL
 * stream while a blocking stream of its context is: that breaks the capture. */
CUresult capture_allows(struct stream *stream);

/* Synchronising with a capturing stream, or with a context that has one, breaks the capture. */
CUresult capture_forbids_stream(struct stream *stream);
CUresult capture_forbids_context(struct context *context);
bool capture_break(unsigned long long id);       /* false: it has ended */

/* A captured stream is destroyed. */
void capture_leave(struct stream *stream);

#endif
