/* SPDX-License-Identifier: Apache-2.0 */
/* A client's host memory for blocks that are away. With memory_lock, unless something else
 * is said. */
#pragma once

#include "tier/tier.h"

struct host_slab {
    char *memory;
    uint64_t size;
    uint64_t used;
    uint64_t pages;
    uint64_t run;                    /* no more free pages than these are in one piece */
    uint64_t number;                 /* grows with each that its client has */
    struct host_slab *next;
    uint64_t begun, filled;          /* while it is being made by several threads */
    enum {
        UNREGISTERED,
        REGISTERING,                 /* by some thread, now */
        REGISTERED,                  /* in client->copy_context */
        REFUSED,                     /* there, where it is not tried again: copies are slower */
    } state;
    bool taken[];                    /* one per page of 2 MiB */
};

/* One of which nothing is filled. `memory`: addresses mapped for it, or NULL. NULL: no memory.
 * Without the lock, too. */
struct host_slab *host_slab_new(const struct client *client, char *memory, uint64_t size);
/* How large the next one is to be for blocks of this size; 0: more is not allowed. The daemon
 * may know better than we how coarse to be; never finer than a block. */
uint64_t host_slab_size(const struct client *client, uint64_t block_size, uint64_t allowance);
/* One that has been filled is registered, and can be used. It counts already, and does
 * not any more where the driver refuses. Releases and retakes the lock. */
bool host_slab_enlist(struct client *client, struct host_slab *slab);
/* The same of one that the driver is not told of yet; keeps the lock. */
void host_slab_add(struct client *client, struct host_slab *slab);
/* Bytes of slabs in which no block has a place. */
uint64_t host_free(const struct client *client);
/* The slab that the driver is to be told of next, so that `wanted` bytes find a place in such
 * as it knows. NULL: there is none, or they do already. */
struct host_slab *host_registrable(const struct client *client, uint64_t wanted);
/* Tells it. False: there is none. Any thread that is in client->copy_context; releases and
 * retakes the lock. */
bool host_register_next(struct client *client, uint64_t wanted);
/* Makes one slab, counted as held from the moment it is begun. False: not allowed, or the machine
 * has no more. Releases and retakes the lock. */
bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance);
/* Whether copies to and from this slab go straight over the bus, for which it is registered
 * anew where that is needed; if not, the calls that start them may take as long as the
 * copies. May release and retake the lock. */
bool host_slab_registered(struct host_slab *slab);

/* Finds a place in some slab. False: none has that much in one piece. */
bool host_place(struct client *client, size_t size, struct place *place);
void host_unplace(struct client *client, size_t size, struct place *place);

/* More host memory than that no block of the client can have use for. */
uint64_t host_useful(const struct client *client);
/* Releases slabs that are empty while the client holds more than `allowance`.
 * Service thread only, in client->copy_context if there is one; releases and retakes
 * memory_lock. */
void host_trim(struct client *client, uint64_t allowance);
/* client->copy_context is about to go, with all that was registered in it. `drained`: nothing
 * is in flight there. With service_lock, too; releases and retakes memory_lock. */
void host_leave_context(struct client *client, bool drained);
