/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A background program submits nothing while a program of higher priority has work in flight on the
 * same card. The programs signal through shared memory: a message of the daemon would come too
 * late. Each urgent program publishes a page, which only it can write, with two counters: how often
 * work has begun (`begun`), and the value of `begun` up to which all work is done (`done`). The
 * daemon sends the pages while a background program holds the card.
 *
 * Publishing. With GATE_PUBLISHING the first launch after a pause increments `begun`, with a full
 * fence, before anything else. The service thread then clears GATE_PUBLISHING, so that later
 * launches cost no more than usual, and increments `begun` itself now and then. When all work seems
 * done (flight/activity.c), it sets GATE_PUBLISHING, notes `begun`, checks that no thread is inside
 * or has passed, waits once more for all submitted work, and writes the noted count to `done`. A
 * launch meanwhile either was seen by that check, or finds GATE_PUBLISHING and makes `begun` differ
 * from `done`. A thread that waited at the gate counts again when it goes on, because its first
 * count may have been cleared while it was outside.
 *
 * Watching. A background thread steps inside first, then reads the counters. If a watched program
 * has work in flight, the thread waits outside, and the service thread polls after each 1/32 of the
 * time waited so far (50 us to 1 ms). An urgent launch waits for at most the background work in
 * flight, about 1 ms (flight/pace.c). Counters that do not change for two seconds may belong to a
 * program that was stopped, or has a kernel that never ends or waits for the background program.
 * Then, or when the background program's own work in flight does not end, passes are let through
 * one at a time.
 *
 * A mapping is never removed, only replaced at the same address: threads read it without a lock.
 */
#define _GNU_SOURCE
#include "gate/inflight.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define WATCHED_MAX 64               /* most pages that the daemon sends to one process */
#define PAGE 4096
#define STALLED_AFTER_US 2000000     /* us without a change of the counters */
#define BETWEEN_PASSES_US 50000
#define POLL_LEAST_US 50
#define POLL_MOST_US 1000
#define POLLS 32

/* Indexed by client->index. `counters` NULL: the client publishes nothing. */
static struct published {
    _Atomic(struct nvshare_inflight *) counters;
    void *at;
    bool armed;                      /* the next launch must increment `begun` */
    uint64_t noted;                  /* `begun` when GATE_PUBLISHING was set */
} published[CLIENTS_MAX];

static struct watched {
    _Atomic(const struct nvshare_inflight *) counters;     /* NULL: the entry is free */
    void *at;
    struct client *_Atomic client;   /* the background client that watches */
    uint64_t number;
    uint64_t begun, done, since;     /* values at the last poll; us: last change */
} watched[WATCHED_MAX];
static _Atomic unsigned watched_end;      /* entries from this index on were never used */
static _Atomic unsigned watching;         /* number of entries in use */

static _Atomic bool holding;              /* a thread has found an urgent program busy */
static uint64_t holding_since, last_allowed;
static _Atomic unsigned allowed_passes;     /* number of passes allowed while counters show work */

static bool is_busy(const struct nvshare_inflight *counters)
{
    uint64_t done = __atomic_load_n(&counters->done, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&counters->begun, __ATOMIC_SEQ_CST) != done;
}

void inflight_count(void)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct nvshare_inflight *counters = atomic_load(&published[i].counters);
        if (counters == NULL)
            continue;
        uint64_t before = __atomic_fetch_add(&counters->begun, 1, __ATOMIC_SEQ_CST);
        if (before == __atomic_load_n(&counters->done, __ATOMIC_SEQ_CST))
            client_wake(clients[i]); /* the client was idle: its service thread may be asleep */
    }
}

static struct watched *first_busy(void)
{
    for (unsigned i = 0, end = atomic_load(&watched_end); i < end; i++) {
        const struct nvshare_inflight *counters = atomic_load(&watched[i].counters);
        if (counters != NULL && is_busy(counters))
            return &watched[i];
    }
    return NULL;
}

bool inflight_holds(void)
{
    struct watched *busy = first_busy();
    if (busy == NULL || atomic_load(&allowed_passes) > 0)
        return false;
    if (!atomic_exchange(&holding, true))
        client_wake(atomic_load(&busy->client));
    return true;
}

bool inflight_may_pass(void)
{
    while (!inflight_holds()) {
        unsigned left = atomic_load(&allowed_passes);
        if (left == 0 || first_busy() == NULL
            || atomic_compare_exchange_strong(&allowed_passes, &left, left - 1))
            return true;
    }
    return false;
}

static void clear_publishing(void)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (published[i].armed)
            return;
    if (watching == 0 && (atomic_load(&gate_closed) & GATE_PUBLISHING) != 0)
        gate_open(GATE_PUBLISHING);
}

static void *map(void *at, int descriptor, int protection)
{
    void *mapped = mmap(at, PAGE, protection, MAP_SHARED | (at != NULL ? MAP_FIXED : 0),
                        descriptor, 0);
    if (mapped != MAP_FAILED)
        return mapped;
    debug("the page of an in-flight counter cannot be mapped: %s", error_text(errno));
    return NULL;
}

