/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of a driver that is newer than we are.
 */
#pragma once

#include <stdbool.h>

/* The driver returned an entry point for `name` that we do not know, though
 * we hook other versions of it. */
void unknown_entry(const char *name);

/* True once that has happened while no client was attached: none may be any
 * more, since the program can submit work past the gate. Says so on stderr
 * the first time it is asked, so ask only if there is a daemon to attach to. */
bool unknown_entry_forbids(void);
