/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define LOOKS_MAX 256
#define WHOLES_MAX 64                /* blocks that one launch reads completely */

/*
 * Reads `count` blocks (at most LOOKS_MAX), all resident and none in use, so that the `look` of
 * each is current: of the first WHOLES_MAX; of the others only if no more than that need to be read
 * completely (block_look_holds() tells). Service thread, in the copy context, service_lock held and
 * memory_lock not. False: nothing is known about any of them.
 */
bool content_look(struct client *client, struct block *const *blocks, size_t count);
/* Every byte is zero. */
bool content_is_zero(const struct content *content);
bool content_equal(const struct content *a, const struct content *b);

/* The copy context is about to end, with the objects in it. */
void content_leave_context(struct client *client);
