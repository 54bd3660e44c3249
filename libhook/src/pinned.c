/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be swapped: counted, and taken only where there is room.
 * A thread that wants some adds its wish to `pending`, which is part of the
 * client's need; so the gate does not open before the room is there, and once
 * the thread is inside the room cannot be taken away.
 */
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "client.h"
#include "client_state.h"
#include "gate.h"

/* What pinned_begin() promised to this thread. */
static __thread struct { struct client *client; size_t bytes; } wish;

static CUresult promised(struct client *client, size_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    if (wish.client != NULL) {
        /* A signal handler jumped over the call that wished it. */
        wish.client->memory.pending -= wish.bytes;
        client_update(wish.client);
        wish.client = NULL;
    }
    if (!client_commit_pinned(client, bytes, bytes)) {
        pthread_mutex_unlock(&memory_lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    client->memory.pending += bytes;
    client_settle();
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

static CUresult begin(struct client *client, size_t bytes)
{
    if (client == NULL)
        return CUDA_SUCCESS;
    CUresult result = promised(client, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    wish.client = client;
    wish.bytes = bytes;
    gate_enter(GATE_NO_STREAM);
    return CUDA_SUCCESS;
}

CUresult pinned_begin(size_t bytes)
{
    return begin(client_current(), bytes);
}

CUresult pinned_begin_on(CUdevice device, size_t bytes)
{
    bool known = !client_none() && device >= 0 && device < CLIENTS_MAX;
    return begin(known ? __atomic_load_n(&clients[device], __ATOMIC_ACQUIRE) : NULL, bytes);
}

void pinned_end(size_t bytes_taken)
{
    struct client *client = wish.client;
    if (client == NULL)
        return;
    pthread_mutex_lock(&memory_lock);
    client->memory.pending -= wish.bytes;
    client->memory.pinned += bytes_taken;
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
    wish.client = NULL;
    gate_leave();
}

static void count_less(struct client *client, size_t bytes)
{
    client->memory.pinned -= bytes < client->memory.pinned ? bytes : client->memory.pinned;
    client_update(client);
}

void pinned_release(size_t bytes)
{
    struct client *client = client_current();
    if (client == NULL)
        return;
    pthread_mutex_lock(&memory_lock);
    count_less(client, bytes);
    pthread_mutex_unlock(&memory_lock);
}

struct remembered {
    uint64_t key;
    size_t bytes;
    struct client *client;
    struct remembered *next;
};

#define BUCKETS 1024
static struct remembered *buckets[BUCKETS];        /* protected by memory_lock */

static struct remembered **bucket_of(uint64_t key)
{
    return &buckets[key * 0x9E3779B97F4A7C15u >> 54];
}

void pinned_remember(uint64_t key, size_t bytes)
{
    struct client *client = wish.client;
    struct remembered *entry = client == NULL ? NULL : malloc(sizeof *entry);
    if (entry == NULL)
        return;                      /* stays counted until the process ends */
    pthread_mutex_lock(&memory_lock);
    struct remembered **bucket = bucket_of(key);
    *entry = (struct remembered){ key, bytes, client, *bucket };
    *bucket = entry;
    pthread_mutex_unlock(&memory_lock);
}

void pinned_forget(uint64_t key)
{
    if (client_none())
        return;
    pthread_mutex_lock(&memory_lock);
    /* The oldest: the driver may have handed the same key out again before we
     * are told that the first object is gone. */
    struct remembered **oldest = NULL;
    for (struct remembered **link = bucket_of(key); *link != NULL; link = &(*link)->next)
        if ((*link)->key == key)
            oldest = link;
    if (oldest != NULL) {
        struct remembered *entry = *oldest;
        *oldest = entry->next;
        count_less(entry->client, entry->bytes);
        free(entry);
    }
    pthread_mutex_unlock(&memory_lock);
}
