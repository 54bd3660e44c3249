/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* To be called after a context was created or retained on `device`. Lists the context (NULL: it is
 * listed already), and connects to the daemon at the first call for each device. Without a daemon
 * the process stays unshared on that device. */
void client_attach(CUdevice device, CUcontext context);

/* To be called when the driver had no memory for a context, perhaps because other clients fill the
 * card. Makes the client known to the daemon, which then keeps memory free for its context, and
 * waits for at most 50 ms. True: try again. The caller sets *tries to 0 before the first call. */
bool client_awaits_context(CUdevice device, unsigned *tries);

/* To be called before the driver destroys a context or resets a primary one, with no lock held:
 * frees all memory allocated in the context. */
void context_ends(CUcontext context);

/* Records that the driver returned an entry point for `name` that this library does not know,
 * though it hooks other versions of the function. If no client is attached yet, none is from then
 * on. */
void unknown_entry(const char *name);
