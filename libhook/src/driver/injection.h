/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects tools that trace the process's driver calls.
 */
#pragma once

#include <stdbool.h>

/* Whether there is such a tool, so that the program must not be attached. The first call prints
 * that on stderr, so call it only if there is a daemon. */
bool injection_forbids(void);
