/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: converts launches of their functions to work. */
#pragma once

#include "engine/work.h"

/* The work of a launch, with copies of its arguments from `parameters`; `extra` is not supported.
 * The function must belong to `context`, if that is given. */
CUresult launch_work(CUfunction function, const unsigned grid[3], const unsigned block[3],
                     void *const *parameters, void *const *extra, struct context *context,
                     struct work *work);
