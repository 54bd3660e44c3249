/* SPDX-License-Identifier: Apache-2.0 */
/* Launching executable graphs. */
#include "graph/exec.h"
#include "stream/capture.h"
#include "stream/submit.h"

static CUresult launch(CUgraphExec handle, CUstream stream_handle)
{
    struct stream *stream;
    CUresult result = stream_from(stream_handle, context_current(), &stream);
    struct graph_exec *exec = graph_exec_from(handle);
    if (result != CUDA_SUCCESS)
        return result;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    result = capture_forbids_stream(stream);
    if (result == CUDA_SUCCESS)
        graph_exec_queue(exec, stream);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

API_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), return launch(exec, on);)

/* There is nothing to upload. */
static CUresult upload(CUgraphExec exec, CUstream stream_handle)
{
    struct stream *stream;
    CUresult result = stream_from(stream_handle, context_current(), &stream);
    return result != CUDA_SUCCESS ? result
        : graph_exec_from(exec) == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), return upload(exec, on);)
