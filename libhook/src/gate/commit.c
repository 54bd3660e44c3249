/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the daemon how much memory the program may have in all, on the card and beyond it. The
 * daemon grants ahead, so most allocations need no message.
 *
 * Memory to be pinned is asked for each time, and the daemon counts what it has granted as pinned
 * already. The figures do not tell it when to stop counting so, as another thread may have freed as
 * much meanwhile. So each report says up to which question the answers have been heard, and how
 * much of what they granted is still to be pinned. A grant counts there from the moment its answer
 * is read until the figures contain it, however long its thread takes. Each grant counts by itself,
 * whatever others have pinned and freed meanwhile.
 *
 * A thread may end in between, or a signal handler may jump away, and nobody reports that. So a
 * grant that was not used for long is given up.
 */
#include "gate/commit.h"

#include <string.h>

#include "driver/bell.h"
#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define TAKEN_WITHIN_US 60000000
#define LATE_US 100000               /* for an answer that needs nobody else */
#define RECLAIM_US 2000000           /* for the work that uses freed memory: it may wait for us */

/* What this thread has asked last to pin, and where that was put. */
static __thread struct {
    struct client *client;
    struct open_question *place;
    uint64_t number;
} asked;

/* That question, if it is open still: refused, void or given up it has left its place. */
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

/* The program is out of memory. Its user is told of each limit once. Lock held, released
 * meanwhile, as stderr may be slow. */
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

/* Until something is heard, or NULL or this time has come. Lock held, released meanwhile. */
static void listen_on(struct client *client, const struct timespec *until)
{
    BLOCKED;
    uint32_t heard = atomic_load(&client->heard);
    pthread_mutex_unlock(&memory_lock);
    bell_sleep(&client->heard, heard, until);
    pthread_mutex_lock(&memory_lock);
}

/* The next question is this thread's, in the place of what it asked before. False: there
 * was no place, and it has waited for one. Who has one never waits here, so they come free. */
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

/* True: client->answer is the answer to this very question. Lock held,
 * released while waiting for it. */
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
            client_wake(client);     /* the program's user may want to know: waiting.c */
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
        /* It counts while it is asked for: what is sent meanwhile says so too. */
        uint64_t wanted = client->memory.beyond += bytes;
        /* Without a daemon to ask, as far as it last said. */
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
        client_settle();             /* a signal handler jumped over that */
    for (;;) {
        uint64_t wanted = with_more(client, bytes);
        granted = allowed && wanted <= client->limits.commit;
        if (granted)
            break;
        /* What the program has freed counts for nothing that it asks for. */
        uint64_t most = pins == 0 ? client->limits.commit : 0;
        if (wanted > most && reclaim(client, wanted - most, 0))
            continue;
        if (client->socket < 0) {
            /* No daemon to ask: as far as it last said we could go. */
            granted = wanted <= client->limits.most;
            if (!granted && reclaim(client, RECLAIM_ALL, until))
                continue;
            break;
        }
        if (pins > 0 && !open_question(client, wanted, pins))
            continue;
        bool ours = ask(client, wanted, pins);
        /* Refused by the answer to this very question. Less than was granted may apply again
         * by now, another thread's later question may have been answered, or memory may have
         * been freed since this one was asked: then ask again. */
        if (ours && client->answer.commit < wanted && with_more(client, bytes) >= wanted
            && !reclaim(client, RECLAIM_ALL, until)) {
            explain(client);
            break;
        }
        /* It keeps what it was granted while it slept on, whatever was answered since. */
        const struct open_question *own = own_question();
        allowed = pins == 0 || (own != NULL && own->granted != 0);
    }
    if (pins > 0 && !granted)
        client_settle();
    return granted;
}
