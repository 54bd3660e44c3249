/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel has one lock for all that is mapped in a process. Mapping, advising and
 * unmapping take it alone; filling pages and registering them share it. But who wants it
 * alone waits until all have left it, and whoever comes after waits behind. Where each of
 * several threads mapped and advised a slab before it filled it, eight were no
 * faster than one, and programs left an H200 for the first time at 4 to 6 GB/s. So all
 * that is going to be filled is mapped at once and before, and threads that fill need
 * the lock no more but shared: 13 to 16 GB/s, with a slab for each thread
 * (out_making_host_memory_gbps of bench/handover). What a virtual machine has never
 * used before is slow all the same.
 *
 * The memory is private to the process, is not inherited by its children and
 * does not appear in core dumps.
 */
#include "block/host_memory.h"

#include <sys/mman.h>

#include "block/numa.h"
#include "block/region.h"
#include "interpose/log.h"
#include "interpose/real.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23       /* Linux 5.14; the headers may be older than the kernel */
#endif

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

char *host_memory_map(size_t size, int node)
{
    char *memory = map_aligned(size);
    if (memory == NULL)
        return NULL;
    madvise(memory, size, MADV_HUGEPAGE);
    madvise(memory, size, MADV_DONTFORK);
    madvise(memory, size, MADV_DONTDUMP);
    numa_prefer(memory, size, node);
    return memory;
}

void host_memory_fill(char *memory, size_t size)
{
    if (madvise(memory, size, MADV_POPULATE_WRITE) == 0)
        return;
    /* Older kernels: the same by hand. The memory is not shared yet. */
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
