/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nvshare/cuda_types.h"

/* The error that NVSHARE_SIM_FAIL requests for this call of `name`, or success. */
CUresult injected_failure(const char *name);
