/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's device memory as the wrappers see it. All functions may be called from any thread,
 * with the client running or not, and act on the client of the current context's device unless they
 * take an address. If no client is attached, they return false and the wrapper calls the driver
 * instead.
 */
#pragma once

#include "driver/driver.h"

struct client;

void deferred_frees_context_end(CUcontext context); /* may release and retake the lock */

/* A `reclaimer` (gate/client.h): with `until`, waits for the oldest deferred free and releases it.
 * False: there is none, or a capture is still in progress. */
bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until);

struct memory_description;

/* cuMemAlloc. False: no client, call the driver. Else *result holds the value to return, and
 * *address the new address if that is CUDA_SUCCESS. */
bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result);

/* cuMemFree: waits for work in flight as the driver does. False: the address is not the library's.
 * An address inside an allocation is an invalid value. */
bool memory_free(CUdeviceptr address, CUresult *result);

/* False: the address lies in no allocation of the library. */
bool memory_describe(CUdeviceptr address, struct memory_description *description);
bool memory_set_sync_memops(CUdeviceptr address, bool on);

/* Whether the address lies in a range that the library has reserved, allocated or not. */
bool memory_is_ours(CUdeviceptr address);

/* cuMemGetInfo and cuDeviceTotalMem as the client sees the card. False: no client. */
bool memory_information(size_t *free_bytes, size_t *total_bytes);
bool memory_total(CUdevice device, size_t *total_bytes);
