/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/newer.h"

/* What a program gets in place of a newer driver's functions, for each of the places that
 * hook_for() gives. */
extern void *const newer_calls[NEWER_MAX];
