/* SPDX-License-Identifier: Apache-2.0 */
/* The terms that a program's environment gives it: NVSHARE_MEMORY_LIMIT and its like, and the
 * variables of HAMi and MPS that mean the same. */
#pragma once

#include "driver/driver.h"
#include "nvshare/protocol.h"

/* Reads the terms for a device; of several variables for one term the strictest value counts. An
 * invalid value is reported on stderr, once for each variable, and gives no term. */
void terms_read(CUdevice device, struct nvshare_terms *terms);
