/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allocations, which share a block. All functions are called with memory_lock held.
 */
#ifndef NVSHARE_SLAB_H
#define NVSHARE_SLAB_H

#include <stdbool.h>
#include <stddef.h>

#include "interpose/driver.h"

#define SLAB_CLASSES 48

struct client;
struct memory_description;
struct slab;

CUresult slab_allocate(struct client *client, CUcontext context, size_t bytes,
                       CUdeviceptr *address);
/* False: no object in use there. */
bool slab_find(struct slab *slab, CUdeviceptr address, struct memory_description *description);
void slab_set_sync_memops(struct slab *slab, CUdeviceptr address, bool on);
/* Two steps, as the memory must not be used again while work may touch it:
 * first invalid for the program (false: it was already), then free. */
bool slab_retire(struct slab *slab, CUdeviceptr address);
void slab_release(struct slab *slab, CUdeviceptr address);
/* A retired one is the program's again, as a new one of `bytes`, which its place holds. */
void slab_renew(struct slab *slab, CUdeviceptr address, size_t bytes);
/* All of it, with every object in it. */
void slab_destroy(struct slab *slab);
size_t slab_place(size_t bytes, unsigned *class); /* that so many bytes take, and its class */

struct block *slab_block(struct slab *slab);

#endif
