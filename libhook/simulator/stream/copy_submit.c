/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asynchronous. From page-locked memory and within the card a copy
 * with a stream only queues. From pageable memory the driver first moves the
 * bytes into memory of its own: a small source may be reused at once, a large
 * one only when the call returns, which is when it has been read; into
 * pageable memory a copy returns when it is done.
 */
#include "stream/copy_submit.h"

#include <stdlib.h>
#include <string.h>

#include "space/allocation.h"
#include "space/space.h"
#include "stream/capture.h"
#include "stream/submit.h"

#define STAGED ((size_t)64 << 10)

static bool is_pageable(const struct side *side)
{
    if (!side->host)
        return false;
    space_lock_to_read();
    bool known = space_find(side->address) != NULL;
    space_unlock();
    return !known;
}

static bool is_valid(const struct side *side, const struct work *work,
                     const struct device *device)
{
    size_t reach = (work->copy.depth - 1) * side->layer + (work->copy.height - 1) * side->pitch
        + work->copy.width;
    return side->host || range_is_valid(device, side->address, reach);
}

/* Between devices that do not reach each other the driver copies plain memory, and mapped memory
 * only if it is told of which contexts both are (as measured on two H200). */
static bool is_apart(const struct work *work)
{
    const struct side *to = &work->copy.to, *from = &work->copy.from;
    return !to->host && !from->host && to->device == NULL && from->device == NULL
        && space_is_apart(to->address, from->address);
}

CUresult copy_submit(CUstream handle, struct work work, enum copy_wait wait)
{
    struct context *context = context_current();
    struct stream *stream;
    CUresult result = stream_from(handle, context, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    size_t size = work.copy.width * work.copy.height * work.copy.depth;
    if (size == 0)
        return CUDA_SUCCESS;
    if (!is_valid(&work.copy.to, &work, stream->context->device)
        || !is_valid(&work.copy.from, &work, stream->context->device) || is_apart(&work))
        return CUDA_ERROR_INVALID_VALUE;
    bool from_pageable = is_pageable(&work.copy.from), to_pageable = is_pageable(&work.copy.to);
    pthread_mutex_lock(&engine_lock);
    bool capturing = stream->capture != NULL;
    bool line = work.copy.height == 1 && work.copy.depth == 1;
    if (capturing && wait == COPY_SYNC)
        result = capture_forbids_stream(stream);
    bool staged = !capturing && wait == COPY_ASYNC && from_pageable && !to_pageable && line
        && size <= STAGED;
    if (result == CUDA_SUCCESS && staged) {
        work.copy.staged = malloc(size);
        if (work.copy.staged == NULL)
            abort();
        memcpy(work.copy.staged, (const void *)(uintptr_t)work.copy.from.address, size);
    }
    if (result == CUDA_SUCCESS)
        result = stream_submit(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.copy.staged);
    bool waits = wait == COPY_SYNC
        ? work.copy.from.host || work.copy.to.host || from_pageable || to_pageable
        : (from_pageable || to_pageable) && !staged;
    if (result == CUDA_SUCCESS && waits && !capturing)
        result = stream_wait(stream, stream->submitted);
    pthread_mutex_unlock(&engine_lock);
    return result;
}
