/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose memory stays on the card; stay.c.
 */
#pragma once

#include "nvshare/protocol.h"

struct client;

/* From now on nothing of this client leaves the card, for this reason. What is away comes in before
 * its gate opens. Says so on stderr. Any thread, without memory_lock; only the first reason
 * counts. What must not be away at all is to be inside the gate when it calls this. */
void client_stay(struct client *client, enum nvshare_stays reason);

/* All clients of this process, and those that it will have. */
void clients_stay(enum nvshare_stays reason);
/* Why this process's clients stay. */
enum nvshare_stays clients_stays(void);
