/* SPDX-License-Identifier: Apache-2.0 */
/* A client's host memory for blocks that are away. With memory_lock, unless something else
 * is said. */
#ifndef NVSHARE_STORE_HOST_H
#define NVSHARE_STORE_HOST_H

#include "block/block.h"

/* Makes slabs ahead with several threads, up to `allowance` bytes in all, while
 * the caller goes on. Ended with host_provided(), without the lock. */
#define PROVIDERS_MAX 8
struct host_provision {
    struct client *client;           /* NULL: not begun */
    CUcontext context;
    uint64_t target;
    char *memory;                    /* mapped for slabs, of which so many bytes are not taken */
    uint64_t mapped;
    struct host_slab *slab;          /* of which pieces are to be filled yet; NULL: none is begun */
    unsigned count;
    pthread_t threads[PROVIDERS_MAX];
};
void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision);
void host_provided(struct host_provision *provision);

/* More host memory than that no block of the client can have use for. */
uint64_t host_useful(const struct client *client);
/* Releases slabs that are empty while the client holds more than `allowance`.
 * Service thread only, in client->copy_context if there is one; releases and retakes
 * memory_lock. */
void host_trim(struct client *client, uint64_t allowance);
/* The same, and what is on the card gives back the places that it keeps. */
void host_shrink(struct client *client, uint64_t allowance);
/* client->copy_context is about to go, with all that was registered in it. `drained`: nothing
 * is in flight there. With service_lock, too; releases and retakes memory_lock. */
void host_leave_context(struct client *client, bool drained);

#endif
