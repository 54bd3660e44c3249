/* SPDX-License-Identifier: Apache-2.0 */
/* An entry for each allocation of device, managed and host memory. */
#pragma once

#include "space/space.h"

enum allocation_kind {
    ALLOCATED,                       /* device memory of cuMemAlloc, cuMemAllocPitch and arrays */
    ALLOCATED_POOL,                  /* device memory of cuMemAllocAsync */
    ALLOCATED_MANAGED,
    ALLOCATED_HOST,                  /* cuMemHostAlloc */
    REGISTERED_HOST,                 /* cuMemHostRegister */
    ALLOCATED_IMPORT,                /* cuIpcOpenMemHandle */
    ALLOCATED_VARIABLE,              /* a variable of a module, freed with the module only */
};

struct allocation {
    CUdeviceptr base;
    size_t size;                     /* bytes as requested */
    enum allocation_kind kind;
    struct context *context;
    struct device *device;           /* of host memory: the device of its context */
    struct chunk *chunk;             /* of which a small allocation is a part; NULL: large */
    struct pool *pool;
    unsigned flags;                  /* of host and managed memory: as requested */
    struct residency *residency;     /* of managed memory: where its pages are */
    unsigned long long id;
    bool sync_memops, hidden;        /* no pointer finds it: array, free pool memory */
    bool freeing;                    /* the stream has not reached its cuMemFreeAsync yet */
    bool lost;                       /* memory of a pool that was freed by cuMemFree */
    bool graphs;                     /* of a graph's node; lasts as long as the graph */
};

/* Protects all allocations. Locked after engine_lock; its holder may lock the address space. */
extern pthread_mutex_t allocations_lock;

/* Whether the device may access the range: it lies in one allocation or in mappings. The driver
 * refuses other ranges at the call. Locks all that it needs. */
bool range_is_valid(const struct device *device, CUdeviceptr base, size_t size);

/* The caller of the following functions holds allocations_lock. */
struct allocation *allocation_find(CUdeviceptr address);     /* NULL: none has the address */
struct allocation *allocation_at(CUdeviceptr base);          /* NULL: none begins there */
struct allocation *allocation_add(CUdeviceptr base, size_t size, enum allocation_kind kind,
                                  struct context *context);

/* Allocate device memory, and lock allocations_lock themselves. */
CUresult device_allocate(struct context *context, size_t size, enum allocation_kind kind,
                         struct pool *pool, CUdeviceptr *address);
/* Maps physical memory at a new address; drops the reference on failure. */
CUresult device_map(struct device *device, struct physical *physical, CUdeviceptr *base);
void device_free(struct allocation *allocation);     /* allocations_lock is held */

/* Devices in the mask `opened` may access the pool's memory from now on, and those in `closed` no
 * longer, but memory that shares a page stays accessible. allocations_lock is held. */
void allocations_open(const struct pool *pool, uint32_t opened, uint32_t closed);

/* Calls `act` for each allocation of the context; `act` may remove the allocation. */
void allocations_each(const struct context *context, void (*act)(struct allocation *));

/* Host memory of all devices: managed, allocated, registered. allocations_lock is held. */
bool host_map(void *memory, size_t size, struct residency *residency);
size_t whole_pages(size_t size);     /* `size` rounded up to whole pages, in bytes */
void host_free(struct allocation *allocation);
