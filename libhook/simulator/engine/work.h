/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work: what a stream carries out, and what a graph's node holds. A work is a
 * plain value; its pointers belong to whoever holds it as said below.
 */
#pragma once

#include <stdbool.h>

#include "driver/context.h"
#include "engine/kernels.h"

struct event;
struct graph;
struct graph_memory;

enum work_kind {
    WORK_NOTHING, WORK_KERNEL, WORK_COPY, WORK_SET, WORK_HOST, WORK_CALLBACK, WORK_WRITE_VALUE,
    WORK_WAIT_VALUE, WORK_RECORD, WORK_WAIT_EVENT, WORK_FREE, WORK_PREFETCH, WORK_GRAPH,
    WORK_GRAPH_MEMORY,
};

/* One side of a copy. Rows of `pitch` bytes, `height` rows to a layer. */
struct side {
    CUdeviceptr address;             /* of the first byte copied */
    size_t pitch, layer;             /* bytes from row to row, from layer to layer */
    bool host;                       /* the processor's pointer, whatever the GPU may think of it */
    struct device *device;           /* whose copy engine moves it; NULL: the stream's */
};

struct work {
    enum work_kind kind;
    union {
        struct {
            const struct kernel *kernel;
            uint64_t arguments[KERNEL_ARGUMENTS];
            CUfunction function;             /* as given, for graphs to tell */
            unsigned grid[3], block[3];
        } launch;
        struct {
            struct side to, from;
            size_t width, height, depth;
            void *staged;            /* the bytes themselves: freed with the operation */
        } copy;
        struct {
            CUdeviceptr address;
            size_t pitch, width, height;     /* width in elements */
            uint32_t value;
            unsigned element;                /* bytes: 1, 2 or 4 */
        } set;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            CUstreamCallback function;
            void *data;
            CUstream stream;
        } callback;
        struct {
            CUdeviceptr address;
            uint64_t value;
            unsigned bytes, flags;           /* 4 or 8; CUstreamWaitValue_flags */
        } value;
        struct {
            CUdeviceptr address;
            size_t size;
            int gpu;                         /* or RESIDENCY_HOST */
        } prefetch;
        struct event *event;                 /* WORK_RECORD, WORK_WAIT_EVENT: a reference */
        CUdeviceptr freed;                   /* WORK_FREE: back to its pool */
        struct graph *child;                 /* WORK_GRAPH: within graphs only, owned by the node */
        struct graph_memory *memory;         /* WORK_GRAPH_MEMORY: a reference */
    };
};

/* Carries the work out in the calling thread, for a stream of `context`.
 * Anything but success breaks the context; work that is doomed meanwhile is none. */
CUresult work_run(struct context *context, const struct work *work,
                  const _Atomic bool *doomed);

/* What the work refers to, as one more or one fewer holder of it; a child graph
 * is its node's. With the engine's lock held. */
void work_hold(const struct work *work);
void work_drop(const struct work *work);

/* The work will touch a byte of [base, base + size), as the GPU counts addresses. */
bool work_touches(const struct work *work, CUdeviceptr base, size_t size);
