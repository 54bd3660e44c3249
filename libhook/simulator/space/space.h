/* SPDX-License-Identifier: Apache-2.0 */
/* The device address space of this process: reserved addresses and mappings, translated by each
 * kernel and copy. The host maps nothing there: a host access crashes, as on a real machine, and
 * a reservation of any size costs nothing. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "space/physical.h"
#include "space/residency.h"

#define SPACE_BEGIN 0x110000000000ull        /* free of mmap() and sanitizers */
#define SPACE_END 0x300000000000ull

enum access { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_WRITE = 3 };

struct mapping {
    CUdeviceptr base;
    size_t size;
    struct physical *physical;       /* NULL: host memory at its own address */
    size_t offset;
    struct residency *residency;     /* of managed memory */
    uint32_t readable, writable;     /* a bit for each device ordinal */
    bool allocated;                  /* by cuMemAlloc: peers may access it */
};

/* The length of a sorted array. Inserting an element may move the array, which is returned. */
struct length { size_t count, room; };
void *sorted_insert(void *list, struct length *length, size_t place, const void *element,
                    size_t size);

/* Locked for reading while bytes are accessed, so that no mapping is removed. The holder may lock
 * only a `filling`, residencies and the shared state. */
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

/* Whether all bytes are mapped, and accessible to the device or to the device that holds the
 * bytes. Locks the address space itself. */
bool space_is_open(const struct device *device, CUdeviceptr base, size_t size);

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

/* Returns the host address. *size: in, bytes wanted; out, bytes contiguous there. NULL: a fault. */
char *space_resolve(const struct device *device, CUdeviceptr address, enum access access,
                    bool overwrite, size_t *size);
