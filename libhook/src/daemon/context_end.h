/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* The driver is about to destroy a context (or reset a primary one): drop
 * everything allocated in it. Before the driver's call, with no lock held. */
void context_ends(CUcontext context);
