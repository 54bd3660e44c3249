/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes host memory for what will have to leave, before it has to. To take it from the kernel takes
 * two to ten times as long as to copy into it, so the first way out of a program was that slow. The
 * daemon knows earlier that programs will not fit together (nvshared/scheduler/provide.py), and the
 * program that has the card goes on meanwhile.
 */
#include "service/providing.h"

#include "block/host_provision.h"

static struct providing {
    uint64_t number;                 /* of the order; 0: it needs no answer */
    struct host_provision provision; /* its client is NULL if nobody is at work */
} providings[CLIENTS_MAX];

void providing_begin(struct client *client, const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    struct providing *providing = &providings[client->index];
    providing->number = order->number;
    /* The threads of one that was forgotten may be at their last slab: then this one makes none. */
    if (providing->provision.client == NULL)
        host_provide_early(client, order->host, &providing->provision);
}

/* `cut`: before all is made. */
static void end(struct client *client, bool cut)
{
    struct providing *providing = &providings[client->index];
    pthread_mutex_lock(&memory_lock);
    bool none = providing->provision.client == NULL;
    host_provide_no_more(&providing->provision);
    pthread_mutex_unlock(&memory_lock);
    if (none)
        return;
    host_provided(&providing->provision);
    LOCKED(memory_lock);
    providing->provision.client = NULL;
    if (providing->number != 0)
        client_send(client, (struct nvshare_report){
            .type = NVSHARE_MOVED, .flags = cut ? NVSHARE_YIELDED : 0, .number = providing->number,
        });
    providing->number = 0;
}

void providing_look(struct client *client)
{
    pthread_mutex_lock(&memory_lock);
    bool done = client->providers == 0;
    pthread_mutex_unlock(&memory_lock);
    if (done)
        end(client, false);
}

void providing_end(struct client *client)
{
    end(client, true);
}

void providing_forget(struct client *client)
{
    providings[client->index].number = 0;
    host_provide_no_more(&providings[client->index].provision);
}
