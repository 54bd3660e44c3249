/* SPDX-License-Identifier: Apache-2.0 */
/* Counts memory that cannot be swapped. For any thread with no lock held. */
#pragma once

#include "driver/driver.h"

/* For memory that cannot be swapped (arrays, pools, physical allocations): returns when the card
 * has room for `bytes` more, inside the gate if the thread had to wait. After that, pinned_end()
 * counts the bytes really taken and leaves the gate. Without a client both do nothing. */
CUresult pinned_begin(size_t bytes);
/* For any device; the memory belongs to no context. `submits`: the driver's call also submits work
 * to a stream, so this returns inside the gate in any case. */
CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits);
bool pinned_counts_on(CUdevice device);            /* whether the device has a client */
void pinned_end(size_t bytes_taken);
/* For memory of unknown size that the driver itself needs: `room`, initially zero, grows with each
 * call. True: call the driver again, then pinned_end(0). False: no more room can be made. */
struct room {
    size_t bytes;
    uint64_t until;                  /* us; deadline of all calls' waits for freed memory */
};
bool room_begin(struct room *room);
void pinned_release_on(CUdevice device, size_t bytes);
/* Records an object under a key (a handle, an address), between pinned_begin() and pinned_end(). It
 * counts until all its keys are forgotten, or its context (current in pinned_begin()) ends. */
void pinned_remember(uint64_t key, size_t bytes);
/* Adds a key to the object that has the key `known`. No-op if no object has it. */
void pinned_refer(uint64_t key, size_t size, uint64_t known);
/* Returns the size given with the key; 0: no object has it. */
size_t pinned_forget(uint64_t key);

/* Stops counting the objects of a context that ends, which frees them. With memory_lock held. */
void pinned_context_ends(CUcontext context);
