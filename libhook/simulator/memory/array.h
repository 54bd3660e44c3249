/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: memory that only copies reach, through a handle. */
#pragma once

#include "engine/work.h"

/* The array as one side of a copy, its rows and layers included; false: no such array. */
bool array_side(CUarray handle, struct side *side);

/* A new one in the current context. `level`: of a mipmapped array. */
CUresult array_make(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, bool level);
/* Frees one that there is, when its context's work has ended. */
CUresult array_end(CUarray handle);
