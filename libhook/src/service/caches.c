/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch and CuPy keep freed memory in caches, which an eviction copies to the host like other
 * memory: 1.3 ms of the bus for a block of 32 MiB, and host memory; to release and allocate the
 * block again takes 60 us. A thread of the Python module nvshared/program/nvshare_caches.py waits
 * in nvshare_trim_wait() and calls the frameworks; a thread of the library could not, as the
 * interpreter knows only its own threads.
 *
 * The library asks only while other clients wait and if after the last turn another client
 * needed memory: once when the turn or the waiting begins, and once after half the pause that
 * ends the turn. It never asks during a stream capture: the captured graph may use the memory. A
 * capture that begins later is not disturbed, as cuMemFree() respects captures (allocation.c). */
#include "service/caches.h"

#include "driver/bell.h"
#include "flight/capture.h"
#include "gate/client.h"

_Static_assert(CLIENTS_MAX * CACHES_OCCASIONS <= 64, "`asked` has a bit for each");

static _Atomic uint64_t asked;       /* a bit for each return value of nvshare_trim_wait() */
/* Futex word (bell.h) on which nvshare_trim_wait() sleeps, rung after a bit of `asked` is set. */
static _Atomic uint32_t asked_anew;
static _Atomic bool has_thread;

/* One for each client, indexed by client->index. Protected by memory_lock. */
static struct caches {
    /* No other client has needed memory since the program's last turn ended. */
    bool needless;
    bool asked_before[CACHES_OCCASIONS];
    uint64_t most;                   /* largest memory.allocated at requests since CACHES_TURN */
} of_client[CLIENTS_MAX];

/* Whether the program may release caches now. False in a capture: caches_ask() then asks again. */
static bool may_trim(unsigned device, unsigned occasion)
{
    if (client_none())
        return false;                /* a forked child, where memory_lock may never be released */
    mutex_lock(&memory_lock);
    bool capturing = capture_going_on();
    if (capturing)
        of_client[device].asked_before[occasion] = false;
    mutex_unlock(&memory_lock);
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
    /* Bytes that would be on the card if no request to release caches had been made. */
    uint64_t spared = caches->most > memory->allocated ? caches->most - memory->allocated : 0;
    if (room < memory->resident + memory->pinned + spared)
        caches->needless = false;
}
