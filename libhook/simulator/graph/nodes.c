/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of graphs and of executable graphs: adds nodes, and gets and sets their parameters. */
#include <string.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/event.h"
#include "graph/exec.h"
#include "memory/copy.h"
#include "module/module.h"

static CUresult node_work_kernel(const CUDA_KERNEL_NODE_PARAMS *p, struct work *work)
{
    FAIL_IF(p == NULL, CUDA_ERROR_INVALID_VALUE);
    unsigned grid[] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    unsigned block[] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    return launch_work(p->func, grid, block, p->kernelParams, p->extra, NULL, work);
}

static CUresult node_work_set(const CUDA_MEMSET_NODE_PARAMS *p, struct work *work)
{
    FAIL_IF(p == NULL || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4)
            || p->width == 0 || p->height == 0, CUDA_ERROR_INVALID_VALUE);
    *work = (struct work){.kind = WORK_SET,
                          .set = {.address = p->dst, .pitch = p->pitch, .width = p->width,
                                  .height = p->height, .value = p->value,
                                  .element = p->elementSize}};
    return CUDA_SUCCESS;
}

static CUresult node_work_host(const CUDA_HOST_NODE_PARAMS *p, struct work *work)
{
    FAIL_IF(p == NULL || p->fn == NULL, CUDA_ERROR_INVALID_VALUE);
    *work = (struct work){.kind = WORK_HOST, .host = {p->fn, p->userData}};
    return CUDA_SUCCESS;
}

static CUresult node_work_event(CUevent event, enum work_kind kind, struct work *work)
{
    FAIL_IF(!object_is(event, OBJECT_EVENT), CUDA_ERROR_INVALID_HANDLE);
    *work = (struct work){.kind = kind, .event = (struct event *)event};
    return CUDA_SUCCESS;
}

/* Converts the parameters of a node of any kind but a child graph. The structures of
 * cuGraphAddNode begin with the fields of the older structures. A CUkernel may stand in place
 * of a function. */
