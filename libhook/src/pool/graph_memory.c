/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives memory of CUDA graphs back. The driver has one pool of it for each device of a process. What
 * a graph allocates it takes when the graph is launched, and keeps it when all of it has been freed,
 * until the program asks to have it trimmed, which hardly any program does. Such memory cannot leave
 * the card and counts as used outside, so others would have to do without it.
 *
 * What is still allocated stays: nobody knows at a launch how much that takes, so it cannot be asked
 * for before.
 */
#include "pool/graph_memory.h"

#include "driver/log.h"
#include "driver/ops.h"
#include "flight/capture.h"

static cuuint64_t held(CUdevice device, CUgraphMem_attribute attribute)
{
    cuuint64_t bytes;
    return REAL(cuDeviceGetGraphMemAttribute)(device, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

void graph_memory_trim(CUdevice device)
{
    if (!HAVE_REAL(cuDeviceGetGraphMemAttribute) || !HAVE_REAL(cuDeviceGraphMemTrim))
        return;                      /* before CUDA 11.4 graphs have no memory */
    RELAXED;
    if (held(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        <= held(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))
        return;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS)
        debug("the memory of graphs was not trimmed: error %d", (int)result);
}
