/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* A context was created (or retained) on `device`, and is `context` (NULL: known already). Connects
 * to the daemon the first time for each device. Without a daemon's socket the process stays
 * unshared. Takes no lock across driver calls. */
void client_attach(CUdevice device, CUcontext context);

/* The driver had no memory left for a context, because other clients fill the card. Makes the
 * client known to the daemon, which then keeps room for its context, and waits a moment. True:
 * worth another try. `*tries` starts at 0. */
bool client_awaits_context(CUdevice device, unsigned *tries);

/* The driver is about to destroy a context (or reset a primary one): drops everything allocated in
 * it. Before the driver's call, with no lock held. */
void context_ends(CUcontext context);

/* Records that the driver returned an entry point for `name` that this library does not know,
 * though it hooks other versions of the function. If no client is attached yet, none is from then
 * on. */
void unknown_entry(const char *name);
