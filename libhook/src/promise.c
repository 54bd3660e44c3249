/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon has promised: how much a program may have in all, on the card
 * and beyond it. Asking for more takes a message and its answer, so the daemon
 * promises ahead, and most allocations ask nobody.
 *
 * What is to be pinned is asked for each time, and the daemon counts what it has granted
 * as pinned already. When it may stop to, and count what is pinned by the figures, these
 * do not tell: another thread may have freed as much meanwhile. So each record says up
 * to which question nobody is about to take anything any more.
 */
#include <pthread.h>

#include "bell.h"
#include "client_state.h"

/* Of this thread: its client, and its place among the open questions of that, if it got one. */
static __thread struct { struct client *client; uint64_t *place; } asked;

static void sum_up(struct client *client)
{
    if (client->unlisted > 0)
        return;                      /* one that is not there may be the oldest */
    client->settled = client->question;
    for (size_t i = 0; i < QUESTIONS_OPEN; i++)
        if (client->open[i] != 0 && client->open[i] <= client->settled)
            client->settled = client->open[i] - 1;
}

void client_settle(void)
{
    struct client *client = asked.client;
    if (client == NULL)
        return;
    if (asked.place != NULL)
        *asked.place = 0;
    else
        client->unlisted--;
    asked.client = NULL;
    sum_up(client);
    client_changed(client);
}

/* The next question is this thread's, and if it asked one before, that is void. */
static void open_question(struct client *client)
{
    if (asked.client == NULL) {
        asked.client = client;
        asked.place = NULL;
        for (size_t i = 0; i < QUESTIONS_OPEN && asked.place == NULL; i++)
            if (client->open[i] == 0)
                asked.place = &client->open[i];
        client->unlisted += asked.place == NULL;
    }
    if (asked.place != NULL)
        *asked.place = client->question + 1;
    sum_up(client);
}

bool client_commit(struct client *client, uint64_t bytes)
{
    return client_commit_pinned(client, bytes, 0);
}

/* True: client->answer is the answer to this very question. Lock held,
 * released while waiting for it. */
static bool ask(struct client *client, unsigned type, uint64_t bytes, uint64_t host)
{
    uint64_t question = ++client->question;
    unsigned introduced = client->introduced;
    client_question(client, type, question, bytes, host);
    while (client->socket >= 0 && client->introduced == introduced
           && client->answered < question) {
        uint32_t heard = atomic_load(&client->heard);
        pthread_mutex_unlock(&memory_lock);
        bell_sleep(&client->heard, heard, NULL);
        pthread_mutex_lock(&memory_lock);
    }
    return client->socket >= 0 && client->introduced == introduced
           && client->answered == question;
}

bool client_go_beyond(struct client *client, uint64_t bytes)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool settled = false, granted = false;
    while (!settled && bytes <= client->limits.beyond
           && client->beyond <= client->limits.beyond - bytes) {
        /* It counts while it is asked for: what is sent meanwhile says so too. */
        uint64_t wanted = client->beyond += bytes;
        /* Without a daemon to ask, as far as it last said. */
        bool alone = client->socket < 0, answered = !alone && ask(client, NVSHARE_BEYOND, 0, wanted);
        settled = alone || answered;
        granted = alone || (answered && client->answer.beyond >= wanted);
        if (!granted)
            client->beyond -= bytes;
    }
    pthread_setcancelstate(cancel, NULL);
    return granted;
}

bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins)
{
    const struct nvshare_memory *memory = &client->memory;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool granted, allowed = pins == 0;
    if (pins > 0)
        client_settle();             /* a signal handler jumped over that */
    for (;;) {
        uint64_t wanted = memory->allocated + memory->pinned + memory->pending + bytes;
        granted = allowed && wanted <= client->limits.commit;
        if (granted)
            break;
        /* What the program has freed counts for nothing that it asks for. */
        uint64_t most = pins == 0 ? client->limits.commit : 0;
        if (wanted > most && spares_drop(client, wanted - most))
            continue;
        if (client->socket < 0) {
            /* No daemon to ask: as far as it last said we could go. */
            granted = wanted <= client->limits.most;
            if (!granted && pools_yield(client, true))
                continue;
            break;
        }
        if (pins > 0)
            open_question(client);
        bool ours = ask(client, NVSHARE_COMMIT, wanted, pins);
        /* Refused by the answer to this very question. Less than was granted
         * may apply again by now, and another thread's later question may have
         * been answered: then ask again. */
        if (ours && client->answer.commit < wanted && !spares_drop(client, SPARES_ALL)
            && !pools_yield(client, true))
            break;
        allowed = pins == 0 || (ours && client->answer.commit >= wanted);
    }
    if (pins > 0 && !granted)
        client_settle();
    pthread_setcancelstate(cancel, NULL);
    return granted;
}
