/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates host memory from the kernel, populates it and registers it with the driver. The memory
 * has huge pages, and comes from the NUMA node nearest to the GPU.
 *
 * A thread that maps, advises or unmaps takes the process's mmap lock exclusively; threads that
 * populate or register pages share it. When each of eight threads mapped and advised its slab
 * before it populated it, they were no faster than one: a program's first eviction on an H200 ran
 * at 4 to 6 GB/s. Everything is therefore mapped at once beforehand, and the populating threads
 * only share the lock: 13 to 16 GB/s, with a slab for each thread (out_making_host_memory_gbps of
 * bench/handover). Memory that a virtual machine has never used before is slow all the same.
 *
 * On a host with several sockets a copy to a far node's memory crosses the link between them. That
 * link is slower than the bus, and all processors share it. If the near node is full, memory comes
 * from another node.
 *
 * The memory is private to the process, children do not inherit it, and core dumps leave it out.
 */
#include "tier/host_memory.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "tier/tier.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23       /* Linux 5.14; the headers may be older than the kernel */
#endif

#define NODES_MAX 1024               /* the largest number of nodes that kernels are built for */
#define BITS (8 * (int)sizeof(unsigned long))

/* Huge pages need an address that is a multiple of their size. */
static char *map_aligned(size_t size)
{
    char *memory = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    size_t before = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    if (before > 0)
        munmap(memory, before);
    if (before < PAGE)
        munmap(memory + before + size, PAGE - before);
    return memory + before;
}

int host_memory_nearest(CUdevice device)
{
    int node;
    return REAL(cuDeviceGetAttribute)(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device)
               == CUDA_SUCCESS ? node : -1;
}

/* Sets the preferred node of memory that was not touched yet. */
static void prefer(void *memory, size_t size, int node)
{
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = { 0 };
    if (node < 0 || node >= NODES_MAX)
        return;
    nodes[node / BITS] = 1UL << node % BITS;
    /* The kernel reads one bit less than the given number. Containers may forbid the call. */
    if (syscall(SYS_mbind, memory, size, MPOL_PREFERRED, nodes, NODES_MAX + 1UL, 0) != 0)
        debug("host memory may come from any node: %s", error_text(errno));
}

char *host_memory_map(size_t size, int node)
{
    char *memory = map_aligned(size);
    if (memory == NULL)
        return NULL;
    madvise(memory, size, MADV_HUGEPAGE);
    madvise(memory, size, MADV_DONTFORK);
    madvise(memory, size, MADV_DONTDUMP);
    prefer(memory, size, node);
    return memory;
}

void host_memory_fill(char *memory, size_t size)
{
    if (madvise(memory, size, MADV_POPULATE_WRITE) == 0)
        return;
    /* Older kernels: touch each page. No other thread uses the memory yet. */
    for (size_t offset = 0; offset < size; offset += 4096)
        ((volatile char *)memory)[offset] = 0;
}

static CUresult enregister(char *memory, size_t size)
{
    CUresult result = REAL(cuMemHostRegister_v2)(memory, size, CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS)
        debug("registering %zu bytes of host memory failed: error %d", size, (int)result);
    return result;
}

bool host_memory_register(char *memory, size_t size)
{
    return enregister(memory, size) == CUDA_SUCCESS;
}

bool host_memory_register_again(char *memory, size_t size)
{
    CUresult result = enregister(memory, size);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

void host_memory_unmap(char *memory, size_t size)
{
    munmap(memory, size);
}

bool host_memory_unregister(char *memory)
{
    CUresult result = REAL(cuMemHostUnregister)(memory);
    if (result != CUDA_SUCCESS)
        debug("unregistering host memory failed: error %d", (int)result);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
