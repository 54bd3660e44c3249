/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions, for programs that are linked with the driver. */
#pragma once

#include "../../libhook/include/nvshare/cuda_types.h"

#define HOOK(name, parameters) CUresult name parameters;
#include "../../libhook/tests/driver.def"
#undef HOOK
