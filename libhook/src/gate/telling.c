/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A background program submits nothing while a program of higher priority has work in flight on the
 * same card. The programs signal that through shared memory, because a message from the daemon
 * would come too late.
 *
 * Each urgent program has a page with its word: how often work has begun (`begun`), and up to which
 * of these times it is done (`done`). Only that program can write to the page. Background programs
 * map it read-only, and read it at each pass of the gate. The daemon hands the pages out and
 * thereby decides which words count: no program is held back by one whose priority is not higher.
 * The daemon hands them out only while a background program holds the card. The gate's word then
 * has GATE_TELLING, and passes of these programs take the gate's slow path; those of other programs
 * do not.
 *
 * Counting. The first launch after a pause increments `begun`, with a full fence, before it does
 * anything else. From then on the word says that work is in flight, and later launches need not say
 * so again: the service thread clears GATE_TELLING, and the gate costs them what it always does.
 * The service thread itself increments `begun` now and then while launches go on. When no thread
 * has passed for a moment and all work seems done (flight/activity.c), the service thread sets
 * GATE_TELLING again, as exactly as it closes the gate (gate.c); notes `begun`; and checks whether
 * any thread is inside or has passed. If none is, it waits once more for all submitted work, and
 * writes the noted count to `done`. A launch meanwhile either was seen by that check, or finds
 * GATE_TELLING and increments `begun` after it was noted: the two then differ, whatever is written
 * to `done`. No count is ever lost. A thread that waited at the gate counts again when it goes on,
 * because its first count may have been cleared while it was outside.
 *
 * Heeding. A background thread steps inside first, then reads the words. If one says that work is
 * in flight, the thread waits outside, and the service thread polls the words, at most 32 times in
 * the length of the burst. The work that the background program has in flight then is at most about
 * a millisecond (flight/pace.c). That is how long an urgent launch may have to wait.
 *
 * Endless holds. The word of a client that has gone is void: the daemon says so, and without a
 * daemon no word is heeded. A word may also stay unchanged because its program was stopped, its
 * kernel never ends, or it waits for the very program that it holds back. When no word that holds a
 * program back has changed for two seconds, its waiting threads are let through one pass at a time.
 * The same if the program's own work in flight does not end, because that may wait for what the
 * program is about to submit.
 *
 * A mapping is never removed, only replaced by another at the same address, so threads read it
 * without a lock.
 */
#define _GNU_SOURCE
#include "gate/telling.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define HEEDED_MOST 64               /* as many as the daemon hands out */
#define PAGE 4096
#define BOUND_US 2000000             /* without a change of a word */
#define SLOWLY_US 50000              /* between two passes after that */
#define LOOK_LEAST_US 50
#define LOOK_MOST_US 1000
#define LOOKS 32

/* Indexed by client. The page is NULL for a client without a word. */
static struct own {
    _Atomic(struct nvshare_word *) word;
    void *at;
    bool armed;                      /* the next launch must count */
    uint64_t noted;                  /* `begun` when GATE_TELLING was set */
} own[CLIENTS_MAX];

static struct heeded {
    _Atomic(const struct nvshare_word *) word;     /* NULL: the entry is free */
    void *at;
    struct client *_Atomic client;   /* the background client that heeds it */
    uint64_t number;
    uint64_t begun, done, since;     /* last values, and since when they are unchanged */
} heeded[HEEDED_MOST];
static _Atomic unsigned places;      /* entries that were ever used */
static _Atomic unsigned heeding;     /* entries in use */

static _Atomic bool held;            /* a thread waits because of a word, at the last check */
static uint64_t held_since, let_on;
static _Atomic unsigned allowed;     /* passes allowed in spite of the words */

static bool differs(const struct nvshare_word *word)
{
    uint64_t done = __atomic_load_n(&word->done, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&word->begun, __ATOMIC_SEQ_CST) != done;
}

static void wake(struct client *client)
{
    int before = errno;
    client_wake(client);
    errno = before;
}

static void count(void)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct nvshare_word *word = atomic_load(&own[i].word);
        if (word == NULL)
            continue;
        uint64_t before = __atomic_fetch_add(&word->begun, 1, __ATOMIC_SEQ_CST);
        if (before == __atomic_load_n(&word->done, __ATOMIC_SEQ_CST))
            wake(clients[i]);        /* it was idle, and its service thread may be asleep */
    }
}

static struct heeded *holder(void)
{
    unsigned all = atomic_load(&places);
    for (unsigned i = 0; i < all; i++) {
        const struct nvshare_word *word = atomic_load(&heeded[i].word);
        if (word != NULL && differs(word))
            return &heeded[i];
    }
    return NULL;
}

static bool holds(void)
{
    struct heeded *who = holder();
    if (who == NULL || atomic_load(&allowed) > 0)
        return false;
    if (!atomic_exchange(&held, true))
        wake(atomic_load(&who->client));
    return true;
}

static bool may_pass(void)
{
    while (!holds()) {
        unsigned left = atomic_load(&allowed);
        if (left == 0 || holder() == NULL)
            return true;
        if (atomic_compare_exchange_strong(&allowed, &left, left - 1))
            return true;
    }
    return false;
}

static void must_tell(void)
{
    static const struct gate_telling ours = {
        .count = count, .may_pass = may_pass, .holds = holds,
    };
    gate_telling = &ours;
    gate_close(GATE_TELLING);
}

static void need_not_tell(void)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (own[i].armed)
            return;
    if (heeding == 0 && (atomic_load(&gate_closed) & GATE_TELLING) != 0)
        gate_open(GATE_TELLING);
}

