/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps the functions that create and end contexts: a device's first context attaches a client, and
 * all memory of a context is dropped before it ends. The driver reports only afterwards that a
 * release of a primary context was the last one, so the retains of the program and of its green
 * contexts are counted. As dropping waits for work, the thread with the last release waits for
 * threads inside a retain call, and later retains wait until that release has returned. */
#include "api/wrapper.h"
#include "driver/bell.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "flight/streams.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/peers.h"
#include "service/attach.h"

#define DEVICES 128

CUresult cuInit(unsigned int flags)
{
    settings_read();
    process_end_watch();
    clients_watch_forks();
    return REAL(cuInit)(flags);
}

static struct primary {
    CUcontext context;
    unsigned retained;
    unsigned retaining;              /* number of threads inside a retain call */
    bool ending;                     /* a thread is inside the last release, or a reset */
} primary[DEVICES + 1];                            /* protected by contexts_lock */

static MUTEX(contexts_lock);
static _Atomic uint32_t contexts_bell;             /* rung when `retaining` or `ending` falls */

/* primary[DEVICES] stands for devices that do not exist: the driver refuses calls for them. */
static struct primary *primary_of(CUdevice device)
{
    return &primary[device >= 0 && device < DEVICES ? device : DEVICES];
}

/* Waits for a change, with contexts_lock, the thread's only lock, released. */
static void contexts_wait(void)
{
    uint32_t before = atomic_load(&contexts_bell);
    mutex_unlock(&contexts_lock);
    bell_wait(&contexts_bell, before, NULL);
    mutex_lock(&contexts_lock);
}

/* Returns within defer_begin(); the thread then notes undo_retain(). A tool's callback does not wait,
 * as the thread that ends the context may wait for it. */
static void begin_retain(struct primary *one)
{
    bool may_wait = !client_is_called_back();
    LOCKED(contexts_lock);
    while (one->ending && may_wait)
        contexts_wait();
    one->retaining++;
    defer_begin();
}

static void undo_retain(void *primary, uint64_t unused)
{
    struct primary *one = primary;
    (void)unused;
    LOCKED(contexts_lock);
    one->retaining--;
    bell_ring(&contexts_bell);
}

/* `context`: NULL if the driver's call has failed. */
static void end_retain(CUdevice device, CUcontext context)
{
    struct primary *one = primary_of(device);
    mutex_lock(&contexts_lock);
    if (context != NULL) {
        one->context = context;
        one->retained++;
    }
    undo_retain(one, 0);
    mutex_unlock(&contexts_lock);
    defer_end();
    if (context != NULL)
        client_attach(device, context);
}

/* A release of one reference to a primary context, or a reset, which releases all of them. */
struct release {
    struct primary *primary;
    CUcontext last;                  /* the context that ends; NULL: references are left */
    bool counted;                    /* begin_release() has reduced primary->retained by 1 */
};

/* Returns within defer_begin(); the thread then notes undo_release(). */
static struct release begin_release(CUdevice device, bool all)
{
    struct primary *one = primary_of(device);
    bool may_wait = !client_is_called_back();
    LOCKED(contexts_lock);
    while (may_wait && (one->ending || ((all || one->retained == 1) && one->retaining > 0)))
        contexts_wait();
    const struct release release = { one, all || one->retained == 1 ? one->context : NULL,
                                     !all && one->retained > 0 };
    one->ending = release.last != NULL;
    one->retained -= release.counted;
    defer_begin();
    return release;
}

#define COUNTED_BIT 1
#define LAST_BIT 2

static uint64_t bits_of(const struct release *release)
{
    return (release->counted ? COUNTED_BIT : 0) | (release->last != NULL ? LAST_BIT : 0);
}

/* Whether the driver has released the reference is unknown, if the thread has left its call. One
 * that counts too long costs memory, one that does not count costs its other users their bytes. */
static void undo_release(void *primary, uint64_t bits)
{
    struct primary *one = primary;
    LOCKED(contexts_lock);
    if ((bits & COUNTED_BIT) != 0)
        one->retained++;
    if ((bits & LAST_BIT) != 0)
        one->ending = false;
    bell_ring(&contexts_bell);
}

/* `kept`: the driver's call was a reset that drops no references. */
static void end_release(const struct release *release, CUresult result, bool kept)
{
    struct primary *one = release->primary;
    {
        LOCKED(contexts_lock);
        bool released = result == CUDA_SUCCESS;
        undo_release(one, bits_of(release) & (released ? LAST_BIT : LAST_BIT | COUNTED_BIT));
        if (release->last != NULL && released && !kept)
            *one = (struct primary){ .retaining = one->retaining };
    }
    defer_end();
}

static void end_context(CUcontext context)
{
    if (context == NULL)
        return;
    context_ends(context);
    streams_end_with(context);
    capture_over(capture_take(NULL, context));
}

/* Repeats a call that found no memory for a context, while the daemon makes other clients evict. */
#define WITH_PATIENCE(result, device, call)                                                 \
    CUresult result = call;                                                                 \
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {                                               \
        BLOCKED;                                                                            \
        unsigned tries = 0;                                                                 \
        while (result == CUDA_ERROR_OUT_OF_MEMORY && client_awaits_context(device, &tries)) \
            result = call;                                                                  \
    }

