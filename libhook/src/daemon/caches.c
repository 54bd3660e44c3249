/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells a program when its frameworks should release their caches. A thread of the program waits
 * for that in nvshare_trim_wait(), and calls the frameworks.
 *
 * PyTorch and CuPy do not return freed memory to the driver but keep it for the next allocation. To
 * the library such a cache is memory like any other: it is copied to the host when the program is
 * evicted, and back. To release a block of 32 MiB and allocate it again takes some 60 us; to evict
 * and load it takes 1.3 ms of the bus, and host memory.
 *
 * The thread belongs to the Python module nvshared/program/nvshare_caches.py, which knows the
 * frameworks and whether calling them is useful. It cannot be a thread of the library, because the
 * Python interpreter knows only its own threads. Without such a thread the library asks nothing.
 *
 * The library asks a program only while other clients wait, and only if, after the program's last
 * turn, another client needed its memory of the card; otherwise nothing would be evicted. It asks
 * once when the turn or the waiting begins, because a cache may be left from long ago. It asks once
 * more when the program has been without work for half the time after which its turn ends: the
 * program is then between two pieces of work and about to be evicted.
 *
 * The library never asks during a stream capture, because the graph may use the memory. A capture
 * that begins after the thread was asked is not disturbed: the thread's capture mode is relaxed,
 * and the library's cuMemFree() respects captures (allocation.c).
 */
#include "daemon/caches.h"

#include "driver/bell.h"
#include "flight/capture.h"
#include "gate/client.h"

_Static_assert(CLIENTS_MAX * CACHES_OCCASIONS <= 64, "`asked` has a bit for each");

static _Atomic uint64_t asked;       /* a bit for each value that nvshare_trim_wait() returns */
/* A futex word (bell.h), rung after a bit of `asked` is set; nvshare_trim_wait() sleeps on it. */
static _Atomic uint32_t asked_anew;
static _Atomic bool has_thread;      /* nvshare_trim_wait() has been called */

/* Indexed by client. Protected by memory_lock. */
static struct caches {
    /* After this client's last turn no other client needed its memory: no need to ask. */
    bool needless;
    bool asked_before[CACHES_OCCASIONS]; /* in this turn, for this reason */
    uint64_t most;                   /* largest number of allocated bytes when it was asked */
} of_client[CLIENTS_MAX];

/* Whether the program may release caches now. If not, caches_ask() tries again later. */
static bool may_trim(unsigned device, unsigned occasion)
{
    if (client_none())
        return false;                /* a forked child, where memory_lock may never be released */
    pthread_mutex_lock(&memory_lock);
    bool capturing = capture_going_on();
    if (capturing)
        of_client[device].asked_before[occasion] = false;
    pthread_mutex_unlock(&memory_lock);
    capture_relax();
    return !capturing;
}

int nvshare_trim_wait(void)
{
    has_thread = true;
    for (;;) {
        uint32_t before = asked_anew;
        uint64_t all = asked;
        if (all == 0) {
            bell_sleep(&asked_anew, before, NULL);
            continue;
        }
        unsigned first = (unsigned)__builtin_ctzll(all);
        uint64_t bit = (uint64_t)1 << first;
        if ((atomic_fetch_and(&asked, ~bit) & bit) != 0
            && may_trim(first / CACHES_OCCASIONS, first % CACHES_OCCASIONS))
            return (int)first;
    }
}

void caches_ask(struct client *client, enum caches_occasion occasion)
{
    if (!has_thread)
        return;
    LOCKED(memory_lock);
    struct caches *caches = &of_client[client->index];
    if (occasion == CACHES_TURN && !caches->asked_before[occasion])
        caches->most = 0;
    if (!caches->needless && !caches->asked_before[occasion] && !capture_going_on()) {
        caches->asked_before[occasion] = true;
        if (client->memory.allocated > caches->most)
            caches->most = client->memory.allocated;
        atomic_fetch_or(&asked,
                        (uint64_t)1 << (CACHES_OCCASIONS * (unsigned)client->device + occasion));
        bell_ring(&asked_anew);
    }
}

void caches_rest(struct client *client)
{
    if (!has_thread)
        return;
    LOCKED(memory_lock);
    for (unsigned i = 0; i < CACHES_OCCASIONS; i++)
        of_client[client->index].asked_before[i] = false;
}

void caches_turn_ended(struct client *client)
{
    of_client[client->index].needless = true;
}

void caches_room_ordered(struct client *client, uint64_t room)
{
    const struct nvshare_memory *memory = &client->memory;
    struct caches *caches = &of_client[client->index];
    /* Bytes released since: they would still be on the card if the program had not been asked. */
    uint64_t spared = caches->most > memory->allocated ? caches->most - memory->allocated : 0;
    if (room < memory->resident + memory->pinned + spared)
        caches->needless = false;
}
