/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs. */
#pragma once

#include "driver/object.h"
#include "graph/graph.h"

struct step {
    const struct node *node;         /* the node from which the step was made; only compared */
    CUgraphNodeType type;
    struct work work;
};

struct graph_exec {
    struct step *steps;
    size_t count;
    struct position last;            /* position of the last launch */
};

OBJECT_FROM(graph_exec_from, struct graph_exec, CUgraphExec, OBJECT_GRAPH_EXEC)

/* Queues one launch. engine_lock is held. */
void graph_exec_queue(struct graph_exec *exec, struct stream *stream);
