/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of a driver that is newer than this library.
 */
#pragma once

#include <stdbool.h>

/* Records that the driver returned an entry point for `name` that this library does not know,
 * though it hooks other versions of the function. */
void unknown_entry(const char *name);

/* Whether unknown_entry() was called before a client was attached. No client may be attached then,
 * because the program can submit work past the gate. The first call that returns true prints this
 * on stderr, so call it only if there is a daemon. */
bool unknown_entry_forbids(void);
