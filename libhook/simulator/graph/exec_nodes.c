/* SPDX-License-Identifier: Apache-2.0 */
/* Changing single nodes of an executable graph. */
#include "driver/entry.h"
#include "graph/exec.h"
#include "graph/nodes.h"
#include "memory/copy.h"

static struct step *step_of(struct graph_exec *exec, CUgraphNode node)
{
    for (size_t i = 0; exec != NULL && i < exec->count; i++)
        if (exec->steps[i].node == (const struct node *)node)
            return &exec->steps[i];
    return NULL;
}

static CUresult set(CUgraphExec handle, CUgraphNode node, CUresult result,
                    const struct work *work)
{
    struct graph_exec *exec = graph_exec_from(handle);
    if (exec == NULL || result != CUDA_SUCCESS)
        return exec == NULL ? CUDA_ERROR_INVALID_VALUE : result;
    pthread_mutex_lock(&engine_lock);
    struct step *step = step_of(exec, node);
    if (step == NULL || step->work.kind != work->kind) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        work_hold(work);
        work_drop(&step->work);
        step->work = *work;
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

#define SET(conversion)                                                                  \
    struct work work;                                                                    \
    ENTER(ENTRY_INIT);                                                                   \
    CUresult result = conversion;                                                        \
    return set(exec, node, result, &work);

API(cuGraphExecKernelNodeSetParams, CUgraphExec exec, CUgraphNode node,
    const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    SET(node_work_kernel(parameters, &work))
}

API(cuGraphExecKernelNodeSetParams_v2, CUgraphExec exec, CUgraphNode node,
    const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    SET(node_work_kernel((const CUDA_KERNEL_NODE_PARAMS_v1 *)parameters, &work))
}

API(cuGraphExecMemcpyNodeSetParams, CUgraphExec exec, CUgraphNode node,
    const CUDA_MEMCPY3D *copy, CUcontext context)
{
    (void)context;
    SET(copy_from_3d(copy, &work))
}

API(cuGraphExecMemsetNodeSetParams, CUgraphExec exec, CUgraphNode node,
    const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
    (void)context;
    SET(node_work_set(parameters, &work))
}

API(cuGraphExecHostNodeSetParams, CUgraphExec exec, CUgraphNode node,
    const CUDA_HOST_NODE_PARAMS *parameters)
{
    SET(node_work_host(parameters, &work))
}

/* Only what does something on the card can be switched off. */
static struct step *switchable(CUgraphExec exec, CUgraphNode node)
{
    struct step *step = step_of(graph_exec_from(exec), node);
    bool may = step != NULL && (step->work.kind == WORK_KERNEL || step->work.kind == WORK_COPY
                                || step->work.kind == WORK_SET);
    return may ? step : NULL;
}

API(cuGraphNodeSetEnabled, CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    ENTER(ENTRY_INIT);
    pthread_mutex_lock(&engine_lock);
    struct step *step = switchable(exec, node);
    if (step != NULL)
        step->enabled = enabled != 0;
    pthread_mutex_unlock(&engine_lock);
    return step != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuGraphNodeGetEnabled, CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    ENTER(ENTRY_INIT);
    pthread_mutex_lock(&engine_lock);
    struct step *step = switchable(exec, node);
    if (step != NULL && enabled != NULL)
        *enabled = step->enabled;
    pthread_mutex_unlock(&engine_lock);
    return step != NULL && enabled != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
