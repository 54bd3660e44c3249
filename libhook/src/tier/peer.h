/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another GPU; with memory_lock. */
#pragma once

#include "gate/client.h"

/* From now on at most `loan` bytes may lie on the GPU with this uuid. Returns how many may: none, while
 * some lie on another. */
uint64_t peer_allow(struct client *client, uint64_t loan, const uint8_t uuid[16]);
/* A copy to that GPU has failed: no more blocks go there. */
void peer_failed(struct client *client);
