/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define READS_MAX 256
#define WHOLE_READS_MAX 64           /* blocks that one launch reads completely */

/*
 * Reads `count` blocks (at most READS_MAX), all on the card and none used by work in flight, so
 * that the `reading` of each becomes valid. If more than WHOLE_READS_MAX blocks have to be read
 * completely, the `reading` of the rest stays invalid (see block_reading_is_valid()). Service
 * thread, in the copy context, with service_lock held and memory_lock not. False: no result is
 * valid.
 */
bool content_read(struct client *client, struct block *const *blocks, size_t count);
/* Forgets the objects in the copy context, which is about to end. */
void content_leave_context(struct client *client);
