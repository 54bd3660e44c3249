/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: what a launch of one of their functions is. */
#pragma once

#include "engine/work.h"

/* A kernel's work, with its parameters copied out of `parameters` or `extra`. The
 * function must belong to the context, if one is given. */
CUresult launch_work(CUfunction function, const unsigned grid[3], const unsigned block[3],
                     void *const *parameters, void *const *extra, struct context *context,
                     struct work *work);
