/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be swapped, and is counted. All functions but the last may be called from
 * any thread with no lock held.
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
/* The same for another device than the current context's. `submits`: the call is work in a stream,
 * too, and begins inside the gate in any case. */
CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits);
bool pinned_counts_on(CUdevice device);            /* a client is attached there */
void pinned_end(size_t bytes_taken);
/* The same for the driver's own needs, of which nobody knows how much they are: `room`, zeros at first,
 * grows from call to call. False, and no end: nobody can make more room. */
struct room {
    size_t bytes;
    uint64_t until;                  /* us; that waits for freed memory last, of all calls together */
};
bool room_begin(struct room *room);
void room_end(void);
void pinned_release_on(CUdevice device, size_t bytes);
/* For an object whose size must be known again when it goes: remembers it
 * under a key (a handle, an address) and forgets it with pinned_forget.
 * Between pinned_begin() and pinned_end(): then it is forgotten with the current
 * context, too; after pinned_begin_on() it is of no context. */
void pinned_remember(uint64_t key, size_t bytes);
void pinned_forget(uint64_t key);

/* What was taken in this context goes with it, and counts no longer. With memory_lock held. */
void pinned_context_ends(CUcontext context);
