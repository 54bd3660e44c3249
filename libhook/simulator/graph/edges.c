/* SPDX-License-Identifier: Apache-2.0 */
/* What depends on what in a graph. */
#include <string.h>

#include "driver/entry.h"
#include "graph/graph.h"

static CUresult change(CUgraph graph_handle, const CUgraphNode *from, const CUgraphNode *to,
                       size_t count, bool add)
{
    struct graph *graph = graph_from(graph_handle);
    if (graph == NULL || (count != 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (node_from(from[i]) == NULL || node_from(to[i]) == NULL
            || node_from(from[i])->graph != graph || node_from(to[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    for (size_t i = 0; i < count; i++) {
        struct node *node = node_from(to[i]), *other = node_from(from[i]);
        size_t kept = 0;
        for (size_t j = 0; j < node->after_count && !add; j++)
            if (node->after[j] != other)
                node->after[kept++] = node->after[j];
        if (add)
            node_depend(node, other);
        else
            node->after_count = kept;
    }
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

API(cuGraphAddDependencies, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    size_t count)
{
    ENTER(ENTRY_INIT);
    return change(graph, from, to, count, true);
}

API(cuGraphAddDependencies_v2, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    const CUgraphEdgeData *edges, size_t count)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    return change(graph, from, to, count, true);
}

API(cuGraphRemoveDependencies, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    size_t count)
{
    ENTER(ENTRY_INIT);
    return change(graph, from, to, count, false);
}

API(cuGraphRemoveDependencies_v2, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    const CUgraphEdgeData *edges, size_t count)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    return change(graph, from, to, count, false);
}

struct edges {
    CUgraphNode *from, *to;          /* either may be NULL */
    CUgraphEdgeData *data;
    size_t room, found;
};

static void put(struct edges *edges, const struct node *from, const struct node *to)
{
    if (edges->found < edges->room) {
        if (edges->from != NULL)
            edges->from[edges->found] = (CUgraphNode)from;
        if (edges->to != NULL)
            edges->to[edges->found] = (CUgraphNode)to;
        if (edges->data != NULL)
            memset(&edges->data[edges->found], 0, sizeof *edges->data);
    }
    edges->found++;
}

/* All edges of the graph that leave `source` and enter `target`, where these are given. */
static CUresult collect(const struct graph *graph, const struct node *source,
                        const struct node *target, struct edges edges, size_t *room)
{
    if (graph == NULL || room == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    edges.room = edges.from != NULL || edges.to != NULL ? *room : 0;
    pthread_mutex_lock(&engine_lock);
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->after_count; j++) {
            const struct node *to = graph->nodes[i], *from = to->after[j];
            if ((source == NULL || source == from) && (target == NULL || target == to))
                put(&edges, from, to);
        }
    pthread_mutex_unlock(&engine_lock);
    if (edges.room == 0 || edges.found < *room)
        *room = edges.found;
    return CUDA_SUCCESS;
}

API(cuGraphGetEdges, CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *room)
{
    ENTER(ENTRY_INIT);
    return collect(graph_from(graph), NULL, NULL, (struct edges){.from = from, .to = to}, room);
}

API(cuGraphGetEdges_v2, CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
    size_t *room)
{
    ENTER(ENTRY_INIT);
    return collect(graph_from(graph), NULL, NULL,
                   (struct edges){.from = from, .to = to, .data = data}, room);
}

static CUresult dependencies(CUgraphNode handle, struct edges edges, size_t *room)
{
    struct node *node = node_from(handle);
    return node == NULL ? CUDA_ERROR_INVALID_VALUE
                        : collect(node->graph, NULL, node, edges, room);
}

static CUresult dependents(CUgraphNode handle, struct edges edges, size_t *room)
{
    struct node *node = node_from(handle);
    return node == NULL ? CUDA_ERROR_INVALID_VALUE
                        : collect(node->graph, node, NULL, edges, room);
}

API(cuGraphNodeGetDependencies, CUgraphNode node, CUgraphNode *list, size_t *room)
{
    ENTER(ENTRY_INIT);
    return dependencies(node, (struct edges){.from = list}, room);
}

API(cuGraphNodeGetDependencies_v2, CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data,
    size_t *room)
{
    ENTER(ENTRY_INIT);
    return dependencies(node, (struct edges){.from = list, .data = data}, room);
}

API(cuGraphNodeGetDependentNodes, CUgraphNode node, CUgraphNode *list, size_t *room)
{
    ENTER(ENTRY_INIT);
    return dependents(node, (struct edges){.to = list}, room);
}

API(cuGraphNodeGetDependentNodes_v2, CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data,
    size_t *room)
{
    ENTER(ENTRY_INIT);
    return dependents(node, (struct edges){.to = list, .data = data}, room);
}
