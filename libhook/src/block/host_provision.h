/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making slabs with several threads. To take host memory is slower than the bus, so they
 * work ahead: while blocks are copied into what there is, the next slabs are made.
 *
 * They may also work while the program runs, before anything is to leave. Then they are few, and
 * call nothing of the driver, which the program may be using: its locks, its contexts, its
 * captures and its end are none of their business. Such a slab is registered when the first bytes
 * are to leave, which takes a fraction of the time; and again by several threads.
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
    bool early;                      /* the program runs meanwhile: nothing is registered */
    uint64_t target;
    char *memory;                    /* mapped for slabs, of which so many bytes are not taken */
    uint64_t mapped;
    struct host_slab *slab;          /* of which pieces are to be filled yet; NULL: none is begun */
    unsigned count;
    pthread_t threads[PROVIDERS_MAX];
};

/* Makes up to `allowance` bytes in all unless there is place for what is wanted, while the caller
 * goes on; with memory_lock. Ended with host_provided(), without it. */
void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision);
/* The same while the program runs, whatever is wanted. Wakes the service thread when all is made. */
void host_provide_early(struct client *client, uint64_t allowance,
                        struct host_provision *provision);
/* Begins no more slabs. With memory_lock. */
void host_provide_no_more(struct host_provision *provision);
void host_provided(struct host_provision *provision);
