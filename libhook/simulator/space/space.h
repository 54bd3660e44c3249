/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device address space of this process: reserved addresses and the mappings in them.
 *
 * Device addresses are taken from a part of the address space in which the host maps nothing. Each
 * kernel and copy translates them here. A host access through a device pointer therefore crashes,
 * as on a real machine; a reservation of any size costs no memory; and an access to an unmapped
 * address faults.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "space/physical.h"
#include "space/residency.h"

#define SPACE_BEGIN 0x110000000000ull        /* not used by mmap(), AddressSanitizer and
                                                ThreadSanitizer */
#define SPACE_END 0x300000000000ull

enum access { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_WRITE = 3 };

struct mapping {
    CUdeviceptr base;
    size_t size;
    struct physical *physical;       /* NULL: host memory at its own address */
    size_t offset;
    struct residency *residency;     /* of managed memory */
    uint32_t readable, writable;     /* a bit for each device ordinal */
    bool allocated;                  /* by cuMemAlloc: devices with peer access may access it,
                                        too */
};

/* The lock of reservations and mappings. It is held for reading while bytes are accessed, so
 * that no mapping is removed under a copy. Its holder may lock a `filling`, the lock of
 * residencies and the shared state only. */
void space_lock_to_read(void);
void space_lock_to_write(void);
void space_unlock(void);

static inline bool space_is_device(CUdeviceptr address)
{
    return address >= SPACE_BEGIN && address < SPACE_END;
}

/* Whether all bytes are mapped, and accessible to the device or to the device that holds them.
 * Takes the lock itself. */
bool space_is_open(const struct device *device, CUdeviceptr base, size_t size);

/* Whether the two addresses are on different devices, neither of which can access both, because
 * the memory was mapped without access for it. Takes the lock itself. */
bool space_is_apart(CUdeviceptr one, CUdeviceptr other);

/* The lock is held for the following functions; for writing if they change anything. */

/* Reserves a free range, at `hint` if that is free. 0: none. */
CUdeviceptr space_reserve(size_t size, size_t alignment, CUdeviceptr hint, bool by_program);
bool space_unreserve(CUdeviceptr base, size_t size, bool by_program);
bool space_is_reserved(CUdeviceptr base, size_t size);   /* the range lies in one reservation of
                                                            the program */
bool space_reservation(CUdeviceptr address, CUdeviceptr *base, size_t *size);

bool space_map(const struct mapping *mapping);           /* false: something is mapped in the
                                                            range */
struct mapping *space_find(CUdeviceptr address);
/* Finds the mappings that cover exactly [base, base + size); returns their number. 0: the range
 * cuts a mapping or has a hole. */
size_t space_whole(CUdeviceptr base, size_t size, struct mapping **first);
/* Finds the mappings inside the range, which may have holes. False: the range cuts one. */
bool space_within(CUdeviceptr base, size_t size, struct mapping **first, size_t *count);
/* Removes mappings that the functions above have found; the caller drops their references to
 * physical memory. */
void space_unmap(struct mapping *first, size_t count);

/* The host address of the device's bytes at `address`. *size: in, the bytes wanted; out, the
 * bytes that are contiguous there. NULL: a fault. */
char *space_resolve(const struct device *device, CUdeviceptr address, enum access access,
                    bool overwrite, size_t *size);
