/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing memory under a program that uses it. Waits until the program runs
 * with room to spare, shuts the gate, drains, and keeps the service thread
 * from its orders for as long as it takes: nothing can then be evicted, and
 * the daemon sees a client that runs.
 */
#include "swap/exclusive.h"

#include <unistd.h>

#include "client/commit.h"
#include "client/gate.h"
#include "flight/capture.h"
#include "flight/capture_list.h"
#include "flight/drain.h"
#include "swap/pipeline.h"

/* A STOP may come between waiting and shutting; work may depend on a thread at the gate. */
#define TRIES 10
/* For others' captures, which forbid it and end without us. */
#define CAPTURE_PATIENCE_US 30000000
#define CAPTURE_LOOK_US 1000

struct task {
    struct client *client;
    uint64_t room;
    CUresult (*action)(void *);
    void *argument;
    bool ran;
};

/* Everything is still. With memory_lock. */
static CUresult run(struct task *task)
{
    struct client *client = task->client;
    client->remapping = true;
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
    bool ready = drain_all(DRAIN_PATIENCE_US, false) == DRAINED && swap_enter_context(client);
    pthread_mutex_lock(&memory_lock);
    CUresult result = CUDA_ERROR_NOT_READY;
    if (ready) {
        result = task->action(task->argument);
        client->memory.pending -= task->room;
        client_settle();             /* what it has pinned is in the figures */
        task->ran = true;
    }
    client->remapping = false;
    client_update(client);
    pthread_cond_broadcast(&memory_changed);
    return result;
}

static CUresult attempt(struct task *task)
{
    gate_enter(GATE_NO_STREAM);      /* until the program runs, with the room */
    gate_leave();
    CUcontext before = NULL;
    RELAXED;
    REAL(cuCtxGetCurrent)(&before);
    CUresult result = CUDA_ERROR_NOT_READY;
    {
        LOCKED(service_lock);
        LOCKED(memory_lock);
        if (task->client->granted && !task->client->starved)
            result = run(task);
    }
    REAL(cuCtxSetCurrent)(before);
    return result;
}

/* False: it would be in vain, or for too long. One of this thread's own would not end. */
static bool captures_have_ended(uint64_t patience_until)
{
    while (capture_going_on()) {
        if (capture_is_own() || now_microseconds() > patience_until)
            return false;
        usleep(CAPTURE_LOOK_US);
    }
    return true;
}

/* With memory_lock. A grant is kept for one try only, as others could have it. */
static CUresult once(struct task *task, uint64_t pins)
{
    struct client *client = task->client;
    if (!client_commit_pinned(client, task->room, pins))
        return CUDA_ERROR_OUT_OF_MEMORY;
    client->memory.pending += task->room;
    if (task->room >= pins)
        client_settle();             /* else not before it is pinned */
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
    CUresult result = attempt(task);
    pthread_mutex_lock(&memory_lock);
    client_settle();
    if (!task->ran) {
        client->memory.pending -= task->room;
        client_update(client);
    }
    return result;
}

CUresult exclusively(struct client *client, uint64_t room, uint64_t pins,
                     CUresult (*action)(void *), void *argument)
{
    struct task task = { client, room, action, argument, false };
    uint64_t patience_until = now_microseconds() + CAPTURE_PATIENCE_US;
    CUresult result = CUDA_ERROR_NOT_READY;
    /* A thread cancelled while the gate is shut on its behalf would leave it so. */
    UNCANCELLED;
    /* Whose work does not end is held up for it no more than once. */
    unsigned tries = client->stays == NVSHARE_STAYS_UNDRAINED ? 1 : TRIES;
    for (unsigned i = 0; i < tries && !task.ran && result == CUDA_ERROR_NOT_READY; i++) {
        pthread_mutex_unlock(&memory_lock);
        bool may = captures_have_ended(patience_until);
        pthread_mutex_lock(&memory_lock);
        result = may ? once(&task, pins) : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    bool captured = !task.ran && result == CUDA_ERROR_NOT_READY && capture_going_on();
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;
}
