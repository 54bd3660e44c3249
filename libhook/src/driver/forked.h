/* SPDX-License-Identifier: Apache-2.0 */
/* In a forked child the driver refuses each call, so the library does nothing either. Another
 * thread of the parent may have held any lock and been changing any list. All variables of the
 * library are therefore reset to their initial values, and the wrappers pass each call on to the
 * driver. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "driver/locked.h"

/* A variable that keeps its value in a child. */
#define KEPT_IN_CHILD __attribute__((section(".data.kept_in_child")))

/* Registers the fork handlers once. In a child `release` runs before the variables are reset, and
 * `wake` last. */
void forks_watch(void (*release)(void), void (*wake)(void));

bool is_forked_child(void);

/* UNFORKED: until the end of the block no child is forked, which would keep a descriptor that the
 * block has opened and not yet registered (own_file.h). Such blocks are short and not nested:
 * fork() waits for their end. */
sigset_t unforked_begin(void);
void unforked_end(const sigset_t *before);
#define UNFORKED AT_END(unforked_end) const sigset_t signals_before = unforked_begin()
