/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program got from cuMemAlloc. The functions named memory_ are for wrappers: any
 * thread, no lock held, for the client of the current context's device unless they take an address.
 * False: the wrapper calls the driver. All other functions are called with memory_lock held.
 */
#pragma once

#include "block/region.h"
#include "driver/driver.h"
#include "driver/ring.h"

#define SLAB_CLASSES 48
#define SMALL_MAX ((size_t)1 << 20)

struct block;

struct memory_description {
    CUdeviceptr base;                /* the address returned to the program */
    size_t size;                     /* bytes, as the program requested */
    CUdeviceptr range;               /* the program's reservation around it; 0: it has none */
    size_t range_size;
    CUcontext context;               /* the current context at the allocation */
    CUdevice device;
    unsigned long long id;           /* unique in the process, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    bool sync_memops;
    CUmemAllocationHandleType handle_types;        /* handle types for which it is exportable */
    bool ipc;                        /* exportable with cuIpcGetMemHandle() */
    bool imported;                   /* memory of another process */
    CUdevice reader;                 /* if imported: the device for which it is mapped */
};

struct object {
    unsigned long long id;
    size_t size : 62;                /* bytes as requested; 0: no allocation */
    bool sync_memops : 1;
    bool retired : 1;                /* freed by the program, but not released yet */
    struct async_allocation *async;  /* record of pool.c for the allocation; NULL: none */
};

/* Operations of a page_owner on its memory, in which `address` lies. NULL: not supported. Retiring
 * makes an allocation invalid for the program; releasing frees its memory, which no work may use
 * then. */
struct owner_operations {
    /* The object that contains `address`, retired or not; *base: its first address. NULL: none. */
    struct object *(*object)(struct page_owner *owner, CUdeviceptr address, CUdeviceptr *base);
    /* For owners without object(). False: the program has no allocation at `address`. */
    bool (*describe)(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description);
    /* Releases a retired object. NULL: destroy() does so, as the owner has only one object. */
    void (*release)(struct page_owner *owner, CUdeviceptr address);
    void (*destroy)(struct page_owner *owner);
};

/* An allocation above 1 MiB. */
struct large {
    struct page_owner owner;
    CUdeviceptr base;
    struct object object;
    bool spare;                      /* freed by the program and kept for reuse */
    uint64_t freed_at;               /* us: when the program freed it */
    struct ring order;               /* in the list of its client's spares */
    struct vmm_allocation *vmm;      /* the VMM allocation on this memory; NULL: from cuMemAlloc */
    struct block *blocks[];          /* owner.block_count entries */
};

/* False: call the driver. *result: what the wrapper returns; on success *address is new memory. */
bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result);
bool memory_free(CUdeviceptr address, CUresult *result);
bool memory_describe(CUdeviceptr address, struct memory_description *description);
bool memory_set_sync_memops(CUdeviceptr address, bool on);
/* Whether the library has reserved the address, allocated or not. */
bool memory_is_ours(CUdeviceptr address);
/* For cuMemGetInfo and cuDeviceTotalMem: the client's limits instead of the card's. */
bool memory_information(size_t *free_bytes, size_t *total_bytes);
bool memory_total(CUdevice device, size_t *total_bytes);

/* Allocates addresses, and card memory as far as the client's room suffices. */
CUresult allocation_make(struct client *client, CUcontext context, size_t bytes,
                         CUdeviceptr *address);
bool allocation_describe(CUdeviceptr address, struct memory_description *description);
/* The object that begins at `address`, retired or not; NULL: none. */
struct object *allocation_at(CUdeviceptr address);
void allocation_release(CUdeviceptr address);
/* Reuses a retired allocation as a new allocation of `bytes` bytes, which must fit. */
void allocation_renew(CUdeviceptr address, size_t bytes);
void allocations_context_ends(const struct client *client, CUcontext context);

unsigned long long allocation_id(void);           /* a new unique id */

/* Maps as many of the blocks as fit the client's room; the others stay EMPTY. */
void allocation_fill(struct block *const *blocks, size_t count);

/* `properties`: of the physical memory, must outlive the allocation; NULL: defaults. An exportable
 * allocation of at most 256 MiB is a single block. */
CUresult large_create(struct client *client, CUcontext context, size_t bytes,
                      const CUmemAllocationProp *properties, CUdeviceptr *address);
void large_release(struct page_owner *owner);     /* `owner` of a struct large */
/* The size of the slot of a slab for `bytes` bytes, and its class. */
size_t slab_slot_size(size_t bytes, unsigned *class);

void spares_prepare(const struct client *client);   /* called for each new client */
/* A `reclaimer` (gate/client.h): releases the oldest spares first. */
bool spares_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* Releases spares that are too old. Returns the us until the next call is due, or NEVER. */
int64_t spares_expire(struct client *client);
void deferred_frees_context_end(CUcontext context); /* may release and retake the lock */

/* A `reclaimer`: waits for work of a context with deferred frees. Always false in a capture. */
bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until);
