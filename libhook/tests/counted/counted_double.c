/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for counted_device(): a current context on device 0, and two devices
 * on which pinned memory counts. No simulated driver has locality domains.
 */
#include "api/wrapper.h"

_Atomic(void *) real_functions[REAL_COUNT];

static CUresult current(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

void *real_find(enum real_index index)
{
    return index == REAL_cuCtxGetDevice ? (void *)current : NULL;
}

bool pinned_counts_on(CUdevice device) { return device == 0 || device == 1; }

SEEN int counted_at(int type, int id)
{
    return counted_device((CUmemLocation){ .type = (CUmemLocationType)type, .id = id });
}
