/* SPDX-License-Identifier: Apache-2.0 */
/* Profilers may be told where to begin and to end; there is none. */
#include "driver/entry.h"

API(cuProfilerStart, void)
{
    ENTER(ENTRY_CONTEXT);
    return CUDA_SUCCESS;
}

API(cuProfilerStop, void)
{
    ENTER(ENTRY_CONTEXT);
    return CUDA_SUCCESS;
}
