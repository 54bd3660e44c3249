/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "driver/entry.h"
#include "graph/graph.h"
#include "stream/capture.h"
#include "stream/submit.h"

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, CUgraph into,
                      const CUgraphNode *after, size_t count)
{
    FIND_STREAM(handle);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED
        || (into != NULL && graph_from(into) == NULL) || (count != 0 && after == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (node_from(after[i]) == NULL || node_from(after[i])->graph != graph_from(into))
            return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    LOCKED(engine_lock);
    FAIL_IF(stream->capture != NULL, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = checked(calloc(1, sizeof *capture));
    *capture = (struct capture){.next = captures.list, .id = ++captures.made,
                                .origin = stream, .mode = mode, .thread = &capture_thread_mode,
                                .to_graph = into != NULL,
                                .graph = into != NULL ? graph_from(into) : graph_make()};
    capture->first = capture->graph->count;
    captures.list = capture;
    atomic_fetch_add(&captures.count, 1);
    stream->capture = capture;
    capture_set_ends(stream, (struct node *const *)after, count);
    return CUDA_SUCCESS;
}

/* Whether the origin stream has waited for all other streams of the capture. */
static bool is_joined(const struct capture *capture)
{
    const struct stream *origin = capture->origin;
    for (size_t i = capture->first; i < capture->graph->count; i++) {
        bool joined = false;
        for (size_t j = 0; j < origin->capture_end_count && !joined; j++)
            joined = node_depends_on(origin->capture_ends[j], capture->graph->nodes[i]);
        if (!joined)
            return false;
    }
    return true;
}

static CUresult end(CUstream handle, CUgraph *graph)
{
    FIND_STREAM(handle);
    FAIL_IF(graph == NULL, CUDA_ERROR_INVALID_VALUE);
    *graph = NULL;
    LOCKED(engine_lock);
    struct capture *capture = stream->capture;
    if (capture == NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture->origin != stream) {
        capture->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else {
        bool foreign = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
            && capture->thread != &capture_thread_mode;
        result = foreign ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            : capture->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            : is_joined(capture) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        if (result == CUDA_SUCCESS)
            *graph = (CUgraph)capture->graph;
        else
            graph_free(capture->graph);      /* also a graph of the program, as the driver */
        capture_finish(capture);
    }
    return result;
}

API_PTSZ(cuStreamBeginCapture, (CUstream stream),
         return begin(on, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);)
API_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
         return begin(on, mode, NULL, NULL, 0);)
API_PTSZ(cuStreamBeginCaptureToGraph,
         (CUstream stream, CUgraph graph, const CUgraphNode *after,
          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
         (void)edges;
         return graph == NULL ? CUDA_ERROR_INVALID_VALUE
                              : begin(on, mode, graph, after, count);)
API_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *graph), return end(on, graph);)

API(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *mode)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(mode == NULL, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode before = capture_thread_mode;
    capture_thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Queries are always allowed, except of a NULL stream that cannot be used because of a capture. */
static CUresult query_capture(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                              CUgraph *graph, const CUgraphNode **ends,
                              const CUgraphEdgeData **edges, size_t *count)
{
    FIND_STREAM(handle);
    FAIL_IF(status == NULL, CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    struct capture *capture = stream->capture;
    *status = capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE
        : capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture == NULL)
        result = capture_blocks(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        GIVE_IF(id, capture->id);
        GIVE_IF(graph, (CUgraph)capture->graph);
        GIVE_IF(ends, (const CUgraphNode *)stream->capture_ends);
        GIVE_IF(edges, NULL);
        GIVE_IF(count, stream->capture_end_count);
    }
    return result;
}

API_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
         return query_capture(on, status, NULL, NULL, NULL, NULL, NULL);)
API_PTSZ(cuStreamGetCaptureInfo_v3,
         (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **ends, const CUgraphEdgeData **edges, size_t *count),
         return query_capture(on, status, id, graph, ends, edges, count);)
