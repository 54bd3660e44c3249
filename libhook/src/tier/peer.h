/* SPDX-License-Identifier: Apache-2.0 */
/* Swapping to memory that another GPU lends. memory_lock is held. */
#pragma once

#include "gate/client.h"

/* Allows `loan` bytes of swapped blocks on the GPU `uuid`. Returns the bytes allowed: 0 while
 * blocks are on another lender. */
uint64_t peer_allow(struct client *client, uint64_t loan, const uint8_t uuid[16]);
/* After a failed copy to the lender: no more blocks are evicted to it. */
void peer_failed(struct client *client);
