/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "block/block.h"

#define LOOKS_MAX 256
#define WHOLES_MAX 64                /* that are looked at as a whole together */

/*
 * Looks at `count` blocks (at most LOOKS_MAX), all on the card and none in use, so that
 * each one's `look` is of this moment: at the first WHOLES_MAX, and of the others at
 * those that need no look as a whole beyond so many (block_look_holds() tells). Service
 * thread, in the context that copies, service_lock held and memory_lock not. False:
 * nothing is known of any of them.
 */
bool content_look(struct client *client, struct block *const *blocks, size_t count);
/* Every byte is zero. */
bool content_is_zero(const struct content *content);
bool content_equal(const struct content *a, const struct content *b);

/* What was made lives in a context that is about to go. */
void content_leave_context(struct client *client);
