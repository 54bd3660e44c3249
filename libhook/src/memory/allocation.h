/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations: memory that the program got from cuMemAlloc. Those above 1 MiB own their blocks
 * (large.c); smaller ones share a slab, one block of 2 MiB divided into slots of one size (slab.c).
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

#define SMALL_MAX ((size_t)1 << 20)

struct block;
struct client;
struct page_owner;

struct memory_description {
    CUdeviceptr base;                /* as returned to the program */
    size_t size;                     /* bytes, as the program requested */
    CUcontext context;               /* the current context at the allocation */
    CUdevice device;
    unsigned long long id;           /* unique in the process, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    bool sync_memops;
    CUmemAllocationHandleType handle_types;        /* handle types for which it is exportable */
    bool ipc;                        /* exportable with cuIpcGetMemHandle() */
    bool imported;                   /* another process's; `reader` can access it, too */
    CUdevice reader;
};

/* Operations on the memory of a page's owner, which contains `address`. NULL: not supported. */
struct owner_operations {
    /* False: the program has no allocation there. */
    bool (*describe)(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description);
    void (*set_sync_memops)(struct page_owner *owner, CUdeviceptr address, bool on);
    /* A free in two steps, because memory must not be reused while work may touch it: retire makes
     * the allocation invalid for the program (false: no allocation begins there, or it is retired
     * already), release frees its memory. */
    bool (*retire)(struct page_owner *owner, CUdeviceptr address);
    void (*release)(struct page_owner *owner, CUdeviceptr address);
    /* Gives a retired allocation back to the program as a new one of `bytes`, which must fit. */
    void (*renew)(struct page_owner *owner, CUdeviceptr address, size_t bytes);
    /* Frees the owner with all allocations in it. */
    void (*destroy)(struct page_owner *owner);
    /* All blocks of the owner, in the order of addresses. */
    struct block *const *(*blocks)(struct page_owner *owner, size_t *count);
};

/* The operations above on the owner of `address`. False: the address has no owner. */
bool allocation_describe(CUdeviceptr address, struct memory_description *description);
void allocation_set_sync_memops(CUdeviceptr address, bool on);
bool allocation_retire(CUdeviceptr address);
void allocation_release(CUdeviceptr address);
void allocation_renew(CUdeviceptr address, size_t bytes);
/* Frees all memory of a context that ends, in use or not. */
void allocations_context_ends(const struct client *client, CUcontext context);

unsigned long long allocation_id(void);           /* a new unique id */

/* Maps as many of the blocks as fit the client's room. The others stay EMPTY, and the client counts
 * as starved until it gets more room. */
void allocation_fill(struct block *const *blocks, size_t count);
