/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forked children. CUDA works in no child of a process that has initialised it: the driver refuses
 * each call in the child. The library therefore does nothing in the child either. Another thread of
 * the parent may have held any lock and may have been changing any list, so in a child all
 * variables of the library are reset to their initial values, and its wrappers pass each call on to
 * the driver.
 */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "driver/locked.h"

/* A variable that keeps its value in a child. */
#define KEPT_IN_CHILD __attribute__((section(".data.kept_in_child")))

/* Registers the fork handlers; later calls do nothing. In a child the functions are called in this
 * order: `release` before the variables are reset, and `wake` last. */
void forks_watch(void (*release)(void), void (*wake)(void));

bool is_forked_child(void);

/* UNFORKED: until the end of the block no child is forked, because a child would keep a descriptor
 * that the block has opened and not yet registered (own_file.h). Such blocks must be short and not
 * nested: a thread that calls fork() waits for their end. */
sigset_t unforked_begin(void);
void unforked_end(const sigset_t *before);
#define UNFORKED AT_END(unforked_end) const sigset_t signals_before = unforked_begin()
