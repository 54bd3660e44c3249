/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few types and constants of the CUDA driver API that the library needs,
 * so that it builds without the CUDA toolkit. With NVSHARE_CHECK_CUDA_H the
 * real cuda.h takes their place; a test compiles the library that way, so
 * that every prototype and every constant here is compared with NVIDIA's.
 * With them come bool, size_t and the integers of a given size.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef NVSHARE_CHECK_CUDA_H
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#else
#include "driver/driver_types.h"
#endif
#include "driver/newer_types.h"
