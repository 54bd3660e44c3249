/* SPDX-License-Identifier: Apache-2.0 */
/* Changes memory that the program's work may use. The calling thread waits until the client runs
 * with the requested room free, closes the gate and drains. While it then holds service_lock, no
 * order is carried out, so nothing is evicted, and the client's turn goes on. If a STOP arrives
 * during the drain, the sequence is repeated.
 *
 * Work in flight may wait for the calling thread, so the caller's patience bounds all drains and
 * waits for captures, but not the wait for the client's turn, during which no work is in flight. */
#include "block/exclusive.h"

#include "block/swap.h"
#include "driver/bell.h"
#include "driver/ops.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/gate.h"

#define TRIES 10                     /* a STOP may interrupt each try */
#define POLL_US 1000

struct task {
    struct client *client;
    uint64_t room;
    CUresult (*action)(void *);
    void *argument;
    bool ran;
    uint64_t patience;               /* us left for drains and for waiting for captures */
};

static void rest(void *unused, uint64_t us)
{
    (void)unused;
    mutex_unlock(&service_lock);
    bell_nap(us);
    mutex_lock_patiently(&service_lock);
}

static bool drain(struct task *task)
{
    BLOCKED;
    uint64_t began = now_microseconds();
    bool drained = drain_all(&(struct drain_terms){ .patience = task->patience, .rest = rest })
        == DRAINED;
    uint64_t took = now_microseconds() - began;
    task->patience -= took < task->patience ? took : task->patience;
    return drained;
}

/* The calling thread has the room, or will not have it. memory_lock is held. */
static void give_back(struct client *client, uint64_t room)
{
    client->memory.pending -= room;
    client_settle();
    client_update(client);
}

static void undo_room(void *client, uint64_t room)
{
    LOCKED(memory_lock);
    give_back(client, room);
}

static void undo_run(void *client, uint64_t room)
{
    LOCKED(memory_lock);
    ((struct client *)client)->remapping = false;
    give_back(client, room);
    memory_notify();
}

/* Closes the gate, drains, runs the action. Both locks are held, but released during the drain. */
static CUresult run(struct task *task)
{
    struct client *client = task->client;
    client->remapping = true;
    client_update(client);
    mutex_unlock(&memory_lock);
    bool ready;
    {
        UNLESS_LEFT(undo_run, client, task->room);
        ready = drain(task) && swap_enter_context(client);
    }
    mutex_lock(&memory_lock);
    CUresult result = CUDA_ERROR_NOT_READY;
    /* A STOP may have arrived during the drain. */
    if (ready && client->running && client_is_whole(client)) {
        result = task->action(task->argument);
        task->ran = true;
    }
    client->remapping = false;
    memory_notify();
    return result;
}

/* Waits at the gate until the client runs and has the room. The thread leaves the gate before it
 * takes a lock, because the drain in run() waits until no thread is inside. Returns with memory_lock
 * held, and, if true, service_lock. False: a STOP has arrived. */
static bool enter(const struct task *task)
{
    UNLESS_LEFT(undo_room, task->client, task->room);
    bool entered = gate_enter_until_stop(GATE_NO_STREAM, true);
    if (entered) {
        gate_leave();
        mutex_lock_patiently(&service_lock);
    }
    mutex_lock(&memory_lock);
    return entered;
}

static void restore_context(void *before, uint64_t unused)
{
    (void)unused;
    if (!leave_is_thread_end())
        REAL(cuCtxSetCurrent)(before);
}

/* memory_lock is held, but released meanwhile. */
static CUresult attempt(struct task *task)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    mutex_unlock(&memory_lock);
    if (enter(task)) {
        CUcontext before = NULL;
        RELAXED;
        REAL(cuCtxGetCurrent)(&before);
        UNLESS_LEFT(restore_context, before, 0);
        if (task->client->running && !task->client->starved)
            result = run(task);
        REAL(cuCtxSetCurrent)(before);
        mutex_unlock(&service_lock);
    }
    give_back(task->client, task->room);   /* the action has counted what it has taken */
    return result;
}

/* Waits until no capture and no drain of a STOP is in progress. False: the patience is used up,
 * or this thread itself has begun the capture. */
static bool may_begin(struct task *task)
{
    BLOCKED;
    bool capturing;
    while ((capturing = capture_going_on()) || clients_stopping()) {
        if ((capturing && capture_is_own()) || task->patience < POLL_US)
            return false;
        bell_nap(POLL_US);
        task->patience -= POLL_US;
    }
    return true;
}

/* One try; if it fails, the room is given up for other clients. Releases memory_lock meanwhile. */
static CUresult once(struct task *task, uint64_t pins)
{
    struct client *client = task->client;
    if (!client_commit_pinned(client, task->room, pins, client_patience_ends()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    client->memory.pending += task->room;
    if (task->room >= pins)
        client_settle();             /* otherwise attempt() settles, when the memory is pinned */
    client_update(client);
    return attempt(task);
}

CUresult exclusively(struct client *client, uint64_t room, uint64_t pins, uint64_t patience,
                     CUresult (*action)(void *), void *argument)
{
    struct task task = { client, room, action, argument, false, patience };
    CUresult result = CUDA_ERROR_NOT_READY;
    for (unsigned i = 0;
         i < TRIES && !task.ran && result == CUDA_ERROR_NOT_READY && task.patience > 0; i++) {
        mutex_unlock(&memory_lock);
        bool may = may_begin(&task);
        mutex_lock(&memory_lock);
        result = may ? once(&task, pins) : CUDA_ERROR_NOT_READY;
    }
    bool captured = !task.ran && result == CUDA_ERROR_NOT_READY && capture_going_on();
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;
}
