/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory allocated by a graph. It exists from the capture, or the creation of the node, until the
 * last graph, executable graph and launch that refer to it are gone. The graph's own free only
 * makes its bytes inaccessible. Afterwards it is kept for other graphs until the program trims it.
 */
#pragma once

#include "driver/context.h"

struct graph_memory {
    unsigned references;
    CUdeviceptr address;
    size_t size;
    struct device *device;
    struct graph_memory *next;       /* list of all such memory of the process */
};

/* engine_lock is held for all of them. */
CUresult graph_memory_new(struct context *context, size_t size, struct graph_memory **memory);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
void graph_memory_trim(const struct device *device);
/* Bytes of graph memory on the device, with or without memory that is only kept. */
uint64_t graph_memory_bytes(const struct device *device, bool kept);
