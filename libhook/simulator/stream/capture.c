/* SPDX-License-Identifier: Apache-2.0 */
/* A capture has an origin stream, streams that joined it by waiting for one of its events, and a
 * graph that grows. The ends of a stream are the nodes on which its next node depends. All calls
 * on a broken capture fail until the origin stream ends the capture. */
#include "stream/capture.h"

#include <stdlib.h>
#include <string.h>

#include "engine/stream.h"
#include "graph/graph.h"

void capture_set_ends(struct stream *stream, struct node *const *nodes, size_t count)
{
    struct node **ends = checked(malloc((count + 1) * sizeof(struct node *)));
    if (count != 0)
        memcpy(ends, nodes, count * sizeof(struct node *));
    free(stream->capture_ends);
    stream->capture_ends = ends;
    stream->capture_end_count = count;
}

static void add_ends(struct stream *stream, struct node *const *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < stream->capture_end_count; j++)
            known = known || stream->capture_ends[j] == nodes[i];
        if (known)
            continue;
        stream->capture_ends = checked(realloc(stream->capture_ends, (stream->capture_end_count + 1)
                                       * sizeof(struct node *)));
        stream->capture_ends[stream->capture_end_count++] = nodes[i];
    }
}

CUresult capture_add(struct stream *stream, const struct work *work)
{
    struct capture *capture = stream->capture;
    FAIL_IF(capture->broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    struct node *node = graph_add(capture->graph, node_type_of(work), work, stream->capture_ends,
                                  stream->capture_end_count);
    capture_set_ends(stream, &node, 1);
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event)
{
    struct capture *capture = stream->capture;
    FAIL_IF(capture->broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    event_set_captured(event, capture->id, stream->capture_ends, stream->capture_end_count);
    return CUDA_SUCCESS;
}

CUresult capture_wait(struct stream *stream, struct event *event)
{
    struct capture *capture = stream->capture;
    FAIL_IF(capture != NULL && capture->broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (event->capture_id == 0) {
        if (event->last.stream == NULL)
            return CUDA_SUCCESS;     /* never recorded: nothing to wait for */
        capture->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    FIND(struct capture, other, capture_numbered(event->capture_id), CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(other->broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (capture != NULL && capture != other) {
        capture->broken = other->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (capture == NULL && stream == stream->context->legacy) {
        other->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (capture == NULL)
        capture_set_ends(stream, NULL, 0);
    stream->capture = other;
    add_ends(stream, event->nodes, event->node_count);
    return CUDA_SUCCESS;
}

/* Whether `stream` is the NULL stream and would wait for `other`, a captured blocking stream. */
static bool waits_for(const struct stream *stream, const struct stream *other)
{
    return stream == stream->context->legacy && other->capture != NULL
        && (other->flags & CU_STREAM_NON_BLOCKING) == 0;
}

bool capture_blocks(const struct stream *stream)
{
    for (struct stream *other = stream->context->streams;
         other != NULL && atomic_load(&captures.count) != 0; other = other->next)
        if (waits_for(stream, other))
            return true;
    return false;
}

CUresult capture_allows(struct stream *stream)
{
    if (!capture_blocks(stream))
        return CUDA_SUCCESS;
    for (struct stream *other = stream->context->streams; other != NULL; other = other->next)
        if (waits_for(stream, other))
            other->capture->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_forbids_stream(struct stream *stream)
{
    if (stream->capture != NULL) {
        stream->capture->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return capture_allows(stream);
}

CUresult capture_forbids_context(struct context *context)
{
    CUresult result = CUDA_SUCCESS;
    if (atomic_load(&captures.count) == 0)
        return CUDA_SUCCESS;
    for (struct context *one = all_contexts; one != NULL; one = one->next)
        for (struct stream *stream = one->streams; stream != NULL; stream = stream->next)
            if ((one == context || one->owner == context) && stream->capture != NULL) {
                stream->capture->broken = true;
                result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
    return result;
}

static void remove_stream(struct stream *stream)
{
    stream->capture = NULL;
    capture_set_ends(stream, NULL, 0);
}

void capture_finish(struct capture *capture)
{
    for (struct context *context = all_contexts; context != NULL; context = context->next)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (stream->capture == capture)
                remove_stream(stream);
    struct capture **place = &captures.list;
    while (*place != capture)
        place = &(*place)->next;
    *place = capture->next;
    atomic_fetch_sub(&captures.count, 1);
    free(capture);
}

void capture_leave(struct stream *stream)
{
    struct capture *capture = stream->capture;
    capture->broken = true;
    if (stream != capture->origin) {
        remove_stream(stream);
        return;
    }
    if (!capture->to_graph)
        graph_free(capture->graph);
    capture_finish(capture);
}