static void *map(void *at, int descriptor, int protection)
{
    void *mapped = mmap(at, PAGE, protection, MAP_SHARED | (at != NULL ? MAP_FIXED : 0),
                        descriptor, 0);
    if (mapped != MAP_FAILED)
        return mapped;
    debug("a page to tell others by cannot be mapped: %s", error_text(errno));
    return NULL;
}

void telling_keep(struct client *client, int descriptor)
{
    struct own *mine = &own[client->index];
    atomic_store(&mine->word, NULL);
    mine->armed = false;
    void *at = descriptor < 0 ? NULL : map(mine->at, descriptor, PROT_READ | PROT_WRITE);
    if (at != NULL) {
        struct nvshare_word *word = mine->at = at;
        /* Counts the work that was submitted before the word was published. */
        __atomic_fetch_add(&word->begun, 1, __ATOMIC_SEQ_CST);
        atomic_store(&mine->word, word);
    }
    need_not_tell();
}

bool telling_busy(const struct client *client)
{
    const struct nvshare_word *word = atomic_load(&own[client->index].word);
    return word != NULL && differs(word);
}

void telling_goes_on(struct client *client)
{
    struct own *mine = &own[client->index];
    __atomic_fetch_add(&atomic_load(&mine->word)->begun, 1, __ATOMIC_SEQ_CST);
    if (mine->armed) {
        mine->armed = false;
        need_not_tell();
    }
}

bool telling_arm(struct client *client, uint64_t passes)
{
    struct own *mine = &own[client->index];
    if (!gate_empty())
        return false;
    mine->armed = true;
    must_tell();
    mine->noted = __atomic_load_n(&atomic_load(&mine->word)->begun, __ATOMIC_SEQ_CST);
    if (gate_empty() && gate_passes() == passes)
        return true;
    telling_goes_on(client);
    return false;
}

bool telling_clear(struct client *client)
{
    struct own *mine = &own[client->index];
    struct nvshare_word *word = atomic_load(&mine->word);
    __atomic_store_n(&word->done, mine->noted, __ATOMIC_SEQ_CST);
    /* A thread that counted before found work in flight, and woke no service thread. */
    return !differs(word);
}

static struct heeded *find(const struct client *client, uint64_t number)
{
    for (unsigned i = 0; i < HEEDED_MOST; i++)
        if (atomic_load(&heeded[i].word) != NULL && heeded[i].number == number
            && atomic_load(&heeded[i].client) == client)
            return &heeded[i];
    return NULL;
}

static struct heeded *free_place(void)
{
    for (unsigned i = 0; i < HEEDED_MOST; i++)
        if (atomic_load(&heeded[i].word) == NULL)
            return &heeded[i];
    return NULL;
}

/* Drops a word; waiting threads look again, because they need not wait for it any more. */
static void drop(struct heeded *one)
{
    atomic_store(&one->word, NULL);
    heeding--;
    need_not_tell();
    gate_look_again();
}

void telling_heed(struct client *client, uint64_t number, int descriptor)
{
    struct heeded *one = find(client, number);
    if (one != NULL)
        drop(one);
    if (descriptor < 0 || (one = free_place()) == NULL)
        return;
    void *at = map(one->at, descriptor, PROT_READ);
    if (at == NULL)
        return;
    one->at = at;
    one->number = number;
    one->begun = one->done = one->since = 0;
    atomic_store(&one->client, client);
    atomic_store(&one->word, at);
    heeding++;
    unsigned place = (unsigned)(one - heeded);
    if (place >= atomic_load(&places))
        atomic_store(&places, place + 1);
    must_tell();
}

void telling_forget(struct client *client)
{
    for (unsigned i = 0; i < HEEDED_MOST; i++)
        if (atomic_load(&heeded[i].word) != NULL && atomic_load(&heeded[i].client) == client)
            drop(&heeded[i]);
    if (atomic_load(&own[client->index].word) != NULL)
        telling_keep(client, -1);
}

bool telling_heeds(void)
{
    return heeding > 0;
}

bool telling_urgent_works(void)
{
    return holder() != NULL;
}

/* Whether any word that holds this program back has changed recently. */
static bool any_moves(uint64_t now)
{
    bool moves = false;
    for (unsigned i = 0; i < HEEDED_MOST; i++) {
        struct heeded *one = &heeded[i];
        const struct nvshare_word *word = atomic_load(&one->word);
        if (word == NULL || !differs(word))
            continue;
        uint64_t begun = __atomic_load_n(&word->begun, __ATOMIC_SEQ_CST);
        uint64_t done = __atomic_load_n(&word->done, __ATOMIC_SEQ_CST);
        if (one->since == 0 || begun != one->begun || done != one->done)
            one->begun = begun, one->done = done, one->since = now;
        moves = moves || now - one->since < BOUND_US;
    }
    return moves;
}

uint64_t telling_look(uint64_t now, bool stalled)
{
    if (!atomic_load(&held)) {
        held_since = 0;
        return 0;
    }
    if (holder() == NULL) {
        held_since = 0;
        atomic_store(&allowed, 0);
        atomic_store(&held, false);
        gate_look_again();
        return 0;
    }
    if (held_since == 0)
        held_since = now;
    if ((!any_moves(now) || stalled) && now - let_on >= SLOWLY_US) {
        let_on = now;
        atomic_store(&allowed, 1);
        gate_look_again();
    }
    uint64_t next = (now - held_since) / LOOKS;
    return next < LOOK_LEAST_US ? LOOK_LEAST_US : next > LOOK_MOST_US ? LOOK_MOST_US : next;
}
