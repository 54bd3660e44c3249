/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the process's contexts: a drain waits for all of them, because any may access memory of any
 * device. A context created by a function that is not wrapped is listed when a thread makes it
 * current, allocates in it or submits to it. A green context is a part of the multiprocessors; its
 * memory and work belong to the primary context. A green context may be current to one thread only,
 * so the library never makes it current. */
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
    unsigned since;                  /* `ended` when it was listed: the driver reuses handles */
};

/* Protects the variables below. Its holder takes no lock and calls no driver function. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *known;
static unsigned count, room;
static _Atomic bool incomplete;      /* no memory to list a context; also read without the lock */

static _Atomic unsigned ended;       /* number of contexts destroyed */

/* This thread's last lookup, stale once `ended` has changed. */
static __thread struct latest {
    CUcontext context, owner;
    unsigned ended;
} latest;

static struct known *find(CUcontext context)
{
    struct known *one = known;
    while (one != known + count && one->context != context)
        one++;
    return one != known + count ? one : NULL;
}

void contexts_add(CUcontext context, CUdevice device, CUcontext owner)
{
    UNCANCELLED;
    LOCKED(known_lock);
    struct known *one = find(context);
    if (one == NULL && count == room) {
        unsigned more = room == 0 ? ROOM_FIRST : 2 * room;
        struct known *larger = realloc(known, more * sizeof *known);
        if (larger != NULL) {
            known = larger;
            room = more;
        }
    }
    if (one == NULL && count < room)
        one = &known[count++];
    if (one != NULL)
        *one = (struct known){ context, owner, device, atomic_load(&ended) };
    else if (!atomic_exchange(&incomplete, true))
        complain("no memory to remember a GPU context: this program's memory stays on the card");
}

void contexts_remove(CUcontext context)
{
    UNCANCELLED;
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
    LOCKED(known_lock);
    const struct known *one = find(context);
    if (one == NULL)
        return false;
    *owner = one->owner;
    *device = one->device;
    return true;
}

bool contexts_lasts(CUcontext context, unsigned when)
{
    LOCKED(known_lock);
    const struct known *one = find(context);
    return one != NULL && one->since <= when;
}

CUcontext contexts_of(CUdevice device, unsigned number)
{
    LOCKED(known_lock);
    for (const struct known *one = known; one != known + count; one++)
        if ((device == ANY_DEVICE || one->device == device) && one->owner == one->context
            && number-- == 0)
            return one->context;
    return NULL;
}

bool contexts_complete(void)
{
    return !atomic_load(&incomplete);
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

/* `context`: the current one. False: it has ended, or failed for good. */
static bool describe(CUcontext context, CUcontext *owner, CUdevice *device)
{
    size_t unused, total;
    CUgreenCtx green = NULL;
    if (REAL(cuCtxGetDevice)(device) != CUDA_SUCCESS
        || REAL(cuMemGetInfo_v2)(&unused, &total) != CUDA_SUCCESS)
        return false;
    *owner = context;
    if (HAVE_REAL(cuStreamGetGreenCtx)
        && REAL(cuStreamGetGreenCtx)(NULL, &green) == CUDA_SUCCESS && green != NULL)
        *owner = contexts_primary(*device);
    return *owner != NULL;
}

CUcontext contexts_learn(CUcontext current, bool *added)
{
    unsigned now = contexts_ended();
    if (added != NULL)
        *added = false;
    if (latest.context == current && latest.ended == now)
        return latest.owner;
    CUcontext owner;
    CUdevice device;
    if (!contexts_find(current, &owner, &device)) {
        if (!describe(current, &owner, &device))
            return current;
        contexts_add(owner, device, owner);
        contexts_add(current, device, owner);
        if (added != NULL)
            *added = true;
    }
    latest = (struct latest){ current, owner, now };
    return owner;
}

CUresult contexts_current(CUcontext *owner)
{
    CUresult result = REAL(cuCtxGetCurrent)(owner);
    if (result == CUDA_SUCCESS && *owner != NULL)
        *owner = contexts_learn(*owner, NULL);
    return result;
}
