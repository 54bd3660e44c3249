/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tools that watch the process's use of the driver.
 */
#pragma once

#include <stdbool.h>

/* True if there is such a tool, so that the program must not be shared. The first call says so on
 * stderr; call it only if there is a daemon to attach to. */
bool injection_forbids(void);
