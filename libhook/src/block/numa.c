/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in the host the memory for swapped blocks lies. On a host of several
 * sockets a copy to the memory of a far one crosses the link between them, which
 * is slower than the bus and shared with everybody. So memory is asked for on
 * the GPU's own node, and is taken from another where that one is full.
 */
#include "block/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/log.h"
#include "interpose/real.h"

#define NODES_MAX 1024               /* as many as kernels are built for, at most */
#define BITS (8 * (int)sizeof(unsigned long))

int numa_nearest(CUdevice device)
{
    int node;
    return REAL(cuDeviceGetAttribute)(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device)
               == CUDA_SUCCESS ? node : -1;
}

void numa_prefer(void *memory, size_t size, int node)
{
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = { 0 };
    if (node < 0 || node >= NODES_MAX)
        return;
    nodes[node / BITS] = 1UL << node % BITS;
    /* The kernel reads one bit less than it is told. Containers may forbid it. */
    if (syscall(SYS_mbind, memory, size, MPOL_PREFERRED, nodes, NODES_MAX + 1UL, 0) != 0)
        debug("host memory may come from any node: %s", error_text(errno));
}