#undef CREATES_CONTEXT
#define CREATES_CONTEXT(name, device, parameters)                                  \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        WITH_PATIENCE(result, device, CALL(name, parameters));                     \
        if (result == CUDA_SUCCESS)                                                \
            client_attach(device, *p1);                                            \
        return result;                                                             \
    }
#define HOOK(name, parameters)
#include "driver/hooks.def"

/* Lists a context that was created by a function that is not wrapped. */
#define ENTER_CONTEXT(name)                                                        \
    CUresult name(CUcontext context)                                        \
    {                                                                              \
        CUresult result = REAL(name)(context);                                     \
        CUdevice device;                                                           \
        if (result == CUDA_SUCCESS && context != NULL                              \
            && contexts_learn(context, &context, &device))                         \
            client_attach(device, NULL);                                           \
        return result;                                                             \
    }

ENTER_CONTEXT(cuCtxSetCurrent)
ENTER_CONTEXT(cuCtxPushCurrent)
ENTER_CONTEXT(cuCtxPushCurrent_v2)

/* The driver's cuCtxDestroy and cuCtxDetach fail for a primary context, which therefore stays. */
static bool is_primary(CUcontext context)
{
    bool found = false;
    LOCKED(contexts_lock);
    for (int device = 0; device < DEVICES; device++)
        found |= context != NULL && primary[device].context == context;
    return found;
}

#define DESTROY(name)                                                              \
    CUresult name(CUcontext context)                                        \
    {                                                                              \
        if (!is_primary(context))                                                  \
            end_context(context);                                                  \
        return REAL(name)(context);                                                \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

NOTED(cuCtxAttach, contexts_attach(*p1, 1), (CUcontext *, unsigned int))

CUresult cuCtxDetach(CUcontext context)
{
    if (!contexts_attach(context, -1) && !is_primary(context))
        end_context(context);
    return REAL(cuCtxDetach)(context);
}

/* Lets the current context's device access the memory of `other`'s device, or ends that access. */
static CUresult peer_access(CUcontext other, bool open)
{
    CUcontext owner;
    CUdevice here, there;
    if (client_none() || REAL(cuCtxGetDevice)(&here) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (contexts_describe(other, &owner, &there) != CUDA_SUCCESS)
        there = CU_DEVICE_INVALID;
    return memory_open_to_peer(there, here, open);
}

NOTED(cuCtxEnablePeerAccess, result = peer_access(p1, true), (CUcontext, unsigned int))
NOTED(cuCtxDisablePeerAccess, result = peer_access(p1, false), (CUcontext))

static CUresult retain(CUcontext *context, CUdevice device)
{
    CUresult result;
    begin_retain(primary_of(device));
    {
        UNLESS_LEFT(undo_retain, primary_of(device), 0);
        defer_end();
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        defer_begin();
    }
    end_retain(device, result == CUDA_SUCCESS ? *context : NULL);
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    WITH_PATIENCE(result, device, retain(context, device));
    return result;
}

#define RELEASE(name, all, kept)                                                   \
    CUresult name(CUdevice device)                                          \
    {                                                                              \
        struct release release = begin_release(device, all);                       \
        CUresult result;                                                           \
        {                                                                          \
            UNLESS_LEFT(undo_release, release.primary, bits_of(&release));         \
            defer_end();                                                           \
            end_context(release.last);                                             \
            result = REAL(name)(device);                                           \
            defer_begin();                                                         \
        }                                                                          \
        end_release(&release, result, kept);                                       \
        return result;                                                             \
    }

RELEASE(cuDevicePrimaryCtxRelease, false, false)
RELEASE(cuDevicePrimaryCtxRelease_v2, false, false)
/* The reset's first version drops all references. Version 2 keeps them and the empty context. */
RELEASE(cuDevicePrimaryCtxReset, true, false)
RELEASE(cuDevicePrimaryCtxReset_v2, true, true)

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                 unsigned int flags)
{
    CUcontext primary = NULL, context;
    CUresult result;
    begin_retain(primary_of(device));
    {
        UNLESS_LEFT(undo_retain, primary_of(device), 0);
        defer_end();
        result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
        if (result == CUDA_SUCCESS && (primary = contexts_primary(device)) != NULL
            && REAL(cuCtxFromGreenCtx)(&context, *green) == CUDA_SUCCESS)
            contexts_add(context, device, primary);
        defer_begin();
    }
    end_retain(device, primary);
    /* A drain with a driver before 12.5 cannot query the NULL stream of a green context. */
    struct client *client = client_on(device);
    if (result == CUDA_SUCCESS && !streams_need_no_list() && client != NULL)
        client_pin(client, NVSHARE_PIN_UNDRAINED);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device = CU_DEVICE_INVALID;
    CUcontext context, primary;
    if (REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS) {
        contexts_find(context, &primary, &device);
        end_context(context);               /* drains `context`: later its work cannot be queried */
    }
    struct release release = begin_release(device, false);
    CUresult result;
    {
        UNLESS_LEFT(undo_release, release.primary, bits_of(&release));
        defer_end();
        end_context(release.last);
        result = REAL(cuGreenCtxDestroy)(green);
        defer_begin();
    }
    if (result != CUDA_SUCCESS && device >= 0)
        contexts_add(context, device, primary);
    end_release(&release, result, false);
    return result;
}
