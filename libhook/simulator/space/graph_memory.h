/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a graph allocates. It exists from the capture or creation of its node until no graph,
 * executable graph or launch refers to it; the graph's own free only makes it inaccessible. After
 * that it is kept for other graphs until it is trimmed. */
#pragma once

#include "driver/context.h"

struct graph_memory {
    unsigned references;
    CUdeviceptr address;
    size_t size;
    struct device *device;
    struct graph_memory *next;       /* list of all such memory of the process */
};

/* The caller of these functions holds engine_lock. */
CUresult graph_memory_new(struct context *context, size_t size, struct graph_memory **memory);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
void graph_memory_trim(const struct device *device);
/* Bytes of graph memory on the device, with or without memory that is only kept. */
uint64_t graph_memory_bytes(const struct device *device, bool kept);
