/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that a future driver could have, linked with the simulated driver. */
#include "nvshare/cuda_types.h"

#define SEEN __attribute__((visibility("default")))

CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
SEEN CUresult cuMemcpyTomorrowAsync(int, int, int, int, int, int, const CUdeviceptr *, size_t,
                                    CUstream);
SEEN CUresult cuStreamBeginTomorrow(CUstream);

/* The arguments `ways`, `size` and `stream` are passed on the stack. */
CUresult cuMemcpyTomorrowAsync(int a, int b, int c, int d, int e, int f, const CUdeviceptr *ways,
                               size_t size, CUstream stream)
{
    if (a != 1 || b != 2 || c != 3 || d != 4 || e != 5 || f != 6)
        return CUDA_ERROR_INVALID_VALUE;
    return cuMemcpyAsync(ways[0], ways[1], size, stream);
}

/* A function after which the library would have to keep track of work (NEWER_KEEPS). */
CUresult cuStreamBeginTomorrow(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}
