/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define READS_MAX 256
#define WHOLE_READS_MAX 64           /* blocks that one launch reads completely */

/*
 * Reads `count` blocks (at most READS_MAX), all resident and none in use, so that the `reading` of
 * each becomes valid. If more than WHOLE_READS_MAX blocks have to be read completely, the `reading`
 * of the rest stays invalid (see block_reading_is_valid()). Service thread, in the copy context,
 * with service_lock held and memory_lock not. False: no result is valid.
 */
bool content_read(struct client *client, struct block *const *blocks, size_t count);
/* Forgets the module, stream and table, which end with the copy context. */
void content_leave_context(struct client *client);
