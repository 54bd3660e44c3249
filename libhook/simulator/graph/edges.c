/* SPDX-License-Identifier: Apache-2.0 */
/* What depends on what in a graph. */
#include "driver/entry.h"
#include "graph/graph.h"

static CUresult add(CUgraph graph_handle, const CUgraphNode *from, const CUgraphNode *to,
                    size_t count)
{
    struct graph *graph = graph_from(graph_handle);
    if (graph == NULL || (count != 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (node_from(from[i]) == NULL || node_from(to[i]) == NULL
            || node_from(from[i])->graph != graph || node_from(to[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    for (size_t i = 0; i < count; i++)
        node_depend(node_from(to[i]), node_from(from[i]));
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

API(cuGraphAddDependencies, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    size_t count)
{
    ENTER(ENTRY_INIT);
    return add(graph, from, to, count);
}

API(cuGraphAddDependencies_v2, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
    const CUgraphEdgeData *edges, size_t count)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    return add(graph, from, to, count);
}
