/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream's handle and a work to an operation or, in a capture, a node. */
#ifndef NVSHARE_SIMULATOR_SUBMIT_H
#define NVSHARE_SIMULATOR_SUBMIT_H

#include "engine/queue.h"

/* The stream that a handle means to the calling thread in `context`. */
CUresult stream_from(CUstream handle, struct context *context, struct stream **stream);

/* Captures the work if the stream is being captured, else queues it. With the engine's lock held. */
CUresult stream_submit(struct stream *stream, const struct work *work);

#endif
