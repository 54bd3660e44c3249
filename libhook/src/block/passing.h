/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory that goes from one program to another; passing.c. With memory_lock held, but for
 * passing_prepare(). */
#pragma once

#include "block/block.h"
#include "client/connection.h"

/* A block of this one may be passed on when it leaves: it is to be made exportable. */
bool passing_intends(const struct block *block);
/* Makes its physical memory, exportable if that was intended and can be had. */
CUresult passing_create(struct block *block, CUmemAllocationProp property);

/* The descriptor to pass on what a block on the card holds; 0: it cannot be, and is freed as ever. */
int passing_export(struct block *block);
/* Nothing maps the memory any more: it goes to the daemon. */
void passing_send(struct block *block, int descriptor);
/* A block keeps no descriptor any more, and its memory goes with its last mapping. */
void passing_forget(struct block *block);

/* What came with an order; all but that of a LOAD is closed. */
void passing_arrived(struct client *client, const struct nvshare_order *order,
                     struct descriptors *came);
/* If memory of the block's size has arrived, it is the block's from now on. */
void passing_claim(struct block *block);
/* Maps nothing yet. False: the block has none, or not any more, as the driver refuses it. */
bool passing_import(struct block *block);
/* Bytes that a client has from others on the card, by way of its blocks. */
uint64_t passing_imported(const struct client *client);
/* One that nobody has claimed is let go, so that other memory has room. False: there is none. */
bool passing_drop(struct client *client);

/* From now on no memory of a parent lives as long as a child that it forks. */
void passing_prepare(void);
