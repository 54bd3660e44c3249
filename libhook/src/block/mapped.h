/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory that is made for a block and mapped at its address: map, unmap and open
 * of a store. */
#pragma once

#include "block/block.h"

CUresult mapped_map(struct block *block);
CUresult mapped_unmap(struct block *block);
CUresult mapped_open(struct block *block, const CUmemAccessDesc *access);

/* The access rights to a client's memory: fills at most CLIENTS_MAX entries and returns their
 * number. */
size_t mapped_access(const struct client *client, CUmemAccessDesc *access);
