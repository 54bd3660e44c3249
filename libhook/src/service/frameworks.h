/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frameworks that keep the memory which their program has freed; frameworks.c.
 */
#ifndef NVSHARE_FRAMEWORKS_H
#define NVSHARE_FRAMEWORKS_H

#include <stdbool.h>

#include "interpose/driver.h"

/* Lets each that has `least` bytes or more of the device's memory cached give
 * them back; `*offered` is how much those said they had. In a call from CPython,
 * with interpreter_at_hand(). `*failed`: one of them could not; that is said the
 * first time. Returns what CPython wants to have returned: not 0 if something has
 * been raised that is the program's to see. */
int frameworks_release(CUdevice device, long long least, long long *offered, bool *failed);

#endif
