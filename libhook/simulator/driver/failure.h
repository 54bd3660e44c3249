/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_SIMULATOR_FAILURE_H
#define NVSHARE_SIMULATOR_FAILURE_H

#include "driver/abi.h"

/* NVSHARE_SIM_FAIL: the code that this call of `name` shall fail with, or success. */
CUresult injected_failure(const char *name);

#endif
