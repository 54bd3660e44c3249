/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space that the GPUs see in this process: which device addresses
 * are reserved, and what lies under them.
 *
 * Device addresses are taken from a part of the address space that the host
 * never maps anything in, and are translated here, by each kernel and copy. So
 * a host access through a device pointer crashes as on a real machine, a
 * reservation of any size costs nothing, and whatever is not mapped faults.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "space/physical.h"
#include "space/residency.h"

#define SPACE_BEGIN 0x110000000000ull        /* outside of what ASan, TSan and mmap use */
#define SPACE_END 0x300000000000ull

enum access { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_WRITE = 3 };

struct mapping {
    CUdeviceptr base;
    size_t size;
    struct physical *physical;       /* NULL: memory of the host, at its own address */
    size_t offset;
    struct residency *residency;     /* of managed memory */
    uint32_t readable, writable;     /* bit per device ordinal */
    bool allocated;                  /* by cuMemAlloc: open to devices with peer access, too */
};

/* Protects reservations and mappings. Held for reading while bytes are being
 * touched, so that nothing disappears under a copy. Only a `filling`, the lock
 * of residencies and the shared state's may be taken while it is held. */
void space_lock_to_read(void);
void space_lock_to_write(void);
void space_unlock(void);

static inline bool space_is_device(CUdeviceptr address)
{
    return address >= SPACE_BEGIN && address < SPACE_END;
}

/* Every byte is mapped, and open to the device or to the one that holds it.
 * Takes the lock itself. */
bool space_is_open(const struct device *device, CUdeviceptr base, size_t size);

/* They are of different devices, neither of which reaches both: that was mapped and not opened to
 * it. Takes the lock itself. */
bool space_is_apart(CUdeviceptr one, CUdeviceptr other);

/* All below: with the lock held, for writing where they change something. */

/* A free range, at `hint` if that is free. 0: none. */
CUdeviceptr space_reserve(size_t size, size_t alignment, CUdeviceptr hint, bool by_program);
bool space_unreserve(CUdeviceptr base, size_t size, bool by_program);
bool space_is_reserved(CUdeviceptr base, size_t size);   /* by the program, in one reservation */
bool space_reservation(CUdeviceptr address, CUdeviceptr *base, size_t *size);

bool space_map(const struct mapping *mapping);           /* false: something is mapped there */
struct mapping *space_find(CUdeviceptr address);
/* The mappings that make up exactly [base, base + size): how many, and the
 * first. 0 if the range cuts one or has a hole. */
size_t space_whole(CUdeviceptr base, size_t size, struct mapping **first);
/* The mappings that lie in the range, holes or not; false if one is cut. */
bool space_within(CUdeviceptr base, size_t size, struct mapping **first, size_t *count);
/* Removes mappings found by the above; the caller drops their physical memory. */
void space_unmap(struct mapping *first, size_t count);

/* Where the device finds the bytes at `address`: *size goes in as how many are
 * wanted and comes out as how many of them lie together. NULL: a fault. */
char *space_resolve(const struct device *device, CUdeviceptr address, enum access access,
                    bool overwrite, size_t *size);
