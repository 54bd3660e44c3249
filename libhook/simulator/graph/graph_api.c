/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of graphs as a whole. */
#include <stdlib.h>

#include "driver/entry.h"
#include "graph/graph.h"

API(cuGraphCreate, CUgraph *handle, unsigned int flags)
{
    ENTER(ENTRY_INIT);
    if (handle == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUgraph)graph_make();
    return CUDA_SUCCESS;
}

API(cuGraphDestroy, CUgraph handle)
{
    ENTER(ENTRY_INIT);
    struct graph *graph = graph_from(handle);
    if (graph == NULL || graph->child)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    graph_free(graph);
    return CUDA_SUCCESS;
}

API(cuGraphClone, CUgraph *handle, CUgraph original)
{
    ENTER(ENTRY_INIT);
    struct graph *graph = graph_from(original);
    if (handle == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    *handle = (CUgraph)graph_clone(graph);
    return CUDA_SUCCESS;
}

API(cuGraphDestroyNode, CUgraphNode handle)
{
    ENTER(ENTRY_INIT);
    struct node *node = node_from(handle);
    if (node == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    struct graph *graph = node->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->count; i++) {
        struct node *other = graph->nodes[i];
        size_t left = 0;
        for (size_t j = 0; j < other->after_count; j++)
            if (other->after[j] != node)
                other->after[left++] = other->after[j];
        other->after_count = left;
        if (other != node)
            graph->nodes[kept++] = other;
    }
    graph->count = kept;
    node_free(node);
    return CUDA_SUCCESS;
}

/* The lists that graphs give of themselves: as many as there is room for, and how many there are. */
static CUresult give_nodes(struct node *const *found, size_t count, CUgraphNode *nodes,
                           size_t *room)
{
    for (size_t i = 0; nodes != NULL && i < *room; i++)
        nodes[i] = i < count ? (CUgraphNode)found[i] : NULL;
    if (nodes == NULL || *room > count)
        *room = count;
    return CUDA_SUCCESS;
}

API(cuGraphGetNodes, CUgraph handle, CUgraphNode *nodes, size_t *room)
{
    ENTER(ENTRY_INIT);
    struct graph *graph = graph_from(handle);
    if (graph == NULL || room == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    give_nodes(graph->nodes, graph->count, nodes, room);
    return CUDA_SUCCESS;
}

API(cuGraphGetRootNodes, CUgraph handle, CUgraphNode *nodes, size_t *room)
{
    ENTER(ENTRY_INIT);
    struct graph *graph = graph_from(handle);
    if (graph == NULL || room == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(engine_lock);
    struct node **roots = calloc(graph->count + 1, sizeof(struct node *));
    size_t count = 0;
    for (size_t i = 0; roots != NULL && i < graph->count; i++)
        if (graph->nodes[i]->after_count == 0)
            roots[count++] = graph->nodes[i];
    give_nodes(roots, count, nodes, room);
    free(roots);
    return CUDA_SUCCESS;
}

GETTER(cuGraphNodeGetType, (CUgraphNode handle, CUgraphNodeType *type), ENTRY_INIT, type,
       node_from(handle) == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS, node_from(handle)->type)
