/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What graphs copy between host and card, each time they are launched.
 *
 * It is added up once, when a graph is instantiated, from the copies in it and in
 * the graphs within; a launch looks it up while somebody wants to know (traffic.c).
 * That is a table with a place for each graph by its handle. A graph that copies
 * takes its place from whoever has it: that one's copies are not seen any more.
 * One that copies nothing frees it only from an earlier graph with the same handle,
 * so that nothing need be done when graphs are destroyed.
 *
 * Changes to an instantiated graph are taken to leave the figures as they are: they
 * replace addresses, mostly, and some programs change one before each launch. The
 * bodies of conditional nodes do not count, for nobody knows how often they run.
 */
#include "api/freight.h"

#include <pthread.h>
#include <stdlib.h>

#include "client/client.h"
#include "api/copies.h"
#include "interpose/real.h"

#define PLACES 256
#define DEPTH_MOST 8                 /* of graphs in graphs */

static struct freight {
    CUgraphExec exec;
    uint64_t bytes[TRAFFIC_WAYS];
} places[PLACES];
/* Protects them. Nothing is called while it is held. */
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

static struct freight *place_of(CUgraphExec exec)
{
    return &places[(uintptr_t)exec * 0x9E3779B97F4A7C15u >> 56];
}

static void add_graph(CUgraph graph, unsigned depth, uint64_t bytes[TRAFFIC_WAYS]);

static void add_node(CUgraphNode node, unsigned depth, uint64_t bytes[TRAFFIC_WAYS])
{
    CUgraphNodeType type;
    CUDA_MEMCPY3D copy;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEPTH_MOST
        && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, depth + 1, bytes);
    if (type != CU_GRAPH_NODE_TYPE_MEMCPY
        || REAL(cuGraphMemcpyNodeGetParams)(node, &copy) != CUDA_SUCCESS)
        return;
    enum traffic_way way = copies_way(copy.srcMemoryType, copy.srcDevice, copy.dstMemoryType,
                                      copy.dstDevice);
    if (way != TRAFFIC_NONE)
        bytes[way] += copy.WidthInBytes * (copy.Height > 0 ? copy.Height : 1)
            * (copy.Depth > 0 ? copy.Depth : 1);
}

static void add_graph(CUgraph graph, unsigned depth, uint64_t bytes[TRAFFIC_WAYS])
{
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes != NULL && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], depth, bytes);
    free(nodes);
}

void freight_weigh(CUgraphExec exec, CUgraph graph)
{
    if (client_none())               /* as in a forked child, where the lock may be held for ever */
        return;
    struct freight freight = { .exec = exec };
    add_graph(graph, 0, freight.bytes);
    bool copies = freight.bytes[TRAFFIC_IN] >= TRAFFIC_LEAST
        || freight.bytes[TRAFFIC_OUT] >= TRAFFIC_LEAST;
    pthread_mutex_lock(&places_lock);
    struct freight *place = place_of(exec);
    if (copies)
        *place = freight;
    else if (place->exec == exec)
        *place = (struct freight){ .exec = NULL };
    pthread_mutex_unlock(&places_lock);
}

void freight_begins(struct traffic copies[TRAFFIC_WAYS], CUgraphExec exec)
{
    for (int way = 0; way < TRAFFIC_WAYS; way++)
        copies[way].client = NULL;
    if (client_none())
        return;
    pthread_mutex_lock(&places_lock);
    struct freight freight = *place_of(exec);
    pthread_mutex_unlock(&places_lock);
    for (int way = 0; way < TRAFFIC_WAYS; way++)
        if (freight.exec == exec && freight.bytes[way] >= TRAFFIC_LEAST)
            traffic_begins(&copies[way], (enum traffic_way)way, freight.bytes[way], false);
}

void freight_ends(const struct traffic copies[TRAFFIC_WAYS])
{
    for (int way = 0; way < TRAFFIC_WAYS; way++)
        traffic_ends(&copies[way]);
}
