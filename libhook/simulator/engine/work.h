/* SPDX-License-Identifier: Apache-2.0 */
/* An element of an operation in a stream, or the content of a graph's node: a plain value. */
#pragma once

#include <stdbool.h>

#include "driver/context.h"
#include "engine/kernels.h"

struct event;

enum work_kind {
    WORK_NOTHING, WORK_KERNEL, WORK_COPY, WORK_SET, WORK_HOST, WORK_WRITE_VALUE,
    WORK_WAIT_VALUE, WORK_RECORD, WORK_WAIT_EVENT, WORK_FREE, WORK_PREFETCH,
    WORK_GRAPH_MEMORY,
};

/* One side of a copy: rows at a distance of `pitch` bytes, `height` rows in a layer. */
struct side {
    CUdeviceptr address;             /* of the first byte */
    size_t pitch, layer;             /* bytes from one row, or one layer, to the next */
    bool host;                       /* a host pointer, even if it is also device memory */
    struct device *device;           /* the copy engine's device; NULL: the stream's device */
};

struct work {
    enum work_kind kind;
    union {
        struct {
            const struct kernel *kernel;
            uint64_t arguments[KERNEL_ARGUMENTS];
        } launch;
        struct {
            struct side to, from;
            size_t width, height, depth;
            void *staged;            /* the source, read at the call; freed with the operation */
        } copy;
        struct {
            CUdeviceptr address;
            size_t pitch, width, height;     /* `width` counts elements */
            uint32_t value;
            unsigned element;                /* bytes of an element: 1, 2 or 4 */
        } set;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            CUdeviceptr address;
            uint64_t value;
            unsigned bytes, flags;           /* `bytes`: 4 or 8; CUstreamWaitValue_flags */
        } value;
        struct {
            CUdeviceptr address;
            size_t size;
            int gpu;                         /* destination; RESIDENCY_HOST: the host */
        } prefetch;
        struct event *event;                 /* WORK_RECORD, WORK_WAIT_EVENT; a counted reference */
        CUdeviceptr freed;                   /* WORK_FREE: returned to its pool */
        CUdeviceptr memory;                  /* WORK_GRAPH_MEMORY; a counted reference */
    };
};

/* Runs the work in the calling thread. An error breaks the context. Doomed work fails,
 * at the latest after its next piece. */
CUresult work_run(struct context *context, const struct work *work,
                  const _Atomic bool *doomed);

/* Take and drop references of the work. engine_lock is held. */
void work_hold(const struct work *work);
void work_drop(const struct work *work);

/* Whether the work will access a byte of [base, base + size), in device addresses. */
bool work_touches(const struct work *work, CUdeviceptr base, size_t size);
