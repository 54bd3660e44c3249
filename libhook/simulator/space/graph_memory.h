/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a graph allocates. It exists from the capture or creation of its node until no graph,
 * executable graph or launch refers to it and the program has freed what the last launch allocated:
 * by a node of a graph, by cuMemFreeAsync or by cuMemFree. A free only allows the next launch.
 * Memory that is no longer used is kept for other graphs until it is trimmed. */
#pragma once

#include "driver/context.h"

/* The caller of these functions holds engine_lock. */

/* Allocates memory with one reference. */
CUresult graph_memory_new(struct context *context, size_t size, CUdeviceptr *address);
void graph_memory_count(CUdeviceptr address, int change);    /* takes or drops a reference */
/* Whether a launch has allocated the memory, and it was not freed since. */
bool graph_memory_is_launched(CUdeviceptr address);
/* Records that a launch allocates the memory, or that it is freed. */
void graph_memory_launch(CUdeviceptr address, bool allocated);
void graph_memory_trim(const struct device *device);
/* Bytes of graph memory on the device, with or without memory that is only kept. */
uint64_t graph_memory_bytes(const struct device *device, bool kept);
