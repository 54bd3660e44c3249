/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs have allocated: cuMemAlloc and its kin, managed memory, host
 * memory. Each is one entry, for freeing and for what pointers say of themselves.
 */
#pragma once

#include "space/space.h"

enum allocation_kind {
    ALLOCATED,                       /* device memory: cuMemAlloc, pitch, arrays */
    ALLOCATED_POOL,                  /* the same, stream-ordered */
    ALLOCATED_MANAGED,
    ALLOCATED_HOST,                  /* cuMemHostAlloc */
    REGISTERED_HOST,                 /* cuMemHostRegister */
    ALLOCATED_IMPORT,                /* cuIpcOpenMemHandle */
    ALLOCATED_VARIABLE,              /* a module's, which goes with it alone */
};

struct allocation {
    CUdeviceptr base;
    size_t size;                     /* as asked for */
    enum allocation_kind kind;
    struct context *context;
    struct device *device;           /* for host memory: of the context */
    struct chunk *chunk;             /* a small one is a part of this */
    struct pool *pool;
    unsigned flags;                  /* host and managed memory: as given */
    struct residency *residency;     /* of managed memory: where its pages lie */
    unsigned long long id;
    bool sync_memops, hidden;        /* hidden: an array's, or kept by its pool; found by no pointer */
    bool freeing;                    /* cuMemFreeAsync was called, and has not come to pass */
    bool lost;                       /* cuMemFree was, for memory of a pool */
    bool graphs;                     /* came from an allocation node: there as long as that is */
};

/* Protects all allocations. Behind it the space's lock is taken. Taken behind
 * the engine's, never before. */
extern pthread_mutex_t allocations_lock;

/* The range may be handed to a copy or fill on the device: it lies in one
 * allocation or in what the program has mapped. The driver refuses others at
 * once, so that no work has to fault on them. Takes the locks itself. */
bool range_is_valid(const struct device *device, CUdeviceptr base, size_t size);

/* Below: with the lock held. */
struct allocation *allocation_find(CUdeviceptr address);     /* the one around it; NULL */
struct allocation *allocation_add(CUdeviceptr base, size_t size, enum allocation_kind kind,
                                  struct context *context);

/* Device memory. Take the lock themselves. */
CUresult device_allocate(struct context *context, size_t size, enum allocation_kind kind,
                         struct pool *pool, CUdeviceptr *address);
void device_free(struct allocation *allocation);     /* with the lock held */

/* The pool's memory is open to devices, by the bits of their ordinals, or no
 * longer. With the lock held. What shares its page with others stays open. */
void allocations_open(const struct pool *pool, uint32_t to);
void allocations_close(const struct pool *pool, uint32_t to);

/* Does something to each allocation of the context; it may remove it. */
void allocations_each(const struct context *context, void (*act)(struct allocation *));

/* Memory of the host that all devices know: managed (then with where its pages
 * lie), allocated, registered. With the lock held. */
bool host_map(void *memory, size_t size, struct residency *residency);
size_t whole_pages(size_t size);     /* in bytes, as host_free() gives them back */
void host_free(struct allocation *allocation);
