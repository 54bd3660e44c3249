/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the daemon how far the client's memory may grow, resident and swapped together. The daemon
 * grants ahead, so most allocations need no message.
 *
 * Memory to be pinned is requested each time, and the daemon counts a grant as pinned at once. The
 * figures alone cannot tell the daemon when to stop counting it separately, because another thread
 * may have freed as much meanwhile. Each report therefore says up to which COMMIT the answers have
 * been read (`answered`), and how many of the granted bytes are still to be pinned (`to_pin`). A
 * grant is part of that sum from the moment its answer is read until the figures contain it,
 * however long its thread takes, and independently of other threads' pinning and freeing.
 *
 * A thread may end in between, or leave by siglongjmp() from a signal handler, without notice. A
 * grant that is unused for long is therefore given up.
 */
#include "gate/commit.h"

#include <string.h>

#include "driver/bell.h"
#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define GRANT_UNUSED_MOST_US 60000000
#define ANSWER_EXPECTED_US 100000    /* if it depends on no other client */
#define RECLAIM_US 2000000           /* us for work that uses freed memory, and may wait for us */

/* The last pin request of this thread, and its entry. */
static __thread struct {
    struct client *client;
    struct open_commit *entry;
    uint64_t number;
} latest;

/* This thread's entry, if its COMMIT is still open: the entry of a COMMIT that was refused, voided
 * or given up is free or reused. */
static struct open_commit *own_entry(void)
{
    return latest.entry != NULL && latest.entry->number == latest.number ? latest.entry : NULL;
}

static void close_entry(struct client *client, struct open_commit *entry)
{
    *entry = (struct open_commit){ .number = 0 };
    if (client->waits_for_entry)
        bell_ring(&client->commit_bell);
    client->waits_for_entry = false;
    client_changed(client);
}

void client_settle(void)
{
    struct open_commit *entry = own_entry();
    if (entry != NULL)
        close_entry(latest.client, entry);
}

void client_commit_answered(struct client *client, uint64_t number,
                            const struct nvshare_limits *answer)
{
    client->answered_commit = number;
    if (!client->reason_begun)
        client->reason[0] = '\0';
    client->reason_begun = false;
    if (answer != NULL)
        client->commit_answer = *answer;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++) {
        struct open_commit *entry = &client->open_commits[i];
        if (entry->number == 0 || entry->number > number || entry->granted != 0)
            continue;
        if (answer != NULL && entry->number == number && answer->commit >= entry->wanted)
            entry->granted = now_microseconds();
        else
            close_entry(client, entry);
    }
}

void client_append_refusal(struct client *client, const char *text, size_t size)
{
    if (!client->reason_begun)
        client->reason[0] = '\0';
    client->reason_begun = true;
    size_t left = sizeof client->reason - 1 - strlen(client->reason);
    strncat(client->reason, text, size < left ? size : left);
}

/* Prints why the program gets OUT_OF_MEMORY, once for each reason. memory_lock is held,
 * and released meanwhile, because stderr may be slow. */
static void explain(struct client *client)
{
    if (client->reason[0] == '\0' || strcmp(client->reason, client->printed_reason) == 0)
        return;
    memcpy(client->printed_reason, client->reason, sizeof client->printed_reason);
    char reason[REASON_LONGEST];
    memcpy(reason, client->reason, sizeof reason);
    pthread_mutex_unlock(&memory_lock);
    complain("out of GPU memory, as %s", reason);
    pthread_mutex_lock(&memory_lock);
}

uint64_t client_to_pin(const struct client *client)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++)
        if (client->open_commits[i].granted != 0)
            bytes += client->open_commits[i].pins;
    return bytes;
}

int64_t client_expire_grants(struct client *client)
{
    uint64_t now = now_microseconds();
    int64_t left = NEVER;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++) {
        struct open_commit *entry = &client->open_commits[i];
        if (entry->granted == 0)
            continue;
        uint64_t end = entry->granted + GRANT_UNUSED_MOST_US;
        if (end <= now)
            close_entry(client, entry);
        else if ((int64_t)(end - now) < left)
            left = (int64_t)(end - now);
    }
    return left;
}

/* Waits until client->commit_bell changes, or until `until` if not NULL. memory_lock is held, and
 * released meanwhile. */
static void wait_for_answer(struct client *client, const struct timespec *until)
{
    BLOCKED;
    uint32_t heard = atomic_load(&client->commit_bell);
    pthread_mutex_unlock(&memory_lock);
    bell_sleep(&client->commit_bell, heard, until);
    pthread_mutex_lock(&memory_lock);
}

