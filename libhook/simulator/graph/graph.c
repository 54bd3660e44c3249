/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <stdlib.h>

#include "driver/device.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "space/graph_memory.h"

struct graph *graph_make(void)
{
    struct graph *graph = checked(calloc(1, sizeof *graph));
    object_add(graph, OBJECT_GRAPH);
    return graph;
}

static void node_free(struct node *node)
{
    work_drop(&node->work);
    object_remove(node);
    free(node->after);
    free(node);
}

void graph_free(struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        node_free(graph->nodes[i]);
    object_remove(graph);
    free(graph->nodes);
    free(graph);
}

CUgraphNodeType node_type_of(const struct work *work)
{
    static const CUgraphNodeType types[] = {
        [WORK_NOTHING] = CU_GRAPH_NODE_TYPE_EMPTY, [WORK_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [WORK_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY, [WORK_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [WORK_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [WORK_WRITE_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [WORK_WAIT_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [WORK_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [WORK_WAIT_EVENT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [WORK_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE, [WORK_PREFETCH] = CU_GRAPH_NODE_TYPE_EMPTY,
        [WORK_GRAPH_MEMORY] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    };
    return types[work->kind];
}

static void node_depend(struct node *node, struct node *other)
{
    for (size_t i = 0; i < node->after_count; i++)
        if (node->after[i] == other)
            return;
    node->after = checked(realloc(node->after, (node->after_count + 1) * sizeof(struct node *)));
    node->after[node->after_count++] = other;
}

struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct work *work,
                       struct node *const *after, size_t count)
{
    struct node *node = checked(calloc(1, sizeof *node));
    graph->nodes = checked(realloc(graph->nodes, (graph->count + 1) * sizeof(struct node *)));
    *node = (struct node){.graph = graph, .type = type, .work = *work};
    work_hold(work);
    for (size_t i = 0; i < count; i++)
        node_depend(node, after[i]);
    graph->nodes[graph->count++] = node;
    object_add(node, OBJECT_NODE);
    return node;
}

bool node_depends_on(const struct node *node, const struct node *other)
{
    if (node == other)
        return true;
    for (size_t i = 0; i < node->after_count; i++)
        if (node_depends_on(node->after[i], other))
            return true;
    return false;
}

/* Entry points for whole graphs. */

API(cuGraphCreate, CUgraph *handle, unsigned int flags)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle == NULL || flags != 0, CUDA_ERROR_INVALID_VALUE);
    *handle = (CUgraph)graph_make();
    return CUDA_SUCCESS;
}

API(cuGraphDestroy, CUgraph handle)
{
    ENTER(ENTRY_INIT);
    FIND(struct graph, graph, graph_from(handle), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    graph_free(graph);
    return CUDA_SUCCESS;
}

/* Stores as many nodes as the caller has room for, and how many there are. */
API(cuGraphGetNodes, CUgraph handle, CUgraphNode *nodes, size_t *room)
{
    ENTER(ENTRY_INIT);
    struct graph *graph = graph_from(handle);
    FAIL_IF(graph == NULL || room == NULL, CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    for (size_t i = 0; nodes != NULL && i < *room; i++)
        nodes[i] = i < graph->count ? (CUgraphNode)graph->nodes[i] : NULL;
    if (nodes == NULL || *room > graph->count)
        *room = graph->count;
    return CUDA_SUCCESS;
}

GETTER(cuGraphNodeGetType, (CUgraphNode handle, CUgraphNodeType *type), ENTRY_INIT, type,
       node_from(handle) == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS, node_from(handle)->type)

/* Memory that graphs of a device hold. */

API(cuDeviceGetGraphMemAttribute, CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    ENTER(ENTRY_INIT);
    FIND(const struct device, device, device_at(ordinal), CUDA_ERROR_INVALID_DEVICE);
    FAIL_IF(value == NULL, CUDA_ERROR_INVALID_VALUE);
    if (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
        && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        return CUDA_ERROR_NOT_SUPPORTED;     /* high-water marks are not simulated */
    LOCKED(engine_lock);
    *(cuuint64_t *)value =
        graph_memory_bytes(device, attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    return CUDA_SUCCESS;
}

API(cuDeviceGraphMemTrim, CUdevice ordinal)
{
    ENTER(ENTRY_INIT);
    FIND(const struct device, device, device_at(ordinal), CUDA_ERROR_INVALID_DEVICE);
    LOCKED(engine_lock);
    graph_memory_trim(device);
    return CUDA_SUCCESS;
}
