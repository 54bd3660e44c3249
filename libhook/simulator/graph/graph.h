/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of work, and executable graphs. */
#pragma once

#include "driver/object.h"
#include "engine/work.h"

struct node {
    struct graph *graph;
    CUgraphNodeType type;
    struct work work;
    struct node **after;             /* nodes on which this one depends */
    size_t after_count;
};

struct graph {
    struct node **nodes;             /* in the order in which they were added: each depends on
                                        earlier nodes only */
    size_t count;
};

/* The caller of these functions holds engine_lock. */
struct graph *graph_make(void);
void graph_free(struct graph *graph);
OBJECT_FROM(graph_from, struct graph, CUgraph, OBJECT_GRAPH)
OBJECT_FROM(node_from, struct node, CUgraphNode, OBJECT_NODE)

/* Adds a node, which takes references to the objects of the work. */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct work *work,
                       struct node *const *after, size_t count);
bool node_depends_on(const struct node *node, const struct node *other);
CUgraphNodeType node_type_of(const struct work *work);

struct step {
    const struct node *node;         /* the node from which the step was made; only compared */
    CUgraphNodeType type;
    struct work work;
};

struct graph_exec {
    struct step *steps;
    size_t count;
    bool frees_on_launch;            /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH */
    struct position last;            /* position of the last launch */
};

OBJECT_FROM(graph_exec_from, struct graph_exec, CUgraphExec, OBJECT_GRAPH_EXEC)

/* Queues one launch. INVALID_VALUE: memory that the last launch allocated was not freed.
 * engine_lock is held. */
CUresult graph_exec_queue(struct graph_exec *exec, struct stream *stream);