/* Takes an entry for this thread's next COMMIT, or reuses its former entry. False: no entry was
 * free, and the thread has waited for one. A thread that has an entry never waits here, so entries
 * become free. */
static bool take_entry(struct client *client, uint64_t wanted, uint64_t pins)
{
    struct open_commit *entry = own_entry();
    for (size_t i = 0; i < OPEN_COMMITS_MAX && entry == NULL; i++)
        if (client->open_commits[i].number == 0)
            entry = &client->open_commits[i];
    if (entry == NULL) {
        client->waits_for_entry = true;
        wait_for_answer(client, NULL);
        return false;
    }
    latest.client = client;
    latest.entry = entry;
    latest.number = client->last_commit + 1;
    *entry = (struct open_commit){ latest.number, wanted, pins, 0 };
    return true;
}

bool client_commit(struct client *client, uint64_t bytes)
{
    return client_commit_pinned(client, bytes, 0, client_patience_ends());
}

uint64_t client_patience_ends(void)
{
    return now_microseconds() + RECLAIM_US;
}

/* Sends a COMMIT and waits. True: client->commit_answer is its answer. memory_lock is held, and
 * released during the wait. */
static bool ask(struct client *client, uint64_t commit, uint64_t pins)
{
    uint64_t number = ++client->last_commit;
    unsigned introduced = client->introduced;
    client_send(client, (struct nvshare_report){ .type = NVSHARE_COMMIT, .number = number,
                                                 .commit = commit, .pins = pins });
    uint64_t end = now_microseconds() + ANSWER_EXPECTED_US;
    const struct timespec until = { (time_t)(end / 1000000), (long)(end % 1000000 * 1000) };
    bool late = false;
    while (client->socket >= 0 && client->introduced == introduced
           && client->answered_commit < number) {
        if (late)
            client_wake(client);     /* it may report the wait to the user: waiting.c */
        wait_for_answer(client, late ? NULL : &until);
        late = true;
    }
    return client->socket >= 0 && client->introduced == introduced
           && client->answered_commit == number;
}

bool client_go_beyond(struct client *client, uint64_t bytes)
{
    UNCANCELLED;
    bool settled = false, granted = false;
    while (!settled && bytes <= client->limits.beyond
           && client->memory.beyond <= client->limits.beyond - bytes) {
        /* Counted from now on, so that messages sent meanwhile include it. */
        uint64_t wanted = client->memory.beyond += bytes;
        /* Without a daemon, its last limits apply. */
        bool alone = client->socket < 0, answered = !alone && ask(client, 0, 0);
        settled = alone || answered;
        granted = alone || (answered && client->commit_answer.beyond >= wanted);
        if (!granted)
            client->memory.beyond -= bytes;
        if (answered && !granted)
            explain(client);
    }
    return granted;
}

static uint64_t with_more(const struct client *client, uint64_t bytes)
{
    const struct nvshare_memory *memory = &client->memory;
    return memory->allocated + memory->pinned + memory->pending + bytes;
}

bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins, uint64_t until)
{
    UNCANCELLED;
    bool granted, allowed = pins == 0;
    if (pins > 0)
        client_settle();             /* for a thread that a signal handler has jumped away from */
    for (;;) {
        uint64_t wanted = with_more(client, bytes);
        granted = allowed && wanted <= client->limits.commit;
        if (granted)
            break;
        /* Memory that the program has freed does not count when it asks for more. */
        uint64_t most = pins == 0 ? client->limits.commit : 0;
        if (wanted > most && reclaim(client, wanted - most, 0))
            continue;
        if (client->socket < 0) {
            /* Without a daemon, its last limits apply. */
            granted = wanted <= client->limits.most;
            if (!granted && reclaim(client, RECLAIM_ALL, until))
                continue;
            break;
        }
        if (pins > 0 && !take_entry(client, wanted, pins))
            continue;
        bool ours = ask(client, wanted, pins);
        /* The answer to this COMMIT refuses. If less than that grant applies by now (the
         * answer to another thread's later COMMIT), or memory has been freed since, ask again. */
        if (ours && client->commit_answer.commit < wanted && with_more(client, bytes) >= wanted
            && !reclaim(client, RECLAIM_ALL, until)) {
            explain(client);
            break;
        }
        /* The grant stays valid even if later answers differ. */
        const struct open_commit *own = own_entry();
        allowed = pins == 0 || (own != NULL && own->granted != 0);
    }
    if (pins > 0 && !granted)
        client_settle();
    return granted;
}
