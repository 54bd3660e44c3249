/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out STORE: moves swapped blocks on to the tier with `store`, the client's file. Service
 * thread, with memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE with the file's descriptor that came with the order (-1: none came), which the
 * caller closes. May release the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes and begins writes. Returns the us until the next call is due; NEVER: no write is in
 * flight. */
int64_t store_step(struct client *client);
/* Ends each write after its current disk request; store_step() begins it again later. */
void store_cancel(struct client *client);
/* Voids the last STORE: a new daemon is connected, and has sent no STORE yet. */
void store_forget_order(struct client *client);
/* Whether the client has a file. May be called without the lock by its service thread. */
bool store_has_file(const struct client *client);
/* STORED with the present figures. */
struct nvshare_report store_figures(const struct client *client);
/* Sets *report to STORED if its figures have changed since the last; else returns false. Any
 * thread. */
bool store_report(struct client *client, struct nvshare_report *report);
