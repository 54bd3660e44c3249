/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/real.h"

/* Where a call of an exported function goes; NULL: entry_resolve() decides at the first call. */
extern _Atomic(void *) entry_targets[HOOKS_LISTED];

/* Fills in entry_targets[], and returns that of `hook`, never NULL. */
void *entry_resolve(unsigned hook);
