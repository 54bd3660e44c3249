/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/newer.h"

/* The functions that a program gets in place of a newer driver's, one for each index that
 * hook_for() returns. */
extern void *const newer_calls[NEWER_MAX];
