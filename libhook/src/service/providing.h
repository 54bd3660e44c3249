/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An EVICT with KEEP that asks for no bytes: host memory is made while the program runs, and the
 * service thread does other things; providing.c. On that thread with service_lock held, if nothing
 * else is said.
 */
#pragma once

#include "client/client.h"

void providing_begin(struct client *client, const struct nvshare_order *order);
/* Answers it if all is made. */
void providing_look(struct client *client);
/* Another order comes that concerns host memory: answers it with what there is, as soon as the
 * slab that was begun is made. */
void providing_end(struct client *client);
/* Who ordered it awaits no answer any more. With memory_lock; any lock else. */
void providing_forget(struct client *client);
