/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be swapped, but is counted. All functions but the last may be called from any
 * thread with no lock held.
 */
#pragma once

#include "driver/driver.h"

/* Memory that cannot be swapped (arrays, pools, the program's own physical
 * allocations). pinned_begin() returns when the card has room for `bytes` more, inside the gate if
 * it had to wait for that; pinned_end() counts the bytes really taken and leaves the gate.
 *     CUresult r = pinned_begin(bytes);
 *     if (r != CUDA_SUCCESS) return r;          // out of memory, refused
 *     r = real(...);
 *     pinned_end(r == CUDA_SUCCESS ? bytes : 0);
 * If the device has no client, both do nothing, and pinned_begin() succeeds. */
CUresult pinned_begin(size_t bytes);
/* As pinned_begin(), for a device other than the current context's. `submits`: the driver's call
 * also submits work to a stream, so this returns inside the gate in any case. */
CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits);
bool pinned_counts_on(CUdevice device);            /* whether the device has a client */
void pinned_end(size_t bytes_taken);
/* As pinned_begin(), for memory of unknown size that the driver itself needs. `room`, initially
 * zero, grows from call to call. True: pinned_end(0) must be called after the driver's call. False:
 * no more room can be made; pinned_end() must not be called. */
struct room {
    size_t bytes;
    uint64_t until;                  /* us; deadline of all calls' waits for freed memory */
};
bool room_begin(struct room *room);
void pinned_release_on(CUdevice device, size_t bytes);
/* Records an object of `bytes` bytes under a key (a handle, an address). To be called between
 * pinned_begin() and pinned_end(). The object counts until pinned_forget() is called for each of
 * its keys, or the context that was current in pinned_begin() ends; after pinned_begin_on() it
 * belongs to no context. */
void pinned_remember(uint64_t key, size_t bytes);
/* Adds a key to the object that has the key `known`. No-op if there is none. */
void pinned_refer(uint64_t key, size_t size, uint64_t known);
/* Returns the size that was given with the key; 0: no object has it. */
size_t pinned_forget(uint64_t key);

/* Stops counting the objects of a context that ends, which frees them. With memory_lock held. */
void pinned_context_ends(CUcontext context);
