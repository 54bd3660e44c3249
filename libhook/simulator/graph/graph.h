/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of work. */
#pragma once

#include "engine/work.h"

struct node {
    struct graph *graph;
    CUgraphNodeType type;
    struct work work;
    struct node **after;             /* what it depends on */
    size_t after_count;
    const struct node *origin;       /* a clone: the node it was made from */
    void *parameters[KERNEL_ARGUMENTS];      /* a kernel's, for cuGraphKernelNodeGetParams */
};

struct graph {
    struct node **nodes;             /* in the order they were added */
    size_t count;
    bool child;                      /* owned by a node */
};

/* All with the engine's lock held. */
struct graph *graph_make(void);
void graph_free(struct graph *graph);
struct graph *graph_from(CUgraph handle);
struct node *node_from(CUgraphNode handle);
struct graph *graph_clone(const struct graph *graph);

/* Adds a node; holds what the work points to. A WORK_GRAPH's child becomes the node's. */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct work *work,
                       struct node *const *after, size_t count);
bool node_depends_on(const struct node *node, const struct node *other);
CUgraphNodeType node_type_of(const struct work *work);
void node_depend(struct node *node, struct node *other);
