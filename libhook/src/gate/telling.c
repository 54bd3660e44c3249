/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program in the background submits nothing while one of higher priority has work under way on
 * the same card. They tell each other through shared memory, as a word from the daemon would come
 * too late.
 *
 * Each urgent program has a page with its word: how often work has begun, and up to which of those
 * times it is done. It alone can write there. Those in the background map it read-only, and read
 * it whenever they pass the gate. The daemon hands the pages out, so it says whose words count:
 * nobody is held up by one whose priority is not above his own. It hands them out only while
 * somebody in the background holds the card. Then the gate's word has GATE_TELLING, and passes take
 * the slow side of the gate; nobody else's do.
 *
 * Counting. The first launch after a pause adds one to `begun`, with a full fence, before it looks
 * at anything else. From then on the word says that work is under way, and the launches after it
 * need not say so again: the service thread takes GATE_TELLING away, and the gate costs them what
 * it always does. It adds one itself now and then while they go on. When nothing has passed for a
 * moment and all seems done (flight/activity.c), the service thread puts GATE_TELLING back, as
 * exactly as it closes the gate (gate.c); notes `begun`; and looks whether anybody is
 * inside or has passed. If not, it waits once more for all that was submitted, and writes what it
 * noted to `done`. A launch that comes meanwhile either was seen so, or finds GATE_TELLING and
 * counts after what was noted: then the two differ, whatever is written to `done`. So no count is
 * ever erased. A thread that stood at the gate counts again when it goes on, as its first count may
 * have been cleared while it stood outside.
 *
 * Heeding. Who passes in the background is inside first, then reads the words. If one says that
 * work is under way, he waits outside, and the service thread looks again every so often, never
 * more often than 32 times in the time that it lasts. What he submitted before is at most about a
 * millisecond of work (flight/pace.c). So much an urgent launch may have to wait.
 *
 * Who holds others up for ever. A word whose client is gone counts no longer: the daemon says so,
 * and where there is no daemon nobody is heeded. A word may also stay as it is because its program
 * was stopped, its kernel never ends or it waits for the one that it holds up. So when no word that
 * holds him has changed for two seconds, who waits is let on all the same, one pass at a time. The
 * same if what he has in flight does not end, which may wait for what he is about to submit.
 *
 * A mapping is never taken away, only replaced by another at the same address. So threads read it
 * with no lock.
 */
#define _GNU_SOURCE
#include "gate/telling.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define HEEDED_MOST 64               /* as many as the daemon names */
#define PAGE 4096
#define BOUND_US 2000000             /* without a change */
#define SLOWLY_US 50000              /* between two passes then */
#define LOOK_LEAST_US 50
#define LOOK_MOST_US 1000
#define LOOKS 32

/* By client. The page is NULL where it keeps no word. */
static struct own {
    _Atomic(struct nvshare_word *) word;
    void *at;
    bool armed;                      /* the next launch must count */
    uint64_t noted;                  /* `begun`, when it was */
} own[CLIENTS_MAX];

static struct heeded {
    _Atomic(const struct nvshare_word *) word;     /* NULL: the place is free */
    void *at;
    struct client *_Atomic client;   /* that heeds it */
    uint64_t number;
    uint64_t begun, done, since;     /* as last seen, and since when */
} heeded[HEEDED_MOST];
static _Atomic unsigned places;      /* of these, those that were ever used */
static _Atomic unsigned heeding;     /* and those in use */

static _Atomic bool held;            /* somebody waits for a word, as far as we know */
static uint64_t held_since, let_on;
static _Atomic unsigned allowed;     /* passes, all the same */

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
            wake(clients[i]);        /* it was idle, and its service thread may sleep */
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
        /* What was submitted before it knew. */
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
    /* Who counted before that found work under way, and woke nobody. */
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

/* Who waits looks again: for this word he need not. */
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

/* Whether any word that holds has changed of late. */
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
