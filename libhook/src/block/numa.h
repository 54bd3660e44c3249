/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "interpose/driver.h"

/* The node of the host's memory that is nearest to a GPU; -1: there is no such thing. */
int numa_nearest(CUdevice device);

/* Has memory that was not touched yet come from this node, while it has any. */
void numa_prefer(void *memory, size_t size, int node);
