/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches of frameworks.
 *
 * PyTorch and CuPy do not give freed memory back to the driver but keep it for
 * the next allocation. To us it is memory like any other: it is copied to the
 * host when its program must leave the card, and back. With
 * NVSHARE_TRIM_CACHES=1 in its environment a program is asked to give it back
 * before that. A block of 32 MiB that is given back and allocated again costs
 * some 60 us, one that leaves and comes back 1.3 ms of the bus, and host memory.
 *
 * Who does it. Not a thread of ours: the framework's allocator may be locked by
 * a thread that waits for us, and an interpreter that ends tears a foreign
 * thread down in the middle of the framework's code. The service thread only
 * leaves word with CPython (Py_AddPendingCall), which then calls release() in the
 * program's main thread, between two of its instructions, as if the program had
 * called it there itself. Where the main thread is away for long, in a call of
 * something else than Python, it comes to nothing, or later; a program that has had to
 * leave by then frees what lies on the host, which then need not come back.
 *
 * When. Only while others wait, and not if nobody needed the program's room after its
 * last turn: then nothing leaves. Once when its turn begins, or the waiting does,
 * since a cache may be left from long ago; and once when it has had nothing
 * to do on the card for half the time after which its turn is over, as it then is
 * between two pieces of work and about to leave.
 *
 * Whether that is any good is seen at the end of the turn. If the program has
 * allocated half of it again by then, or by the next release, it needs that
 * memory all the time, and leaves with it all the same: the next turn passes
 * without that occasion, after another such failure the next two, then four, up to
 * PAUSE_MOST. Just so if less than half of what was offered has come. So a training
 * that uses all its cache in each step is asked in few of its turns when one begins,
 * and in each when it pauses for its next data.
 *
 * Nothing is released while a stream is being captured: the memory may be in the
 * graph. Should a capture begin in another thread meanwhile, it is not disturbed:
 * this thread is relaxed, and our own cuMemFree() knows captures (memory.c).
 */
#include "service/caches.h"

#include <pthread.h>
#include <string.h>

#include "client/client.h"
#include "client/client_state.h"
#include "flight/capture.h"
#include "interpose/log.h"
#include "interpose/real.h"
#include "service/frameworks.h"
#include "service/interpreter.h"

/* The bus carries that both ways in 10 ms. The work in flight, for whose end freeing
 * waits, takes up to 50 ms, but goes on meanwhile. */
#define WORTH_BYTES (256 << 20)
#define PAUSE_MOST 64

/* Written before the first service thread starts. */
static bool wanted;

void caches_prepare(void)
{
    const char *text = setting("NVSHARE_TRIM_CACHES");
    if (text == NULL || strcmp(text, "1") != 0)
        return;
    wanted = interpreter_find();
    if (!wanted)
        debug("NVSHARE_TRIM_CACHES=1: no CPython here that this library knows, 3.9 or newer with "
              "its lock; nothing is asked to give back what it has cached");
}

/* Whether the last release was any good, now that it is known. Lock held. */
static void judge(struct client *client, uint64_t allocated)
{
    struct caches_release *last = &client->caches.last;
    struct caches_try *try = &client->caches.tries[last->occasion];
    if (!last->unjudged)
        return;
    last->unjudged = false;
    uint64_t again = allocated > last->allocated ? allocated - last->allocated : 0;
    if (again <= last->bytes / 2) {
        client->caches.spared += last->bytes - again;
        try->pause = 0;
        return;
    }
    try->pause = try->pause == 0 ? 1 : try->pause < PAUSE_MOST ? 2 * try->pause : PAUSE_MOST;
    try->left = try->pause;
}

/* What came of it. Lock held. */
static void settle(struct client *client, enum caches_occasion occasion, uint64_t before,
                   uint64_t offered, bool failed)
{
    uint64_t after = client->memory.allocated, bytes = before > after ? before - after : 0;
    if (offered == 0 && !failed)
        return;
    failed = failed || bytes < offered / 2;
    judge(client, before);
    /* What need not come in any more is gain enough, even if it is taken again. */
    client->caches.last = (struct caches_release){
        client->granted || failed, occasion, bytes, after,
    };
    if (failed)
        judge(client, UINT64_MAX);
    else
        debug("%llu MiB that were cached have been given back", (unsigned long long)bytes >> 20);
}

/* By CPython, in the program's main thread. */
static int release(void *argument)
{
    struct client *client = argument;
    if (client_none())
        return 0;                    /* a forked child, and memory_lock may be nobody's any more */
    pthread_mutex_lock(&memory_lock);
    struct caches *caches = &client->caches;
    enum caches_occasion occasion = caches->occasion;
    bool capturing = capture_going_on();
    uint64_t before = client->memory.allocated;
    caches->asked = false;
    if (capturing)
        caches->tries[occasion].past = false;
    pthread_mutex_unlock(&memory_lock);
    if (capturing || !interpreter_at_hand())
        return 0;

    bool failed;
    long long offered;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    int answer = frameworks_release(client->device, WORTH_BYTES, &offered, &failed);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);

    pthread_mutex_lock(&memory_lock);
    settle(client, occasion, before, (uint64_t)offered, failed);
    pthread_mutex_unlock(&memory_lock);
    return answer;
}

/* Whether it is to be asked now; then it counts as asked. Lock held. */
static bool due(struct caches *caches, enum caches_occasion occasion)
{
    struct caches_try *try = &caches->tries[occasion];
    if (occasion == CACHES_TURN && !try->past)
        caches->spared = 0;
    if (caches->asked || caches->needless || try->past || capture_going_on())
        return false;
    try->past = true;
    if (try->left > 0) {
        try->left--;
        return false;
    }
    caches->occasion = occasion;
    return caches->asked = true;
}

void caches_ask(struct client *client, enum caches_occasion occasion)
{
    if (!wanted)
        return;
    pthread_mutex_lock(&memory_lock);
    bool ask = due(&client->caches, occasion);
    pthread_mutex_unlock(&memory_lock);
    if (!ask || interpreter_call_soon(release, client))
        return;
    pthread_mutex_lock(&memory_lock);
    client->caches.asked = false;
    pthread_mutex_unlock(&memory_lock);
}

void caches_rest(struct client *client)
{
    if (!wanted)
        return;
    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < CACHES_OCCASIONS; i++)
        client->caches.tries[i].past = false;
    pthread_mutex_unlock(&memory_lock);
}

void caches_turn_ended(struct client *client)
{
    judge(client, client->memory.allocated);
    client->caches.needless = true;
}

void caches_room_ordered(struct client *client, uint64_t room)
{
    const struct nvshare_memory *memory = &client->memory;
    struct caches *caches = &client->caches;
    if (room < memory->resident + memory->pinned + caches->spared)
        caches->needless = false;
}
