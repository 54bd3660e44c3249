/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory for copies of blocks. All functions may be called from any thread, with or without
 * memory_lock; populating 16 MiB takes milliseconds.
 */
#pragma once

#include "driver/driver.h"

/* The NUMA node nearest to a GPU; -1: unknown. */
int host_memory_nearest(CUdevice device);
/* Maps addresses without memory behind them; the memory will come from this node if possible.
 * `size`: bytes, a multiple of PAGE. NULL: the kernel refuses. */
char *host_memory_map(size_t size, int node);
/* Populates a part of the mapping. */
void host_memory_fill(char *memory, size_t size);
/* Registers a populated part with the driver, as one piece. False: the driver refuses. */
bool host_memory_register(char *memory, size_t size);
/* Registers again a piece that was registered before and has stayed mapped. */
bool host_memory_register_again(char *memory, size_t size);
/* Unmaps any part of a mapping that is not registered. */
void host_memory_unmap(char *memory, size_t size);
/* Unregisters a whole piece. False: the driver may still have the piece registered. It must then
 * stay mapped, because the driver would mistake later memory at this address for it. */
bool host_memory_unregister(char *memory);
