/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/entry.h"
#include "graph/graph.h"
#include "module/module.h"
#include "stream/capture.h"
#include "stream/submit.h"

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3],
                       CUstream handle, void **parameters, void **extra)
{
    struct stream *stream;
    struct work work;
    TRY(stream_from(handle, context_current(), &stream));
    TRY(launch_work(function, grid, block, parameters, extra, stream->context, &work));
    LOCKED(engine_lock);
    return stream_submit(stream, &work);
}

#define GRID unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,         \
             unsigned int by, unsigned int bz, unsigned int shared
#define DIMENSIONS (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}

API_PTSZ(cuLaunchKernel,
         (CUfunction function, GRID, CUstream stream, void **parameters, void **extra),
         (void)shared;
         return launch(function, DIMENSIONS, on, parameters, extra);)

API_PTSZ(cuLaunchCooperativeKernel,
         (CUfunction function, GRID, CUstream stream, void **parameters),
         (void)shared;
         return launch(function, DIMENSIONS, on, parameters, NULL);)

/* `null_stream`: the stream that NULL means. */
static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function,
                                  void **parameters, void **extra, CUstream null_stream)
{
    if (config == NULL || (config->numAttrs != 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    CUstream stream = config->hStream != NULL ? config->hStream : null_stream;
    return launch(function, grid, block, stream, parameters, extra);
}

#define LAUNCH_EX(name, null_stream)                                                     \
    FORWARD(name, (const CUlaunchConfig *config, CUfunction function, void **parameters, \
                   void **extra), ENTRY_CONTEXT,                                         \
            launch_configured(config, function, parameters, extra, null_stream))
LAUNCH_EX(cuLaunchKernelEx, NULL)
LAUNCH_EX(cuLaunchKernelEx_ptsz, CU_STREAM_PER_THREAD)

static CUresult launch_function(CUstream handle, CUhostFn function, void *data)
{
    FAIL_IF(function == NULL, CUDA_ERROR_INVALID_VALUE);
    FIND_STREAM(handle);
    LOCKED(engine_lock);
    return stream_submit(stream, &(struct work){.kind = WORK_HOST, .host = {function, data}});
}

API_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data),
         return launch_function(on, function, data);)

static CUresult launch_graph(CUgraphExec handle, CUstream stream_handle)
{
    FIND_STREAM(stream_handle);
    FIND(struct graph_exec, exec, graph_exec_from(handle), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    TRY(capture_forbids_stream(stream));
    return graph_exec_queue(exec, stream);
}

API_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), return launch_graph(exec, on);)

static CUresult upload(CUgraphExec exec, CUstream stream_handle)
{
    FIND_STREAM(stream_handle);
    return graph_exec_from(exec) == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), return upload(exec, on);)
