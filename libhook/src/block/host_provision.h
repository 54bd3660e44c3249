/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making slabs with several threads. To take host memory is slower than the bus, so they
 * work ahead: while blocks are copied into what there is, the next slabs are made. First they register
 * what was made while the program ran (host_early.c), as far as it is needed.
 */
#pragma once

#include <pthread.h>

#include "interpose/driver.h"

#define PROVIDERS_MAX 8

struct client;
struct host_slab;

struct host_provision {
    uint64_t wanted;                 /* bytes that are to leave and have not asked for a place yet */
    struct client *client;           /* NULL: not begun */
    CUcontext context;
    uint64_t target;
    char *memory;                    /* mapped for slabs, of which so many bytes are not taken */
    uint64_t mapped;
    struct host_slab *slab;          /* of which pieces are to be filled yet; NULL: none is begun */
    unsigned count;
    pthread_t threads[PROVIDERS_MAX];
};

/* Makes up to `allowance` bytes in all, unless what is wanted finds a place, while the caller goes
 * on; with memory_lock. Ended with host_provided(), without it. */
void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision);
void host_provided(struct host_provision *provision);
