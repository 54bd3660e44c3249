/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's device memory as the wrappers see it. All functions may be
 * called from any thread, with the client running or not, and act on the
 * client of the current context's device unless they take an address.
 * Where no client is attached they say so by their `ours` result, and the
 * wrapper calls the driver instead.
 */
#ifndef NVSHARE_MEMORY_H
#define NVSHARE_MEMORY_H

#include <stdbool.h>

#include "interpose/driver.h"

struct memory_description {
    CUdeviceptr base;                /* as handed to the program */
    size_t size;                     /* bytes, as the program asked for */
    CUcontext context;               /* current when it was allocated */
    CUdevice device;
    unsigned long long id;           /* unique in the process, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    bool sync_memops;
    CUmemAllocationHandleType handle_types;        /* that it can be exported as */
    bool ipc;                        /* or with cuIpcGetMemHandle() */
};

/* cuMemAlloc. False: no client here, call the driver. Else *result holds what
 * to return, and *address the new address if that is CUDA_SUCCESS. */
bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result);

/* cuMemFree: waits for the work in flight as the driver's does. False: the
 * address is not ours. An address inside an allocation is an invalid value. */
bool memory_free(CUdeviceptr address, CUresult *result);

/* False: the address lies in none of our allocations. */
bool memory_describe(CUdeviceptr address, struct memory_description *description);
bool memory_set_sync_memops(CUdeviceptr address, bool on);

/* True if the address lies in a range we have reserved, allocated or not. */
bool memory_is_ours(CUdeviceptr address);

/* cuMemGetInfo and cuDeviceTotalMem as the client sees the card. False: no client. */
bool memory_information(size_t *free_bytes, size_t *total_bytes);
bool memory_total(CUdevice device, size_t *total_bytes);

/* Memory that cannot be swapped (arrays, pools, the program's own physical
 * allocations). Begin waits until the card has room for `bytes` more and then
 * stands inside the gate; end counts what was really taken and leaves it.
 *     CUresult r = pinned_begin(bytes);
 *     if (r != CUDA_SUCCESS) return r;          // out of memory, refused
 *     r = real(...);
 *     pinned_end(r == CUDA_SUCCESS ? bytes : 0);
 * Where no client is attached both do nothing and succeed. */
CUresult pinned_begin(size_t bytes);
/* The same for another device than the current context's. */
CUresult pinned_begin_on(CUdevice device, size_t bytes);
bool pinned_counts_on(CUdevice device);            /* a client is attached there */
void pinned_end(size_t bytes_taken);
void pinned_release_on(CUdevice device, size_t bytes);
/* For an object whose size must be known again when it goes: remembers it
 * under a key (a handle, an address) and forgets it with pinned_forget.
 * Between pinned_begin() and pinned_end(): then it is forgotten with the current
 * context, too; after pinned_begin_on() it is of no context. */
void pinned_remember(uint64_t key, size_t bytes);
void pinned_forget(uint64_t key);

/* The memory of `owner` may from now on be reached from `reader`, or no longer. */
CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open);

/* The driver is about to destroy a context (or reset a primary one): drop
 * everything allocated in it. Before the driver's call. */
void memory_context_ends(CUcontext context);

#endif
