/* SPDX-License-Identifier: Apache-2.0 */
/* What a context remembers and answers, but does not act upon. */
#include "driver/context.h"
#include "driver/entry.h"

/* A broken context still answers. */
GETTER(cuCtxGetFlags, (unsigned int *flags), ENTRY_INIT, flags,
       context_current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS,
       context_current()->flags)

#define LIMITS (sizeof ((struct context *)0)->limits / sizeof(size_t))

/* What cards of this generation have no limit for. */
static bool is_unsupported(CUlimit limit)
{
    return limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH
        || limit == CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED;
}

static CUresult limit_check(CUlimit limit)
{
    return (size_t)limit >= LIMITS ? CUDA_ERROR_INVALID_VALUE
        : is_unsupported(limit) ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_SUCCESS;
}

API(cuCtxSetLimit, CUlimit limit, size_t value)
{
    ENTER(ENTRY_CONTEXT);
    CUresult result = limit_check(limit);
    if (result == CUDA_SUCCESS)
        context_current()->limits[limit] = value;
    return result;
}

GETTER(cuCtxGetLimit, (size_t *value, CUlimit limit), ENTRY_CONTEXT, value, limit_check(limit),
       context_current()->limits[limit])

GETTER(cuCtxGetCacheConfig, (CUfunc_cache *config), ENTRY_CONTEXT, config, CUDA_SUCCESS,
       context_current()->cache)

API(cuCtxSetCacheConfig, CUfunc_cache config)
{
    ENTER(ENTRY_CONTEXT);
    context_current()->cache = config;
    return CUDA_SUCCESS;
}

GETTER(cuCtxGetApiVersion, (CUcontext handle, unsigned int *version), ENTRY_INIT, version,
       context_from(handle) == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS, 3020)

API(cuCtxGetStreamPriorityRange, int *least, int *greatest)
{
    ENTER(ENTRY_CONTEXT);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

/* Profilers may be told where to begin and to end; there is none. */
FORWARD(cuProfilerStart, (void), ENTRY_CONTEXT, CUDA_SUCCESS)
FORWARD(cuProfilerStop, (void), ENTRY_CONTEXT, CUDA_SUCCESS)

API(cuCtxEnablePeerAccess, CUcontext handle, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    struct context *peer = handle != NULL ? context_from(handle) : NULL;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context_current()->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = 1u << peer->device->ordinal;
    uint32_t before = atomic_fetch_or(&context_current()->device->peers, bit);
    return (before & bit) == 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

API(cuCtxDisablePeerAccess, CUcontext handle)
{
    ENTER(ENTRY_CONTEXT);
    struct context *peer = handle != NULL ? context_from(handle) : NULL;
    if (peer == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t bit = 1u << peer->device->ordinal;
    uint32_t before = atomic_fetch_and(&context_current()->device->peers, ~bit);
    return (before & bit) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
