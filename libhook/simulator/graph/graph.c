/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <stdlib.h>

#include "driver/object.h"

struct graph *graph_from(CUgraph handle)
{
    return object_is(handle, OBJECT_GRAPH) ? (struct graph *)handle : NULL;
}

struct node *node_from(CUgraphNode handle)
{
    return object_is(handle, OBJECT_NODE) ? (struct node *)handle : NULL;
}

struct graph *graph_make(void)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        abort();
    object_add(graph, OBJECT_GRAPH);
    return graph;
}

void node_free(struct node *node)
{
    if (node->work.kind == WORK_GRAPH)
        graph_free(node->work.child);
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
    switch (work->kind) {
    case WORK_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case WORK_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_HOST:
    case WORK_CALLBACK:
        return CU_GRAPH_NODE_TYPE_HOST;
    case WORK_WRITE_VALUE:
    case WORK_WAIT_VALUE:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case WORK_RECORD:
        return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case WORK_WAIT_EVENT:
        return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case WORK_GRAPH:
        return CU_GRAPH_NODE_TYPE_GRAPH;
    case WORK_GRAPH_MEMORY:
        return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case WORK_FREE:
        return CU_GRAPH_NODE_TYPE_MEM_FREE;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

void node_depend(struct node *node, struct node *other)
{
    for (size_t i = 0; i < node->after_count; i++)
        if (node->after[i] == other)
            return;
    node->after = realloc(node->after, (node->after_count + 1) * sizeof(struct node *));
    if (node->after == NULL)
        abort();
    node->after[node->after_count++] = other;
}

struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct work *work,
                       struct node *const *after, size_t count)
{
    struct node *node = calloc(1, sizeof *node);
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof(struct node *));
    if (node == NULL || graph->nodes == NULL)
        abort();
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

/* NULL: none. */
static struct node *graph_counterpart(const struct graph *clone, const struct node *origin)
{
    for (size_t i = 0; i < clone->count; i++)
        if (clone->nodes[i]->origin == origin)
            return clone->nodes[i];
    return NULL;
}

struct graph *graph_clone(const struct graph *graph)
{
    struct graph *clone = graph_make();
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        struct work work = node->work;
        if (work.kind == WORK_GRAPH) {
            work.child = graph_clone(work.child);
            work.child->child = true;
        }
        graph_add(clone, node->type, &work, NULL, 0)->origin = node;
    }
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->after_count; j++)
            node_depend(clone->nodes[i], graph_counterpart(clone, graph->nodes[i]->after[j]));
    return clone;
}
