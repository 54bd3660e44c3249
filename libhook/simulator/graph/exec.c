/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executable graphs: the nodes of a graph in the order of their creation. A launch is one operation
 * in its stream, which executes the nodes one after the other.
 */
#include "graph/graph.h"

#include <stdlib.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "memory/copy.h"
#include "space/graph_memory.h"

static void copy_steps(struct graph_exec *exec, const struct graph *graph)
{
    exec->steps = checked(calloc(graph->count + 1, sizeof *exec->steps));
    exec->count = graph->count;
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        exec->steps[i] = (struct step){node, node->type, node->work};
        work_hold(&node->work);
    }
}

static void exec_free(struct graph_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        work_drop(&exec->steps[i].work);
    if (exec->last.stream != NULL)
        stream_drop(exec->last.stream);
    free(exec->steps);
    free(exec);
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags)
{
    struct graph *graph = graph_from(graph_handle);
    FAIL_IF(handle == NULL || graph == NULL || flags > 15, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0, CUDA_ERROR_NOT_SUPPORTED);
    LOCKED(engine_lock);
    for (size_t i = 0; i < graph->count; i++)
        FAIL_IF(!work_is_valid(&graph->nodes[i]->work, context_current()->device),
                CUDA_ERROR_INVALID_VALUE);
    struct graph_exec *exec = checked(calloc(1, sizeof *exec));
    exec->frees_on_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    copy_steps(exec, graph);
    object_add(exec, OBJECT_GRAPH_EXEC);
    *handle = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate_logged(CUgraphExec *exec, CUgraph graph, char *log, size_t room)
{
    if (log != NULL && room > 0)
        *log = '\0';
    return instantiate(exec, graph, 0);
}

#define LOGGED (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t room)
FORWARD_BOTH(cuGraphInstantiate, _v2, LOGGED, ENTRY_CONTEXT | ENTRY_UNSAFE, ((void)error,
             instantiate_logged(exec, graph, log, room)))
FORWARD(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags),
        ENTRY_CONTEXT | ENTRY_UNSAFE, instantiate(exec, graph, flags))

/* The version of cuGraphInstantiate of CUDA 12: the same behaviour at another address, and
 * exported under no name of its own. */
CUresult graph_instantiate_v12000(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult graph_instantiate_v12000(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    ENTER_AS("cuGraphInstantiateWithFlags", ENTRY_CONTEXT | ENTRY_UNSAFE);
    return instantiate(exec, graph, flags);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    FAIL_IF(parameters == NULL, CUDA_ERROR_INVALID_VALUE);
    CUresult result = instantiate(exec, graph, parameters->flags);
    parameters->hErrNode_out = NULL;
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                                    : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

FORWARD_BOTH(cuGraphInstantiateWithParams, _ptsz, (CUgraphExec *exec, CUgraph graph,
             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters), ENTRY_CONTEXT | ENTRY_UNSAFE,
             instantiate_with(exec, graph, parameters))
API(cuGraphExecDestroy, CUgraphExec handle)
{
    ENTER(ENTRY_INIT);
    FIND(struct graph_exec, exec, graph_exec_from(handle), CUDA_ERROR_INVALID_VALUE);
    object_remove(exec);
    LOCKED(engine_lock);
    exec_free(exec);                 /* launches in flight hold their own references */
    return CUDA_SUCCESS;
}

/* Allocates and frees the memory of a launch's nodes. */
static CUresult launch_memory(const struct graph_exec *exec)
{
    for (size_t i = 0; i < exec->count && !exec->frees_on_launch; i++)
        FAIL_IF(exec->steps[i].work.kind == WORK_GRAPH_MEMORY
                && graph_memory_is_launched(exec->steps[i].work.memory), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < exec->count; i++) {
        const struct work *work = &exec->steps[i].work;
        if (work->kind == WORK_GRAPH_MEMORY)
            graph_memory_launch(work->memory, true);
        else if (work->kind == WORK_FREE)
            graph_memory_launch(work->freed, false);
    }
    return CUDA_SUCCESS;
}

CUresult graph_exec_queue(struct graph_exec *exec, struct stream *stream)
{
    TRY(launch_memory(exec));
    struct work *works = checked(calloc(exec->count + 1, sizeof *works));
    struct position *after = checked(calloc(exec->count + 1, sizeof *after));
    size_t count = 0, after_count = 0;
    if (exec->last.stream != NULL)           /* launches of one executable graph run one after
                                                the other */
        after[after_count++] = exec->last;
    for (size_t i = 0; i < exec->count; i++) {
        const struct step *step = &exec->steps[i];
        works[count++] = step->work;
        if (step->work.kind == WORK_WAIT_EVENT && step->work.event->last.stream != NULL)
            after[after_count++] = step->work.event->last;
    }
    uint64_t number = stream_queue(stream, works, count, after, after_count);
    for (size_t i = 0; i < count; i++)
        if (works[i].kind == WORK_RECORD)
            event_set(works[i].event, stream, number);
    stream_hold(stream);
    if (exec->last.stream != NULL)
        stream_drop(exec->last.stream);
    exec->last = (struct position){stream, number};
    free(works);
    free(after);
    return CUDA_SUCCESS;
}

/* Replaces the parameters. The new graph must have nodes of the same kinds in the same order. */
static CUgraphExecUpdateResult update(struct graph_exec *exec, const struct graph *graph,
                                      const struct node **error)
{
    struct graph_exec fresh = {0};
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    *error = NULL;
    copy_steps(&fresh, graph);
    if (fresh.count != exec->count)
        result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < fresh.count && result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++)
        if (fresh.steps[i].type != exec->steps[i].type) {
            result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
            *error = fresh.steps[i].node;
        }
    for (size_t i = 0; i < fresh.count && result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        struct work before = exec->steps[i].work;
        exec->steps[i].work = fresh.steps[i].work;
        fresh.steps[i].work = before;        /* released with `fresh` */
    }
    for (size_t i = 0; i < fresh.count; i++)
        work_drop(&fresh.steps[i].work);
    free(fresh.steps);
    return result;
}

static CUresult update_locked(CUgraphExec exec_handle, CUgraph graph_handle,
                              CUgraphExecUpdateResultInfo *info)
{
    struct graph_exec *exec = graph_exec_from(exec_handle);
    struct graph *graph = graph_from(graph_handle);
    const struct node *error;
    FAIL_IF(exec == NULL || graph == NULL || info == NULL, CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    *info = (CUgraphExecUpdateResultInfo){.result = update(exec, graph, &error)};
    info->errorNode = (CUgraphNode)error;
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                        : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

FORWARD(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
        ENTRY_CONTEXT, update_locked(exec, graph, info))

API(cuGraphExecUpdate, CUgraphExec exec, CUgraph graph, CUgraphNode *error,
    CUgraphExecUpdateResult *result)
{
    ENTER(ENTRY_CONTEXT);
    CUgraphExecUpdateResultInfo info;
    FAIL_IF(error == NULL || result == NULL, CUDA_ERROR_INVALID_VALUE);
    CUresult code = update_locked(exec, graph, &info);
    *error = info.errorNode;
    *result = info.result;
    return code;
}
