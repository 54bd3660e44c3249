/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_ANCHOR_H
#define NVSHARE_ANCHOR_H

#include "block/alias.h"

/* Makes a chunk one piece of the driver's memory that stays on the card; see
 * chunk_anchor(). With memory_lock held, which is released meanwhile; the
 * caller holds a reference. */
CUresult anchor(struct chunk *chunk);

#endif