static CUresult node_work(const CUgraphNodeParams *p, struct work *work)
{
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_HOST_NODE_PARAMS host;
    FAIL_IF(p == NULL, CUDA_ERROR_INVALID_VALUE);
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        memcpy(&kernel, &p->kernel, sizeof kernel);
        if (kernel.func == NULL)
            kernel.func = (CUfunction)p->kernel.kern;
        return node_work_kernel(&kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_from_3d(&p->memcpy.copyParams, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return node_work_set((const CUDA_MEMSET_NODE_PARAMS *)&p->memset, work);
    case CU_GRAPH_NODE_TYPE_HOST:
        memcpy(&host, &p->host, sizeof host);
        return node_work_host(&host, work);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *work = (struct work){.kind = WORK_NOTHING};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return node_work_event(p->eventWait.event, WORK_WAIT_EVENT, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return node_work_event(p->eventRecord.event, WORK_RECORD, work);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Adds a node, unless converting the node's parameters to `work` has failed with `result`. */
static CUresult add(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *after,
                    size_t count, CUresult result, const struct work *work)
{
    struct graph *graph = graph_from(graph_handle);
    if (handle == NULL || graph == NULL || (after == NULL && count != 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = 0; i < count; i++)
        if (node_from(after[i]) == NULL || node_from(after[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    *handle = (CUgraphNode)graph_add(graph, node_type_of(work), work,
                                     (struct node *const *)after, count);
    return CUDA_SUCCESS;
}

#define AFTER CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count
#define ADD(name, parameters, conversion)                                                \
    API(name, AFTER UNPACK parameters)                                                   \
    {                                                                                    \
        struct work work;                                                                \
        ENTER(ENTRY_INIT);                                                               \
        CUresult result = conversion;                                                    \
        return add(node, graph, after, count, result, &work);                            \
    }

ADD(cuGraphAddKernelNode_v2, (, const CUDA_KERNEL_NODE_PARAMS *parameters),
    node_work_kernel(parameters, &work))
ADD(cuGraphAddMemcpyNode, (, const CUDA_MEMCPY3D *copy, CUcontext context __attribute__((unused))),
    copy_from_3d(copy, &work))
ADD(cuGraphAddMemsetNode,
    (, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context __attribute__((unused))),
    node_work_set(parameters, &work))
ADD(cuGraphAddHostNode, (, const CUDA_HOST_NODE_PARAMS *parameters),
    node_work_host(parameters, &work))
ADD(cuGraphAddEventRecordNode, (, CUevent event), node_work_event(event, WORK_RECORD, &work))
ADD(cuGraphAddEventWaitNode, (, CUevent event), node_work_event(event, WORK_WAIT_EVENT, &work))
ADD(cuGraphAddEmptyNode, (), (work = (struct work){.kind = WORK_NOTHING}, CUDA_SUCCESS))

/* The node owns a copy of the child. */
static CUresult add_child(AFTER, CUgraph child_handle)
{
    FIND(struct graph, child, graph_from(child_handle), CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&engine_lock);
    struct work work = {.kind = WORK_GRAPH, .child = graph_clone(child)};
    work.child->child = true;
    pthread_mutex_unlock(&engine_lock);
    CUresult result = add(node, graph, after, count, CUDA_SUCCESS, &work);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_lock(&engine_lock);
        graph_free(work.child);
        pthread_mutex_unlock(&engine_lock);
    }
    return result;
}

FORWARD(cuGraphAddChildGraphNode, (AFTER, CUgraph child), ENTRY_INIT,
        add_child(node, graph, after, count, child))

static CUresult add_any(AFTER, const CUgraphNodeParams *p)
{
    struct work work;
    if (p != NULL && p->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return add_child(node, graph, after, count, p->graph.graph);
    CUresult result = node_work(p, &work);
    return add(node, graph, after, count, result, &work);
}

FORWARD(cuGraphAddNode, (AFTER, CUgraphNodeParams *parameters), ENTRY_INIT,
        add_any(node, graph, after, count, parameters))

API(cuGraphAddNode_v2, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    return add_any(node, graph, after, count, parameters);
}

static struct node *node_of_kind(CUgraphNode handle, enum work_kind kind)
{
    struct node *node = node_from(handle);
    return node != NULL && node->work.kind == kind ? node : NULL;
}

API(cuGraphKernelNodeGetParams_v2, CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *p)
{
    ENTER(ENTRY_INIT);
    struct node *node = node_of_kind(handle, WORK_KERNEL);
    FAIL_IF(node == NULL || p == NULL, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < KERNEL_ARGUMENTS; i++)
        node->parameters[i] = &node->work.launch.arguments[i];
    const unsigned *grid = node->work.launch.grid, *block = node->work.launch.block;
    *p = (CUDA_KERNEL_NODE_PARAMS){.func = node->work.launch.function,
                                      .gridDimX = grid[0], .gridDimY = grid[1],
                                      .gridDimZ = grid[2], .blockDimX = block[0],
                                      .blockDimY = block[1], .blockDimZ = block[2],
                                      .kernelParams = node->parameters};
    return CUDA_SUCCESS;
}


API(cuGraphMemsetNodeGetParams, CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *p)
{
    ENTER(ENTRY_INIT);
    struct node *node = node_of_kind(handle, WORK_SET);
    FAIL_IF(node == NULL || p == NULL, CUDA_ERROR_INVALID_VALUE);
    *p = (CUDA_MEMSET_NODE_PARAMS){.dst = node->work.set.address, .pitch = node->work.set.pitch,
                                   .value = node->work.set.value,
                                   .elementSize = node->work.set.element,
                                   .width = node->work.set.width,
                                   .height = node->work.set.height};
    return CUDA_SUCCESS;
}

API(cuGraphMemcpyNodeGetParams, CUgraphNode handle, CUDA_MEMCPY3D *p)
{
    ENTER(ENTRY_INIT);
    struct node *node = node_of_kind(handle, WORK_COPY);
    FAIL_IF(node == NULL || p == NULL, CUDA_ERROR_INVALID_VALUE);
    const struct side *to = &node->work.copy.to, *from = &node->work.copy.from;
#define SIDE(name, side)                                                                 \
    .name##MemoryType = side->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,          \
    .name##Host = side->host ? (void *)(uintptr_t)side->address : NULL,                  \
    .name##Device = side->host ? 0 : side->address, .name##Pitch = side->pitch,          \
    .name##Height = side->pitch != 0 ? side->layer / side->pitch : 0
    *p = (CUDA_MEMCPY3D){SIDE(src, from), SIDE(dst, to), .WidthInBytes = node->work.copy.width,
                         .Height = node->work.copy.height, .Depth = node->work.copy.depth};
#undef SIDE
    return CUDA_SUCCESS;
}

static void replace_work(struct work *old, const struct work *work)
{
    work_hold(work);
    work_drop(old);
    *old = *work;
}

static CUresult set_node(CUgraphNode handle, CUresult result, const struct work *work)
{
    TRY(result);
    FIND(struct node, node, node_of_kind(handle, work->kind), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    replace_work(&node->work, work);
    return CUDA_SUCCESS;
}

#define SET(name, parameter, conversion)                                                 \
    API(name, CUgraphNode node, parameter)                                               \
    {                                                                                    \
        struct work work;                                                                \
        ENTER(ENTRY_INIT);                                                               \
        CUresult result = conversion;                                                    \
        return set_node(node, result, &work);                                            \
    }

SET(cuGraphKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *parameters,
    node_work_kernel(parameters, &work))
SET(cuGraphMemcpyNodeSetParams, const CUDA_MEMCPY3D *copy, copy_from_3d(copy, &work))
SET(cuGraphMemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS *parameters,
    node_work_set(parameters, &work))
SET(cuGraphNodeSetParams, CUgraphNodeParams *parameters, node_work(parameters, &work))

/* Entry points for nodes of executable graphs. */

static struct step *step_of(struct graph_exec *exec, CUgraphNode node)
{
    for (size_t i = 0; exec != NULL && i < exec->count; i++)
        if (exec->steps[i].node == (const struct node *)node)
            return &exec->steps[i];
    return NULL;
}

static CUresult set_step(CUgraphExec handle, CUgraphNode node, CUresult result,
                         const struct work *work)
{
    FIND(struct graph_exec, exec, graph_exec_from(handle), CUDA_ERROR_INVALID_VALUE);
    TRY(result);
    LOCKED(engine_lock);
    struct step *step = step_of(exec, node);
    FAIL_IF(step == NULL || step->work.kind != work->kind, CUDA_ERROR_INVALID_VALUE);
    replace_work(&step->work, work);
    return CUDA_SUCCESS;
}

#define SET_STEP(name, parameters, conversion)                                           \
    API(name, CUgraphExec exec, CUgraphNode node, UNPACK parameters)                     \
    {                                                                                    \
        struct work work;                                                                \
        ENTER(ENTRY_INIT);                                                               \
        CUresult result = conversion;                                                    \
        return set_step(exec, node, result, &work);                                      \
    }

SET_STEP(cuGraphExecKernelNodeSetParams_v2, (const CUDA_KERNEL_NODE_PARAMS *parameters),
         node_work_kernel(parameters, &work))
SET_STEP(cuGraphExecMemcpyNodeSetParams,
         (const CUDA_MEMCPY3D *copy, CUcontext context __attribute__((unused))),
         copy_from_3d(copy, &work))
SET_STEP(cuGraphExecMemsetNodeSetParams,
         (const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context __attribute__((unused))),
         node_work_set(parameters, &work))
SET_STEP(cuGraphExecNodeSetParams, (CUgraphNodeParams *parameters), node_work(parameters, &work))

/* Only kernel, copy and memset nodes can be disabled; NULL for others. */
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
    LOCKED(engine_lock);
    struct step *step = switchable(exec, node);
    if (step != NULL)
        step->enabled = enabled != 0;
    return step != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuGraphNodeGetEnabled, CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    ENTER(ENTRY_INIT);
    LOCKED(engine_lock);
    struct step *step = switchable(exec, node);
    if (step != NULL && enabled != NULL)
        *enabled = step->enabled;
    return step != NULL && enabled != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Entry points for dependencies (edges) between nodes. */

API(cuGraphAddDependencies_v2, CUgraph graph_handle, const CUgraphNode *from, const CUgraphNode *to,
    const CUgraphEdgeData *edges, size_t count)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    struct graph *graph = graph_from(graph_handle);
    if (graph == NULL || (count != 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (node_from(from[i]) == NULL || node_from(to[i]) == NULL
            || node_from(from[i])->graph != graph || node_from(to[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    for (size_t i = 0; i < count; i++)
        node_depend(node_from(to[i]), node_from(from[i]));
    return CUDA_SUCCESS;
}
