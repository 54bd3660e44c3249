/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of graphs and of executable graphs: adds nodes, and gets and sets their parameters. */
#include <string.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/stream.h"
#include "graph/graph.h"
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

/* Converts the parameters of a node. The structures of cuGraphAddNode begin with the fields of the
 * older structures. */
static CUresult node_work(const CUgraphNodeParams *p, struct work *work)
{
    FAIL_IF(p == NULL, CUDA_ERROR_INVALID_VALUE);
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_from_3d(&p->memcpy.copyParams, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return node_work_set((const CUDA_MEMSET_NODE_PARAMS *)&p->memset, work);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The driver looks up the addresses of copies and fills in the current context. */
static bool is_out_of_bounds(const struct work *work)
{
    return context_current() != NULL && !work_is_valid(work, context_current()->device);
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
    FAIL_IF(is_out_of_bounds(work), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        if (node_from(after[i]) == NULL || node_from(after[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    *handle = (CUgraphNode)graph_add(graph, node_type_of(work), work,
                                     (struct node *const *)after, count);
    return CUDA_SUCCESS;
}

/* Defines an entry point that first converts its parameters to `work`. */
#define WITH_WORK(name, parameters, conversion, call)                                    \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        struct work work;                                                                \
        ENTER(ENTRY_INIT);                                                               \
        CUresult result = conversion;                                                    \
        return call;                                                                     \
    }

#define AFTER CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count
#define ADD(name, parameters, conversion)                                                \
    WITH_WORK(name, parameters, conversion, add(node, graph, after, count, result, &work))

ADD(cuGraphAddKernelNode_v2, (AFTER, const CUDA_KERNEL_NODE_PARAMS *parameters),
    node_work_kernel(parameters, &work))
ADD(cuGraphAddMemcpyNode,
    (AFTER, const CUDA_MEMCPY3D *copy, CUcontext context __attribute__((unused))),
    copy_from_3d(copy, &work))
ADD(cuGraphAddMemsetNode,
    (AFTER, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context __attribute__((unused))),
    node_work_set(parameters, &work))
ADD(cuGraphAddNode, (AFTER, CUgraphNodeParams *parameters), node_work(parameters, &work))
ADD(cuGraphAddNode_v2,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
     const CUgraphEdgeData *edges __attribute__((unused)), size_t count,
     CUgraphNodeParams *parameters),
    node_work(parameters, &work))

static struct node *node_of_kind(CUgraphNode handle, enum work_kind kind)
{
    struct node *node = node_from(handle);
    return node != NULL && node->work.kind == kind ? node : NULL;
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
    FAIL_IF(is_out_of_bounds(work), CUDA_ERROR_INVALID_VALUE);
    FIND(struct node, node, node_of_kind(handle, work->kind), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    replace_work(&node->work, work);
    return CUDA_SUCCESS;
}

#define SET(name, parameter, conversion)                                                 \
    WITH_WORK(name, (CUgraphNode node, parameter), conversion, set_node(node, result, &work))

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
    FAIL_IF(is_out_of_bounds(work), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    struct step *step = step_of(exec, node);
    FAIL_IF(step == NULL || step->work.kind != work->kind, CUDA_ERROR_INVALID_VALUE);
    replace_work(&step->work, work);
    return CUDA_SUCCESS;
}

#define SET_STEP(name, parameters, conversion)                                           \
    WITH_WORK(name, (CUgraphExec exec, CUgraphNode node, UNPACK parameters), conversion, \
              set_step(exec, node, result, &work))

SET_STEP(cuGraphExecMemcpyNodeSetParams,
         (const CUDA_MEMCPY3D *copy, CUcontext context __attribute__((unused))),
         copy_from_3d(copy, &work))
SET_STEP(cuGraphExecMemsetNodeSetParams,
         (const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context __attribute__((unused))),
         node_work_set(parameters, &work))
SET_STEP(cuGraphExecNodeSetParams, (CUgraphNodeParams *parameters), node_work(parameters, &work))
