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
 * however long its thread takes, whatever other threads pin and free meanwhile.
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

#define TAKEN_WITHIN_US 60000000
#define LATE_US 100000               /* us to wait for an answer that depends on no other client */
#define RECLAIM_US 2000000           /* us for work that uses freed memory, and may wait for us */

/* The last pin request of this thread, and its entry. */
static __thread struct {
    struct client *client;
    struct open_question *place;
    uint64_t number;
} asked;

/* This thread's entry, if its COMMIT is still open: the entry of a COMMIT that was refused, voided
 * or given up is free or reused. */
static struct open_question *own_question(void)
{
    return asked.place != NULL && asked.place->number == asked.number ? asked.place : NULL;
}

static void close_question(struct client *client, struct open_question *question)
{
    *question = (struct open_question){ .number = 0 };
    if (client->crowded)
        bell_ring(&client->heard);
    client->crowded = false;
    client_changed(client);
}

void client_settle(void)
{
    struct open_question *question = own_question();
    if (question != NULL)
        close_question(asked.client, question);
}

void client_hears(struct client *client, uint64_t number, const struct nvshare_limits *answer)
{
    client->answered = number;
    if (!client->reason_begun)
        client->reason[0] = '\0';
    client->reason_begun = false;
    if (answer != NULL)
        client->answer = *answer;
    for (size_t i = 0; i < QUESTIONS_OPEN; i++) {
        struct open_question *question = &client->open[i];
        if (question->number == 0 || question->number > number || question->granted != 0)
            continue;
        if (answer != NULL && question->number == number && answer->commit >= question->wanted)
            question->granted = now_microseconds();
        else
            close_question(client, question);
    }
}

void client_hears_reason(struct client *client, const char *text, size_t size)
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
    if (client->reason[0] == '\0' || strcmp(client->reason, client->explained) == 0)
        return;
    memcpy(client->explained, client->reason, sizeof client->explained);
    char reason[REASON_LONGEST];
    memcpy(reason, client->reason, sizeof reason);
    pthread_mutex_unlock(&memory_lock);
    complain("out of GPU memory, as %s", reason);
    pthread_mutex_lock(&memory_lock);
}

uint64_t client_to_pin(const struct client *client)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < QUESTIONS_OPEN; i++)
        if (client->open[i].granted != 0)
            bytes += client->open[i].pins;
    return bytes;
}

int64_t client_give_up(struct client *client)
{
    uint64_t now = now_microseconds();
    int64_t left = NEVER;
    for (size_t i = 0; i < QUESTIONS_OPEN; i++) {
        struct open_question *question = &client->open[i];
        if (question->granted == 0)
            continue;
        uint64_t end = question->granted + TAKEN_WITHIN_US;
        if (end <= now)
            close_question(client, question);
        else if ((int64_t)(end - now) < left)
            left = (int64_t)(end - now);
    }
    return left;
}

/* Waits until client->heard changes, or until `until` if not NULL. memory_lock is held, and
 * released meanwhile. */
static void listen_on(struct client *client, const struct timespec *until)
{
    BLOCKED;
    uint32_t heard = atomic_load(&client->heard);
    pthread_mutex_unlock(&memory_lock);
    bell_sleep(&client->heard, heard, until);
    pthread_mutex_lock(&memory_lock);
}

/* Takes an entry for this thread's next COMMIT, or reuses its former entry. False: no entry was
 * free, and the thread has waited for one. A thread that has an entry never waits here, so entries
 * become free. */
static bool open_question(struct client *client, uint64_t wanted, uint64_t pins)
{
    struct open_question *place = own_question();
    for (size_t i = 0; i < QUESTIONS_OPEN && place == NULL; i++)
        if (client->open[i].number == 0)
            place = &client->open[i];
    if (place == NULL) {
        client->crowded = true;
        listen_on(client, NULL);
        return false;
    }
    asked.client = client;
    asked.place = place;
    asked.number = client->question + 1;
    *place = (struct open_question){ asked.number, wanted, pins, 0 };
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

/* Sends a COMMIT and waits. True: client->answer is its answer. memory_lock is held, and released
 * during the wait. */
static bool ask(struct client *client, uint64_t commit, uint64_t pins)
{
    uint64_t question = ++client->question;
    unsigned introduced = client->introduced;
    client_send(client, (struct nvshare_report){ .type = NVSHARE_COMMIT, .number = question,
                                                 .commit = commit, .pins = pins });
    uint64_t end = now_microseconds() + LATE_US;
    const struct timespec until = { (time_t)(end / 1000000), (long)(end % 1000000 * 1000) };
    bool late = false;
    while (client->socket >= 0 && client->introduced == introduced
           && client->answered < question) {
        if (late)
            client_wake(client);     /* it may report the wait to the user: waiting.c */
        listen_on(client, late ? NULL : &until);
        late = true;
    }
    return client->socket >= 0 && client->introduced == introduced
           && client->answered == question;
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
        granted = alone || (answered && client->answer.beyond >= wanted);
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
        if (pins > 0 && !open_question(client, wanted, pins))
            continue;
        bool ours = ask(client, wanted, pins);
        /* The answer to this COMMIT refuses. If less than that grant applies by now (the
         * answer to another thread's later COMMIT), or memory has been freed since, ask again. */
        if (ours && client->answer.commit < wanted && with_more(client, bytes) >= wanted
            && !reclaim(client, RECLAIM_ALL, until)) {
            explain(client);
            break;
        }
        /* The grant stays valid even if later answers differ. */
        const struct open_question *own = own_question();
        allowed = pins == 0 || (own != NULL && own->granted != 0);
    }
    if (pins > 0 && !granted)
        client_settle();
    return granted;
}
