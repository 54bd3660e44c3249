/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* Called after a context was created or retained. Lists `context` unless it is NULL, and connects
 * to the daemon, once for each device. Without a daemon the process uses that device unshared. */
void client_attach(CUdevice device, CUcontext context);

/* Called when the driver had no memory for a context. Has the daemon keep memory free for a
 * context, and waits at most 50 ms. True: the caller should try again. At first *tries is 0. */
bool client_awaits_context(CUdevice device, unsigned *tries);

/* Called without locks before the driver ends or resets a context: frees all memory in it. */
void context_ends(CUcontext context);

/* Called when the driver returned an entry point that this library does not know, though it hooks
 * other versions of the function. If no client is attached yet, the process attaches none. */
void unknown_entry(const char *name);
