/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread owns, and its dice. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "calls.h"
#include "pooling.h"

#define BUFFERS 24
#define GRAPH_NODES 4

struct buffer {
    CUdeviceptr address;
    size_t words;
    uint64_t *shadow;
    unsigned generation;             /* changes when the address is freed */
    bool mapped;                     /* by the program's own hand: mapping.h */
    bool pooled;                     /* pooling.h */
    bool managed;                    /* managing.h */
};

struct recorded { unsigned buffer, generation; uint64_t step; };

struct worker {
    pthread_t thread;
    uint64_t random;
    bool first;                      /* of its program: it has more to try than the others */
    size_t limit;                    /* bytes */
    size_t held;
    CUstream stream;
    CUdeviceptr sum;                 /* one word for the checksum kernel */
    struct buffer buffers[BUFFERS];
    struct pooling pooling;
    CUgraphExec graph;
    struct recorded nodes[GRAPH_NODES];
    unsigned node_count;
    uint64_t operations, compared, graphs, moved, shared, touched, churned;
};

static inline uint64_t next(struct worker *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random * 0x2545F4914F6CDD1Du;
}

static inline uint64_t below(struct worker *w, uint64_t limit)
{
    return (next(w) >> 16) % limit;
}
