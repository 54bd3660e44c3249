/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tools that were put into the process to watch what it does with the driver.
 */
#pragma once

#include <stdbool.h>

/* True if there is one, and the program is not to be shared therefore: says so
 * on stderr the first time, so ask only if there is a daemon to attach to. */
bool injection_forbids(void);
