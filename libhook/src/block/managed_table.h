/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which managed memory there is. memory_lock is held.
 */
#pragma once

#include "block/block.h"
#include "block/prefetches.h"

struct managed {
    CUdeviceptr base;
    size_t size;                     /* as asked for */
    struct client *client;
    CUcontext context;               /* it goes with this; NULL: which has gone */
    struct managed *next_freed;
    struct prefetches prefetches;    /* the program's own */
    size_t beyond;                   /* bytes that it counts beyond the card; 0: it has blocks */
    bool plain;                      /* to the program it is cuMemAlloc's, with this id */
    unsigned long long id;
    size_t block_count;
    struct block *blocks[];
};

/* The one that contains `address`, or NULL. */
struct managed *managed_find(CUdeviceptr address);
/* Keeps a place for one that is to be entered. False: no memory. */
bool managed_reserve(void);
void managed_unreserve(void);        /* it is entered now, or never will be */
void managed_enter(struct managed *managed);
void managed_strike(struct managed *managed);
void managed_withdraw(struct managed *managed); /* the same, and its place stays reserved */
/* Strikes those of a context, one at each call; NULL: there is none left. */
struct managed *managed_strike_of(CUcontext context);
