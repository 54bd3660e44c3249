/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the physical memory of a block and maps it at the block's address. */
#pragma once

#include "block/block.h"

CUresult mapped_map(struct block *block);
CUresult mapped_unmap(struct block *block);
CUresult mapped_open(struct block *block, const CUmemAccessDesc *access);

/* The access rights to a client's memory: fills at most CLIENTS_MAX entries and returns their
 * number. */
size_t mapped_access(const struct client *client, CUmemAccessDesc *access);
