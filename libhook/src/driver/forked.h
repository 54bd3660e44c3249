/* SPDX-License-Identifier: Apache-2.0 */
/* In a forked child the driver refuses each call, and locks that other threads of the parent held
 * stay locked. The child resets the library's variables; its wrappers only call the driver. */
#pragma once

#include <stdbool.h>

#include "driver/kept.h"
#include "driver/leave.h"

/* A child calls `release` before its variables are reset, and `wake` afterwards. */
void forks_watch(void (*release)(void), void (*wake)(void));

bool is_forked_child(void);

/* UNFORKED: until the end of the scope fork() waits. Otherwise a child would keep a descriptor that
 * is open and not yet registered (own_file.h). Such scopes are short and not nested. */
bool unforked_begin(void);
void unforked_end(const bool *unused);
#define UNFORKED AT_END(unforked_end) const bool unforked = unforked_begin()
