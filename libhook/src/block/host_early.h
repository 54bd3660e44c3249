/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes slabs while the program runs, before anything has to leave; host_early.c. With
 * memory_lock.
 */
#pragma once

#include "client/client.h"

/* Until so much is held in all, as far as there may be use for it. */
void host_provide_early(struct client *client, uint64_t most);
/* Begins no more. What is being made is kept if no more than `most` is held when it is done. */
void host_provided_early(struct client *client, uint64_t most);
