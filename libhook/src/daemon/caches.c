/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says when a program should give back what its frameworks have cached. A thread of the
 * program waits for that in nvshare_trim_wait(), and has the frameworks do it.
 *
 * PyTorch and CuPy do not give freed memory back to the driver but keep it for
 * the next allocation. To us it is memory like any other: it is copied to the
 * host when its program must leave the card, and back. A block of 32 MiB that is given
 * back and allocated again costs some 60 us; one that leaves and comes back costs 1.3 ms
 * of the bus, and host memory.
 *
 * The thread is the Python module's, nvshared/program/nvshare_caches.py, which knows
 * the frameworks and whether asking them is of use. It is none of ours, because the
 * interpreter would have to know it. Without such a thread nobody is asked.
 *
 * The program is asked only while others wait, and only if somebody needed its room after
 * its last turn; otherwise nothing leaves. It is asked once when its turn begins, or the
 * waiting does, since a cache may be left from long ago. It is asked once more when it has
 * had nothing to do on the card for half the time after which its turn is over: it is then
 * between two pieces of work and about to leave.
 *
 * Nobody is asked while a stream is being captured: the memory may be in the graph. Should
 * a capture begin meanwhile, it is not disturbed: the thread is relaxed, and our own
 * cuMemFree() knows captures (memory.c).
 */
#include "daemon/caches.h"

#include "driver/bell.h"
#include "flight/capture.h"
#include "gate/client.h"

_Static_assert(CLIENTS_MAX * CACHES_OCCASIONS <= 64, "`asked` has a bit for each");

static _Atomic uint64_t asked;       /* a bit for each answer of nvshare_trim_wait() */
static _Atomic uint32_t asked_anew;  /* a bell */
static _Atomic bool wanted;          /* somebody waits, or has waited */

/* Each client's. Protected by memory_lock. */
static struct caches {
    /* Its last turn ended without anybody needing the room: nothing would leave. */
    bool needless;
    bool past[CACHES_OCCASIONS];     /* it was asked in this turn */
    uint64_t most;                   /* bytes that it had allocated when it was asked */
} of_client[CLIENTS_MAX];

/* Whether it may be now. If not, it is asked again later. */
static bool may_trim(unsigned device, unsigned occasion)
{
    if (client_none())
        return false;                /* a forked child, and memory_lock may be nobody's any more */
    pthread_mutex_lock(&memory_lock);
    bool capturing = capture_going_on();
    if (capturing)
        of_client[device].past[occasion] = false;
    pthread_mutex_unlock(&memory_lock);
    capture_relax();
    return !capturing;
}

int nvshare_trim_wait(void)
{
    wanted = true;
    for (;;) {
        uint32_t heard = asked_anew;
        uint64_t all = asked;
        if (all == 0) {
            bell_sleep(&asked_anew, heard, NULL);
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
    if (!wanted)
        return;
    LOCKED(memory_lock);
    struct caches *caches = &of_client[client->index];
    if (occasion == CACHES_TURN && !caches->past[occasion])
        caches->most = 0;
    if (!caches->needless && !caches->past[occasion] && !capture_going_on()) {
        caches->past[occasion] = true;
        if (client->memory.allocated > caches->most)
            caches->most = client->memory.allocated;
        atomic_fetch_or(&asked,
                        (uint64_t)1 << (CACHES_OCCASIONS * (unsigned)client->device + occasion));
        bell_ring(&asked_anew);
    }
}

void caches_rest(struct client *client)
{
    if (!wanted)
        return;
    LOCKED(memory_lock);
    for (unsigned i = 0; i < CACHES_OCCASIONS; i++)
        of_client[client->index].past[i] = false;
}

void caches_turn_ended(struct client *client)
{
    of_client[client->index].needless = true;
}

void caches_room_ordered(struct client *client, uint64_t room)
{
    const struct nvshare_memory *memory = &client->memory;
    struct caches *caches = &of_client[client->index];
    /* What was given back would lie on the card as well, had nobody asked. */
    uint64_t spared = caches->most > memory->allocated ? caches->most - memory->allocated : 0;
    if (room < memory->resident + memory->pinned + spared)
        caches->needless = false;
}
