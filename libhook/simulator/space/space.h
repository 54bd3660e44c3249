/* SPDX-License-Identifier: Apache-2.0 */
/* The device address space of this process: reserved addresses, mappings and allocations. Each
 * kernel and copy translates addresses. The host maps nothing there: a host access crashes, as on a real
 * machine, and a reservation of any size costs nothing. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "space/physical.h"
#include "space/residency.h"

#define SPACE_BEGIN 0x110000000000ull        /* free of mmap() and sanitizers */
#define SPACE_END 0x300000000000ull

enum access { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_WRITE = 3 };

enum allocation_kind {
    ALLOCATED,                       /* device memory of cuMemAlloc, cuMemAllocPitch and arrays */
    ALLOCATED_POOL,                  /* device memory of cuMemAllocAsync */
    ALLOCATED_MANAGED,
    ALLOCATED_HOST,                  /* cuMemHostAlloc */
    REGISTERED_HOST,                 /* cuMemHostRegister */
    ALLOCATED_IMPORT,                /* cuIpcOpenMemHandle */
    ALLOCATED_VARIABLE,              /* a variable of a module, freed with the module only */
};

/* An allocation of device, managed or host memory. It has one mapping, which begins at `base`. */
struct allocation {
    CUdeviceptr base;
    size_t size;                     /* bytes as requested; the mapping has whole pages */
    enum allocation_kind kind;
    struct context *context;
    struct device *device;           /* of host memory: the device of its context */
    struct pool *pool;
    struct allocation *next_kept;    /* list of memory that the pool keeps unused */
    unsigned flags;                  /* of host and managed memory: as requested */
    unsigned long long id;
    bool sync_memops, hidden;        /* no pointer finds it: array, free pool memory */
    bool freeing;                    /* the stream has not reached its cuMemFreeAsync yet */
    bool lost;                       /* memory of a pool that was freed by cuMemFree */
    bool graphs;                     /* of a graph's node, see graph_memory.h */
    bool launched;                   /* memory of a graph: a launch allocated it, and no free yet */
    unsigned references;             /* of graphs, executable graphs and launches */
};

struct mapping {
    CUdeviceptr base;
    size_t size;
    struct physical *physical;       /* NULL: host memory at its own address */
    struct residency *residency;     /* of managed memory */
    uint32_t readable, writable;     /* a bit for each device ordinal */
    struct allocation *allocation;   /* NULL: the program has mapped the memory itself. Peers may
                                        access device memory that is allocated */
};

/* The lock of mappings, allocations and pools, locked after engine_lock. Locked for reading while
 * bytes are accessed, so that no mapping is removed. The holder may lock only a `filling`,
 * residencies, the table of handles and the shared state. */
void space_lock_to_read(void);
void space_lock_to_write(void);
void space_unlock(void);
/* SPACE_LOCKED(read or write): locks until the end of the block. */
static inline void space_unlock_at_end(const char *unused)
{
    (void)unused;
    space_unlock();
}
#define SPACE_LOCKED(mode)                                                               \
    __attribute__((cleanup(space_unlock_at_end), unused))                                \
    const char space_locked_ = (space_lock_to_##mode(), 0)

static inline bool space_is_device(CUdeviceptr address)
{
    return address >= SPACE_BEGIN && address < SPACE_END;
}

/* Whether the range lies in one allocation or in mappings, and is accessible to the device or to
 * the device that holds the bytes. The driver refuses other ranges at the call. Locks the address space
 * itself. */
bool range_is_valid(const struct device *device, CUdeviceptr base, size_t size);

/* Whether the addresses are on different devices without access to each other's mapping. Locks
 * the address space itself. */
bool space_is_apart(CUdeviceptr one, CUdeviceptr other);

/* The address space is locked for the following functions, for writing if a function changes it. */

/* Reserves a free range, at `hint` if that is free. 0: no range is free. */
CUdeviceptr space_reserve(size_t size, size_t alignment, CUdeviceptr hint, bool by_program);
bool space_unreserve(CUdeviceptr base, size_t size, bool by_program);
bool space_is_reserved(CUdeviceptr base, size_t size);   /* the range lies in one reservation of
                                                            the program */
bool space_reservation(CUdeviceptr address, CUdeviceptr *base, size_t *size);

bool space_map(const struct mapping *mapping);           /* false: the range is not free */
struct mapping *space_find(CUdeviceptr address);
/* The mappings that cover exactly [base, base + size); 0: the range cuts one or has a hole. */
size_t space_whole(CUdeviceptr base, size_t size, struct mapping **first);
/* Finds the mappings in the range, which may have holes. False: the range cuts a mapping. */
bool space_within(CUdeviceptr base, size_t size, struct mapping **first, size_t *count);
/* Removes found mappings. The caller drops the references to physical memory. */
void space_unmap(struct mapping *first, size_t count);

struct allocation *allocation_find(CUdeviceptr address);     /* NULL: none has the address */
struct allocation *allocation_at(CUdeviceptr base);          /* NULL: none begins there */

/* Maps host memory for all devices. NULL: a part of the range is mapped already. */
struct allocation *host_map(void *memory, size_t size, struct residency *residency,
                            enum allocation_kind kind, struct context *context);
size_t whole_pages(size_t size);     /* `size` rounded up to whole pages, in bytes */

/* Frees an allocation of any kind, but the memory of a pool is not returned to the pool. */
void allocation_free(struct allocation *allocation);

/* Devices in the mask `opened` may access the pool's memory from now on, and devices in `closed` no
 * longer. */
void allocations_open(const struct pool *pool, uint32_t opened, uint32_t closed);

struct allocation *allocation_after(CUdeviceptr address);    /* the next one; NULL: there is none */

/* The following two functions allocate device memory, and lock the address space themselves. */
CUresult device_allocate(struct context *context, size_t size, enum allocation_kind kind,
                         struct pool *pool, CUdeviceptr *address);
/* Maps physical memory at a new address as an allocation of the context; drops the reference on
 * failure. */
CUresult device_map(struct context *context, struct physical *physical, size_t size,
                    enum allocation_kind kind, struct pool *pool, CUdeviceptr *address);

/* Returns the host address. *size: in, bytes wanted; out, bytes contiguous there. NULL: a fault. */
char *space_resolve(const struct device *device, CUdeviceptr address, enum access access,
                    bool overwrite, size_t *size);
