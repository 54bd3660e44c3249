/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host that copies of blocks can lie in. All functions may be called
 * from any thread, with or without memory_lock; to fill 16 MiB takes milliseconds.
 */
#pragma once

#include "driver/driver.h"

/* The node of the host's memory that is nearest to a GPU; -1: there is no such thing. */
int host_memory_nearest(CUdevice device);
/* Addresses, with nothing behind them yet, of memory that will come from this node
 * if it can. `size`: bytes, a multiple of PAGE. NULL: the kernel refuses. */
char *host_memory_map(size_t size, int node);
/* Puts memory behind a part of it. */
void host_memory_fill(char *memory, size_t size);
/* Registers a part that has been filled with the driver, as one piece. False: refused. */
bool host_memory_register(char *memory, size_t size);
/* The same of a piece that was registered before and not unmapped since. */
bool host_memory_register_again(char *memory, size_t size);
/* For any part of what is mapped and not registered. */
void host_memory_unmap(char *memory, size_t size);
/* For a piece that was registered, as a whole. False: the driver may know it still, and until
 * it does not it stays mapped: to the driver, what came to lie there next would be this. */
bool host_memory_unregister(char *memory);
