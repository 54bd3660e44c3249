/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools: stream-ordered allocation. */
#ifndef NVSHARE_SIMULATOR_POOL_H
#define NVSHARE_SIMULATOR_POOL_H

#include "driver/context.h"

struct allocation;

/* Stream-ordered freeing has come to pass. */
void pool_give_back(CUdeviceptr address);
/* Its context ends. With the allocations' lock held. */
void pool_loses(struct allocation *allocation);

/* The same, with the allocations' lock held. */
void pool_free_now(struct allocation *allocation);

/* Frees what the device's pools hold and nobody uses; true if that was anything. */
bool pools_trim(struct device *device);

#endif
