/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's clients, one per GPU it uses: attaching to the daemon.
 */
#ifndef NVSHARE_CLIENT_H
#define NVSHARE_CLIENT_H

#include <stdbool.h>

#include "interpose/driver.h"

/* A context was made (or retained) on `device`, and is `context`. Connects to
 * the daemon the first time for each device. Without a daemon's socket the
 * process stays unshared. Takes no lock across driver calls. */
void client_attach(CUdevice device, CUcontext context);

/* The driver had no memory left for a context: others fill the card. Makes the
 * client known to the daemon, which then keeps room for its context, and waits
 * a moment. True: worth another try. `*tries` starts at 0. */
bool client_awaits_context(CUdevice device, unsigned *tries);

/* No client has ever been attached in this process: wrappers pass through. */
bool client_none(void);
/* This is the child of a process that had one: a lock may be held for ever there. */
bool client_forked(void);

/* Stream capture. While any capture is going on nothing is called that would
 * break it. `begin` waits for a drain's critical section, a few microseconds. */
void capture_begins(void);           /* before the driver's begin; undone by ends if that failed */
void capture_ends(void);             /* after the driver's end, whatever it returned */
bool capture_is_own(void);           /* one is going on that this thread has begun: capture.c */
/* refusal.c: whether the driver refuses now, to this thread, to allocate, to free and the
 * like: then the call is to end with `*result`. No lock held. */
bool capture_refuses(CUresult *result);

#endif
