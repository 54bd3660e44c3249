/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs. */
#pragma once

#include "graph/graph.h"

struct step {
    const struct node *node;         /* it was made from; only compared */
    CUgraphNodeType type;
    struct work work;
    bool enabled;
};

struct graph_exec {
    struct step *steps;
    size_t count;
    struct position last;            /* where it was launched last */
};

struct graph_exec *graph_exec_from(CUgraphExec handle);

/* One launch. With the engine's lock held. */
void graph_exec_queue(struct graph_exec *exec, struct stream *stream);
