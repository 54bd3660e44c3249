/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define READS_MAX 256
#define WHOLE_READS_MAX 64           /* most blocks that one launch reads completely */

/* Reads `count` blocks (at most READS_MAX, on the card, not used by work in flight) and makes the
 * `reading` of each valid, except blocks to read completely beyond WHOLE_READS_MAX.
 * Service thread, in the copy context, with service_lock but without memory_lock. False: no block
 * was read. */
bool content_read(struct client *client, struct block *const *blocks, size_t count);
/* Forgets the kernel and stream in the copy context, which is about to end and destroys them. */
void content_leave_context(struct client *client);
