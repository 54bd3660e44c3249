/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: memory that only copies reach, through a handle. */
#pragma once

#include "engine/work.h"

/* The array as one side of a copy, its rows and layers included; false: no such array. */
bool array_side(CUarray handle, struct side *side);