void inflight_publish(struct client *client, int descriptor)
{
    struct published *mine = &published[client->index];
    atomic_store(&mine->counters, NULL);
    mine->armed = false;
    void *at = descriptor < 0 ? NULL : map(mine->at, descriptor, PROT_READ | PROT_WRITE);
    if (at != NULL) {
        struct nvshare_inflight *counters = mine->at = at;
        /* counts the work that the program has submitted so far */
        __atomic_fetch_add(&counters->begun, 1, __ATOMIC_SEQ_CST);
        atomic_store(&mine->counters, counters);
    }
    clear_publishing();
}

bool inflight_busy(const struct client *client)
{
    const struct nvshare_inflight *counters = atomic_load(&published[client->index].counters);
    return counters != NULL && is_busy(counters);
}

void inflight_extend(struct client *client)
{
    struct published *mine = &published[client->index];
    __atomic_fetch_add(&atomic_load(&mine->counters)->begun, 1, __ATOMIC_SEQ_CST);
    if (mine->armed) {
        mine->armed = false;
        clear_publishing();
    }
}

bool inflight_arm(struct client *client, uint64_t passes)
{
    struct published *mine = &published[client->index];
    if (!gate_empty())
        return false;
    mine->armed = true;
    gate_close(GATE_PUBLISHING);
    mine->noted = __atomic_load_n(&atomic_load(&mine->counters)->begun, __ATOMIC_SEQ_CST);
    if (gate_empty() && gate_passes() == passes)
        return true;
    inflight_extend(client);
    return false;
}

bool inflight_clear(struct client *client)
{
    struct published *mine = &published[client->index];
    struct nvshare_inflight *counters = atomic_load(&mine->counters);
    __atomic_store_n(&counters->done, mine->noted, __ATOMIC_SEQ_CST);
    /* A thread that incremented `begun` before this store saw the client busy and woke nothing. */
    return !is_busy(counters);
}

/* The entry of client `number`, watched by `client`; `client` NULL: a free entry. */
static struct watched *find(const struct client *client, uint64_t number)
{
    for (unsigned i = 0; i < WATCHED_MAX; i++) {
        struct watched *one = &watched[i];
        bool used = atomic_load(&one->counters) != NULL;
        if (client == NULL ? !used
                           : used && one->number == number && atomic_load(&one->client) == client)
            return one;
    }
    return NULL;
}

static void stop_watching(struct watched *one)
{
    atomic_store(&one->counters, NULL);
    watching--;
    clear_publishing();
    gate_recheck();
}

void inflight_watch(struct client *client, uint64_t number, int descriptor)
{
    struct watched *one = find(client, number);
    if (one != NULL)
        stop_watching(one);
    if (descriptor < 0 || (one = find(NULL, 0)) == NULL)
        return;
    void *at = map(one->at, descriptor, PROT_READ);
    if (at == NULL)
        return;
    one->at = at;
    one->number = number;
    one->begun = one->done = one->since = 0;
    atomic_store(&one->client, client);
    atomic_store(&one->counters, at);
    watching++;
    unsigned end = (unsigned)(one - watched) + 1;
    if (end > watched_end)
        watched_end = end;
    gate_close(GATE_PUBLISHING);
}

void inflight_forget(struct client *client)
{
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (atomic_load(&watched[i].counters) != NULL && atomic_load(&watched[i].client) == client)
            stop_watching(&watched[i]);
    if (atomic_load(&published[client->index].counters) != NULL)
        inflight_publish(client, -1);
}

bool inflight_is_watching(void)
{
    return watching > 0;
}

bool inflight_urgent(void)
{
    return first_busy() != NULL;
}

static bool any_counter_changes(uint64_t now)
{
    bool changes = false;
    for (unsigned i = 0; i < WATCHED_MAX; i++) {
        struct watched *one = &watched[i];
        const struct nvshare_inflight *counters = atomic_load(&one->counters);
        if (counters == NULL || !is_busy(counters))
            continue;
        uint64_t begun = __atomic_load_n(&counters->begun, __ATOMIC_SEQ_CST);
        uint64_t done = __atomic_load_n(&counters->done, __ATOMIC_SEQ_CST);
        if (one->since == 0 || begun != one->begun || done != one->done)
            one->begun = begun, one->done = done, one->since = now;
        changes = changes || now - one->since < STALLED_AFTER_US;
    }
    return changes;
}

uint64_t inflight_poll(uint64_t now, bool stalled)
{
    if (!atomic_load(&holding)) {
        holding_since = 0;
        return 0;
    }
    if (first_busy() == NULL) {
        holding_since = 0;
        atomic_store(&allowed_passes, 0);
        atomic_store(&holding, false);
        gate_recheck();
        return 0;
    }
    if (holding_since == 0)
        holding_since = now;
    if ((!any_counter_changes(now) || stalled) && now - last_allowed >= BETWEEN_PASSES_US) {
        last_allowed = now;
        atomic_store(&allowed_passes, 1);
        gate_recheck();
    }
    uint64_t next = (now - holding_since) / POLLS;
    return next < POLL_LEAST_US ? POLL_LEAST_US : next > POLL_MOST_US ? POLL_MOST_US : next;
}
