/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nvshare/cuda_types.h"

/* NVSHARE_SIM_FAIL: the code that this call of `name` shall fail with, or success. */
CUresult injected_failure(const char *name);
