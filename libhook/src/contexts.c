/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: where a process begins and ends to use a GPU.
 *
 * A GPU's primary context lives as long as it is retained, by the program or
 * by a green context, which retains it while it exists. The driver says only
 * afterwards that the last one let go, and then it is too late to drop what
 * lives in it; so retains are counted here.
 */
#include "counted.h"

#include <pthread.h>
#include <stdlib.h>

#include "client.h"

#define DEVICES 64

static struct {
    CUcontext context;
    unsigned retained;
} primary[DEVICES];                                /* protected by contexts_lock */

/* More references to a context than the one it was made with: cuCtxAttach()
 * once each, and green contexts, with the device whose primary they retain. */
struct reference {
    const void *context;
    CUdevice device;
    struct reference *next;
};
static struct reference *references;               /* protected by contexts_lock */

/* Nothing is called while it is held. */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

static void refer(const void *context, CUdevice device)
{
    struct reference *reference = malloc(sizeof *reference);
    if (reference == NULL)
        return;
    pthread_mutex_lock(&contexts_lock);
    *reference = (struct reference){ context, device, references };
    references = reference;
    pthread_mutex_unlock(&contexts_lock);
}

/* The device, or -1 if there is no such reference. */
static CUdevice drop(const void *context)
{
    CUdevice device = -1;
    pthread_mutex_lock(&contexts_lock);
    struct reference **link = &references, *reference;
    while ((reference = *link) != NULL && reference->context != context)
        link = &reference->next;
    if (reference != NULL) {
        device = reference->device;
        *link = reference->next;
        free(reference);
    }
    pthread_mutex_unlock(&contexts_lock);
    return device;
}

static bool has_primary(CUdevice device)
{
    return device >= 0 && device < DEVICES;
}

static void primary_retained(CUdevice device, CUcontext context)
{
    if (has_primary(device)) {
        pthread_mutex_lock(&contexts_lock);
        primary[device].context = context;
        primary[device].retained++;
        pthread_mutex_unlock(&contexts_lock);
    }
    client_attach(device, context);
}

/* The context, if only `retained` hold it now. */
static CUcontext primary_context(CUdevice device, unsigned retained)
{
    CUcontext context = NULL;
    if (has_primary(device)) {
        pthread_mutex_lock(&contexts_lock);
        if (primary[device].retained <= retained)
            context = primary[device].context;
        pthread_mutex_unlock(&contexts_lock);
    }
    return context;
}

static void primary_released(CUdevice device)
{
    if (!has_primary(device))
        return;
    pthread_mutex_lock(&contexts_lock);
    if (primary[device].retained > 0 && --primary[device].retained == 0)
        primary[device].context = NULL;
    pthread_mutex_unlock(&contexts_lock);
}

static void ends(CUcontext context)
{
    if (context == NULL)
        return;
    memory_context_ends(context);
    captures_end_with(context);
}

/* Others may fill the card so that a context finds no memory: then they are
 * made to leave some, which takes as long as a hand-over. */
#define WITH_PATIENCE(result, device, call)                                        \
    CUresult result;                                                               \
    unsigned tries = 0;                                                            \
    do                                                                             \
        result = call;                                                             \
    while (result == CUDA_ERROR_OUT_OF_MEMORY && client_awaits_context(device, &tries))

#define CREATE(name, parameters, arguments)                                        \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        WITH_PATIENCE(result, device, REAL(name) arguments);                       \
        if (result == CUDA_SUCCESS)                                                \
            client_attach(device, *context);                                       \
        return result;                                                             \
    }

CREATE(cuCtxCreate, (CUcontext *context, unsigned int flags, CUdevice device),
    (context, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext *context, unsigned int flags, CUdevice device),
    (context, flags, device))
CREATE(cuCtxCreate_v3,
    (CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
     CUdevice device),
    (context, affinity, count, flags, device))
CREATE(cuCtxCreate_v4,
    (CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
    (context, parameters, flags, device))

/* A primary context cannot be destroyed this way: the driver says so. */
static bool is_primary(CUcontext context)
{
    bool found = false;
    pthread_mutex_lock(&contexts_lock);
    for (int device = 0; device < DEVICES; device++)
        found |= context != NULL && primary[device].context == context;
    pthread_mutex_unlock(&contexts_lock);
    return found;
}

#define DESTROY(name)                                                              \
    EXPORT CUresult name(CUcontext context)                                        \
    {                                                                              \
        if (!is_primary(context))                                                  \
            ends(context);                                                         \
        return REAL(name)(context);                                                \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUresult result = REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS)
        refer(*context, 0);
    return result;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    if (drop(context) < 0 && !is_primary(context))
        ends(context);
    return REAL(cuCtxDetach)(context);
}

static CUdevice device_of(CUcontext context)
{
    CUdevice device = -1;
    CUcontext same;
    if (REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
            device = -1;
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    return device;
}

/* From the current context to memory of the other. */
static CUresult peer_access(CUcontext other, bool open)
{
    CUdevice here;
    return client_none() || REAL(cuCtxGetDevice)(&here) != CUDA_SUCCESS
               ? CUDA_SUCCESS : memory_open_to_peer(device_of(other), here, open);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext other, unsigned int flags)
{
    CUresult result = REAL(cuCtxEnablePeerAccess)(other, flags);
    return result == CUDA_SUCCESS ? peer_access(other, true) : result;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext other)
{
    CUresult result = REAL(cuCtxDisablePeerAccess)(other);
    return result == CUDA_SUCCESS ? peer_access(other, false) : result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    WITH_PATIENCE(result, device, REAL(cuDevicePrimaryCtxRetain)(context, device));
    if (result == CUDA_SUCCESS)
        primary_retained(device, *context);
    return result;
}

#define RELEASE(name)                                                              \
    EXPORT CUresult name(CUdevice device)                                          \
    {                                                                              \
        ends(primary_context(device, 1));                                          \
        CUresult result = REAL(name)(device);                                      \
        if (result == CUDA_SUCCESS)                                                \
            primary_released(device);                                              \
        return result;                                                             \
    }

RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)

static void primary_forgotten(CUdevice device)
{
    if (!has_primary(device))
        return;
    pthread_mutex_lock(&contexts_lock);
    primary[device].context = NULL;
    primary[device].retained = 0;
    pthread_mutex_unlock(&contexts_lock);
}

/* The first version forgets who retained it; of the second they hold it still, empty. */
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    ends(primary_context(device, UINT32_MAX));
    CUresult result = REAL(cuDevicePrimaryCtxReset)(device);
    if (result == CUDA_SUCCESS)
        primary_forgotten(device);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ends(primary_context(device, UINT32_MAX));
    return REAL(cuDevicePrimaryCtxReset_v2)(device);
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                 unsigned int flags)
{
    CUresult result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
    CUcontext context;
    if (result == CUDA_SUCCESS
        && REAL(cuDevicePrimaryCtxRetain)(&context, device) == CUDA_SUCCESS) {
        refer(*green, device);
        primary_retained(device, context);
        /* The green context holds it; ours was only to learn its name. */
        if (HAVE_REAL(cuDevicePrimaryCtxRelease_v2))
            REAL(cuDevicePrimaryCtxRelease_v2)(device);
    }
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device = drop(green);
    ends(primary_context(device, 1));
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (result == CUDA_SUCCESS)
        primary_released(device);
    return result;
}
