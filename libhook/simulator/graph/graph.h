/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of work. */
#pragma once

#include "driver/object.h"
#include "engine/work.h"

struct node {
    struct graph *graph;
    CUgraphNodeType type;
    struct work work;
    struct node **after;             /* nodes on which this one depends */
    size_t after_count;
    const struct node *origin;       /* of a clone: the node that was cloned */
    void *parameters[KERNEL_ARGUMENTS];      /* of a kernel node, for cuGraphKernelNodeGetParams */
};

struct graph {
    struct node **nodes;             /* in the order in which they were added */
    size_t count;
    bool child;                      /* a node owns the graph */
};

/* The caller of these functions holds engine_lock. */
struct graph *graph_make(void);
void graph_free(struct graph *graph);
OBJECT_FROM(graph_from, struct graph, CUgraph, OBJECT_GRAPH)
OBJECT_FROM(node_from, struct node, CUgraphNode, OBJECT_NODE)
struct graph *graph_clone(const struct graph *graph);

/* Adds a node, which takes references to the objects of the work and owns the child of a
 * WORK_GRAPH. */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct work *work,
                       struct node *const *after, size_t count);
bool node_depends_on(const struct node *node, const struct node *other);
CUgraphNodeType node_type_of(const struct work *work);
void node_depend(struct node *node, struct node *other);
