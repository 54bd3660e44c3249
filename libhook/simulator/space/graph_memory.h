/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a graph allocates. It is there from the capture or the making of
 * the node until the last graph, executable graph and launch that know it have
 * gone; the graph's own freeing changes nothing but that its bytes may not be used.
 * Then it is kept for the next graph, until the program asks to have it trimmed.
 */
#pragma once

#include "driver/context.h"

struct graph_memory {
    unsigned references;
    CUdeviceptr address;
    size_t size;
    struct device *device;
    struct graph_memory *next;       /* among all of the process */
};

/* All with the engine's lock held. */
CUresult graph_memory_new(struct context *context, size_t size, struct graph_memory **memory);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
void graph_memory_trim(const struct device *device);
/* Bytes; with what is kept, or without. */
uint64_t graph_memory_bytes(const struct device *device, bool kept);
