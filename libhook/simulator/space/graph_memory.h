/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a graph allocates. It exists from the capture or creation of its node until no graph,
 * executable graph or launch refers to it; the graph's own free only makes it inaccessible. After
 * that it is kept for other graphs until it is trimmed. */
#pragma once

#include "driver/context.h"

/* The caller of these functions holds engine_lock. */

/* Allocates memory with one reference. */
CUresult graph_memory_new(struct context *context, size_t size, CUdeviceptr *address);
void graph_memory_count(CUdeviceptr address, int change);    /* takes or drops a reference */
void graph_memory_trim(const struct device *device);
/* Bytes of graph memory on the device, with or without memory that is only kept. */
uint64_t graph_memory_bytes(const struct device *device, bool kept);
