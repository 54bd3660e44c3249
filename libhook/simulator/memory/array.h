/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: memory that a program accesses by copies only, through a handle. */
#pragma once

#include "engine/work.h"

/* Describes the array as a side of a copy. False: no such array. */
bool array_side(CUarray handle, struct side *side);
