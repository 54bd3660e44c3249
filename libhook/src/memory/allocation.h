/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations: what the program got from cuMemAlloc. Those above 1 MiB own
 * their blocks (large.c); smaller ones share a slab, one block of 2 MiB divided
 * into places of one size (slab.c).
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
    CUdeviceptr base;                /* as handed to the program */
    size_t size;                     /* bytes, as the program asked for */
    CUcontext context;               /* current when it was allocated */
    CUdevice device;
    unsigned long long id;           /* unique in the process, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    bool sync_memops;
    CUmemAllocationHandleType handle_types;        /* that it can be exported as */
    bool ipc;                        /* or with cuIpcGetMemHandle() */
    bool imported;                   /* another process's, which `reader` reaches beside `device` */
    CUdevice reader;
};

/* What can be done with the memory of a page's owner, of which `address` is a part. What is
 * NULL cannot. */
struct owner_operations {
    /* False: nothing of the program's is there. */
    bool (*describe)(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description);
    void (*set_sync_memops)(struct page_owner *owner, CUdeviceptr address, bool on);
    /* Two steps, as the memory must not be used again while work may touch it: first invalid
     * for the program (false: no allocation begins there, or it is already), then free. */
    bool (*retire)(struct page_owner *owner, CUdeviceptr address);
    void (*release)(struct page_owner *owner, CUdeviceptr address);
    /* A retired one is the program's again, as a new one of `bytes`, for which there is room. */
    void (*renew)(struct page_owner *owner, CUdeviceptr address, size_t bytes);
    /* All of the owner, with every allocation in it. */
    void (*destroy)(struct page_owner *owner);
    /* All its blocks, in order. */
    struct block *const *(*blocks)(struct page_owner *owner, size_t *count);
};

/* The same of what has the address; false: there is no such thing. */
bool allocation_describe(CUdeviceptr address, struct memory_description *description);
void allocation_set_sync_memops(CUdeviceptr address, bool on);
bool allocation_retire(CUdeviceptr address);
void allocation_release(CUdeviceptr address);
void allocation_renew(CUdeviceptr address, size_t bytes);
/* All memory of a context goes with it, in use or not. */
void allocations_context_ends(const struct client *client, CUcontext context);

unsigned long long allocation_id(void);           /* a new one */

/* Maps those of the blocks for which there is room; the others stay empty and
 * the client is starved until it gets more. */
void allocation_fill(struct block *const *blocks, size_t count);
