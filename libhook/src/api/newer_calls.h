/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/newer.h"

/* Wrappers of a newer driver's functions: entry i is for hook HOOKS_LISTED + i of hook_for(). */
extern void *const newer_calls[NEWER_MAX];
