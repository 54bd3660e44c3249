/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be swapped, but is counted. All functions but the last may be called from any
 * thread with no lock held.
 */
#pragma once

#include "driver/driver.h"

/* Memory that cannot be swapped (arrays, pools, the program's own physical
 * allocations). Begin returns when the card has room for `bytes` more, inside the gate
 * if it had to wait for that; end counts what was really taken and leaves it.
 *     CUresult r = pinned_begin(bytes);
 *     if (r != CUDA_SUCCESS) return r;          // out of memory, refused
 *     r = real(...);
 *     pinned_end(r == CUDA_SUCCESS ? bytes : 0);
 * Where no client is attached both do nothing and succeed. */
CUresult pinned_begin(size_t bytes);
/* As pinned_begin(), for a device other than the current context's. `submits`: the call also
 * submits work to a stream, so it begins inside the gate in any case. */
CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits);
bool pinned_counts_on(CUdevice device);            /* whether a client is attached there */
void pinned_end(size_t bytes_taken);
/* As pinned_begin() and pinned_end(), for memory of unknown size that the driver itself needs.
 * `room`, initially zero, grows from call to call. pinned_end(0) ends it. False: no more room can
 * be made, and it must not be ended. */
struct room {
    size_t bytes;
    uint64_t until;                  /* us; deadline for waits for freed memory, over all calls */
};
bool room_begin(struct room *room);
void pinned_release_on(CUdevice device, size_t bytes);
/* Records the size of an object under a key (a handle, an address). The object counts until
 * pinned_forget() is called for each of its keys. Called between pinned_begin() and pinned_end(),
 * the end of the current context forgets it, too; after pinned_begin_on() it belongs to no
 * context. */
void pinned_remember(uint64_t key, size_t bytes);
/* Adds a key to the object that has the key `known`. No-op if there is none. */
void pinned_refer(uint64_t key, size_t size, uint64_t known);
/* Returns the size that was given with the key; 0: no object has it. */
size_t pinned_forget(uint64_t key);

/* The end of a context frees the memory recorded in it: it is no longer counted. With memory_lock
 * held. */
void pinned_context_ends(CUcontext context);
