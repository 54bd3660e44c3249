/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define READS_MAX 256
#define WHOLE_READS_MAX 64           /* blocks that one launch reads completely */

/* Makes the `reading` of `count` blocks valid: at most READS_MAX, on the card, and not used by
 * work in flight. If more than WHOLE_READS_MAX need all words read, the `reading` of the rest
 * stays invalid. Service thread, in the copy context, with service_lock but without memory_lock.
 * False: no result is valid. */
bool content_read(struct client *client, struct block *const *blocks, size_t count);
/* Drops the objects in the copy context, which is about to end. */
void content_leave_context(struct client *client);
