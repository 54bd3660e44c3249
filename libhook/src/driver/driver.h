/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the CUDA driver API, and with them bool, size_t and the integers of a given size. */
#pragma once

#include <stdbool.h>

#include "nvshare/cuda_types.h"
