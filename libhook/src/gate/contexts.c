/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the process's contexts. A drain waits for all contexts, because work in any context may
 * access memory of any device. A context created by a function that is not wrapped is listed when a
 * thread makes it current, allocates in it or submits to it. A green context has a part of the
 * multiprocessors; its memory and work belong to the primary context. A green context may be
 * current to one thread only, so the library never makes it current. */
#include "gate/contexts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver/locked.h"
#include "driver/log.h"
#include "driver/ops.h"

#define ROOM_FIRST 16

struct known {
    CUcontext context, owner;
    CUdevice device;
    unsigned since;                  /* `ended` when listed: the driver reuses old handles */
    int attached;                    /* number of cuCtxAttach() without cuCtxDetach() */
};

/* Protects the variables below. While locked, no other lock is taken or driver function used. */
static MUTEX(known_lock);
static struct known *known;
static unsigned count, room;

static _Atomic unsigned ended;       /* number of contexts destroyed */

static struct known *find(CUcontext context)
{
    struct known *one = known;
    while (one != known + count && one->context != context)
        one++;
    return one != known + count ? one : NULL;
}

void contexts_add(CUcontext context, CUdevice device, CUcontext owner)
{
    LOCKED(known_lock);
    struct known *one = find(context);
    if (one == NULL && count == room) {
        room = room == 0 ? ROOM_FIRST : 2 * room;
        known = realloc(known, room * sizeof *known);
        if (known == NULL)
            fatal("no memory to list a GPU context");
    }
    int attached = one != NULL ? one->attached : 0;
    if (one == NULL)
        one = &known[count++];
    *one = (struct known){ context, owner, device, atomic_load(&ended), attached };
}

void contexts_remove(CUcontext context)
{
    LOCKED(known_lock);
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (known[i].context != context && known[i].owner != context)
            known[kept++] = known[i];
    if (kept != count)
        atomic_fetch_add(&ended, 1);
    count = kept;
}

unsigned contexts_ended(void)
{
    return atomic_load(&ended);
}

bool contexts_find(CUcontext context, CUcontext *owner, CUdevice *device)
{
    LOCKED_TO_READ(known_lock);
    const struct known *one = find(context);
    if (one == NULL)
        return false;
    *owner = one->owner;
    *device = one->device;
    return true;
}

bool contexts_attach(CUcontext context, int change)
{
    LOCKED(known_lock);
    struct known *one = find(context);
    bool counted = one != NULL && one->attached + change >= 0;
    if (counted)
        one->attached += change;
    return counted;
}

bool contexts_lasts(CUcontext context, unsigned when)
{
    LOCKED_TO_READ(known_lock);
    const struct known *one = find(context);
    return one != NULL && one->since <= when;
}

CUcontext contexts_of(CUdevice device, unsigned number)
{
    LOCKED_TO_READ(known_lock);
    for (const struct known *one = known; one != known + count; one++)
        if ((device == ANY_DEVICE || one->device == device) && one->owner == one->context
            && number-- == 0)
            return one->context;
    return NULL;
}

CUcontext contexts_primary(CUdevice device)
{
    CUcontext primary = NULL;
    if (REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS)
        return NULL;
    /* The program retains the context, too; this reference only served to learn its handle. */
    if (HAVE_REAL(cuDevicePrimaryCtxRelease_v2))
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return primary;
}

bool contexts_learn(CUcontext current, CUcontext *owner, CUdevice *device)
{
    size_t unused, total;
    CUgreenCtx green = NULL;
    CUcontext primary = current;
    *owner = current;
    if (contexts_find(current, owner, device) || REAL(cuCtxGetDevice)(device) != CUDA_SUCCESS
        || REAL(cuMemGetInfo_v2)(&unused, &total) != CUDA_SUCCESS)
        return false;                /* listed already; or `current` has ended or is broken */
    if (HAVE_REAL(cuStreamGetGreenCtx)
        && REAL(cuStreamGetGreenCtx)(NULL, &green) == CUDA_SUCCESS && green != NULL)
        primary = contexts_primary(*device);
    if (primary == NULL)
        return false;
    contexts_add(primary, *device, primary);
    contexts_add(current, *device, primary);
    *owner = primary;
    return true;
}

CUresult contexts_describe(CUcontext context, CUcontext *owner, CUdevice *device)
{
    CUcontext same;
    if (contexts_find(context, owner, device))
        return CUDA_SUCCESS;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    contexts_learn(context, owner, device);
    REAL(cuCtxPopCurrent_v2)(&same);
    return result;
}

CUresult contexts_current(CUcontext *owner)
{
    CUdevice device;
    CUresult result = REAL(cuCtxGetCurrent)(owner);
    if (result == CUDA_SUCCESS && *owner != NULL)
        contexts_learn(*owner, owner, &device);
    return result;
}
