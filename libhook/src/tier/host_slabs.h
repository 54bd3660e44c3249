/* SPDX-License-Identifier: Apache-2.0 */
/* A client's host memory for swapped blocks. With memory_lock, unless stated otherwise. */
#pragma once

#include "tier/tier.h"

struct host_slab {
    char *memory;
    uint64_t size;
    uint64_t used;
    uint64_t pages;
    uint64_t run;                    /* upper bound of its longest run of free pages */
    uint64_t number;                 /* a sequence number within the client */
    struct host_slab *next;
    uint64_t begun, filled;          /* bytes begun and populated, while several threads make it */
    enum {
        UNREGISTERED,
        REGISTERING,                 /* a thread is registering it */
        REGISTERED,                  /* in client->copy_context */
        REFUSED,                     /* by the driver; not tried again, so copies are slower */
    } state;
    bool taken[];                    /* one for each page of 2 MiB */
};

/* A new slab without populated memory. `memory`: addresses mapped for it, or NULL. Returns NULL
 * if memory is exhausted. May be called without the lock. */
struct host_slab *host_slab_new(const struct client *client, char *memory, uint64_t size);
/* The size of the next slab for blocks of this size; 0: no more is allowed. The daemon may choose a
 * larger slab (limits.host_slab), never one smaller than a block. */
uint64_t host_slab_size(const struct client *client, uint64_t block_size, uint64_t allowance);
/* Registers a populated slab and adds it to the client. memory.host contains the slab already; if
 * the driver refuses, it is subtracted again. Releases and retakes the lock. */
bool host_slab_enlist(struct client *client, struct host_slab *slab);
/* Adds a populated slab without registration; keeps the lock. */
void host_slab_add(struct client *client, struct host_slab *slab);
/* Bytes of slabs in which no block has a place. */
uint64_t host_free(const struct client *client);
/* The next slab to register so that registered slabs have places for `wanted` bytes. NULL: no slab
 * is left, or they have already. */
struct host_slab *host_registrable(const struct client *client, uint64_t wanted);
/* Registers that slab. False: there is none. Any thread that is in client->copy_context; releases
 * and retakes the lock. */
bool host_register_next(struct client *client, uint64_t wanted);
/* Makes one slab, counted in memory.host from the start. False: not allowed, or the machine has no
 * more memory. Releases and retakes the lock. */
bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance);
/* Whether copies to and from this slab run directly over the bus; registers it again if necessary.
 * If not, the calls that start copies may take as long as the copies. May release and retake the
 * lock. */
bool host_slab_registered(struct host_slab *slab);

/* Finds a place in some slab. False: no slab has that many bytes in one piece. */
bool host_place(struct client *client, size_t size, struct place *place);
void host_unplace(struct client *client, size_t size, struct place *place);

/* The upper bound of host memory that blocks of the client could use. */
uint64_t host_useful(const struct client *client);
/* Releases empty slabs while the client holds more than `allowance`. Service thread only, in
 * client->copy_context if there is one; releases and retakes memory_lock. */
void host_trim(struct client *client, uint64_t allowance);
/* Drops all registrations, as client->copy_context is about to end. `drained`: no work is in flight
 * in that context. With service_lock, too; releases and retakes memory_lock. */
void host_leave_context(struct client *client, bool drained);
