/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts memory that cannot be swapped. If the client has room, the bytes are counted before the
 * driver's call and the thread does not wait at the gate: work in flight may wait for this thread.
 * Otherwise the request is added to `pending`, a part of the client's need: the gate does not open
 * before there is room, which no other client can take while the thread is inside. Programs often
 * destroy a context instead of its objects, so the end of a context ends the count of its objects.
 */
#include "memory/pinned.h"

#include <stdlib.h>

#include "driver/log.h"
#include "driver/ring.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"

/* Bytes that room_begin() requests first, and the factor for each further request: the driver needs
 * a few MiB for code but gigabytes for stacks. */
#define ROOM_FIRST ((size_t)64 << 20)
#define ROOM_GROWS 4
#define ROOM_PART 8                  /* the largest request is the card's size divided by this */

/* The memory granted to this thread's last pinned_begin(); `client` NULL after pinned_end(). */
static __thread struct request {
    struct client *client;
    CUcontext context;               /* its end frees the memory; NULL: the memory has no context */
    size_t bytes;
    bool inside;                     /* in the gate: pending includes `bytes`; else pinned does */
    uintptr_t frame;                 /* deeper than that of the call that made it */
} request;

static uint64_t *counter_of(struct client *client)
{
    return request.inside ? &client->memory.pending : &client->memory.pinned;
}

/* Gives back the bytes granted to this thread's request. memory_lock is held. */
static void withdraw_request(void)
{
    *counter_of(request.client) -= request.bytes;
    request.client = NULL;
}

/* The thread jumps to a frame with this stack pointer, or ends. */
static void leave_request(uintptr_t stack)
{
    struct client *client = request.client;
    if (client == NULL || request.frame >= stack || leave_is_forked())
        return;
    LOCKED(memory_lock);
    withdraw_request();
    client_update(client);
}

static CUresult begin(struct client *client, CUcontext context, size_t bytes, bool submits,
                      uint64_t until)
{
    if (client == NULL)
        return CUDA_SUCCESS;
    leave_request(UINTPTR_MAX);      /* of a call that an exception has left */
    leave_calls(leave_request);
    mutex_lock(&memory_lock);
    bool granted = client_commit_pinned(client, bytes, bytes, until);
    if (granted) {
        bool inside = submits || client_free_room(client) < bytes;
        request = (struct request){ client, context, bytes, inside,
                                    (uintptr_t)__builtin_frame_address(0) };
        *counter_of(client) += bytes;
        client_settle();
        client_update(client);
    }
    mutex_unlock(&memory_lock);
    if (granted && request.inside)
        gate_enter(GATE_NO_STREAM);
    return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult begin_here(size_t bytes, uint64_t until)
{
    struct client *client = client_current();
    CUcontext context = NULL;
    if (client != NULL && contexts_current(&context) != CUDA_SUCCESS)
        context = NULL;
    return begin(client, context, bytes, false, until);
}

CUresult pinned_begin(size_t bytes)
{
    return begin_here(bytes, client_patience_ends());
}

bool room_begin(struct room *room)
{
    struct client *client = client_current();
    if (client == NULL)
        return false;
    mutex_lock(&memory_lock);
    uint64_t most = client->limits.total / ROOM_PART;
    bool below_most = room->bytes < most;
    if (room->bytes == 0)
        room->until = client_patience_ends();
    room->bytes = room->bytes == 0 ? ROOM_FIRST : ROOM_GROWS * room->bytes;
    if (room->bytes > most)
        room->bytes = most;
    reclaim(client, RECLAIM_ALL, room->until);
    mutex_unlock(&memory_lock);
    debug("the driver is out of memory: asking for %zu MiB of room", room->bytes >> 20);
    return below_most && begin_here(room->bytes, room->until) == CUDA_SUCCESS;
}

CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits)
{
    return begin(client_none() ? NULL : client_on(device), NULL, bytes, submits, client_patience_ends());
}

bool pinned_counts_on(CUdevice device)
{
    return client_on(device) != NULL;
}

void pinned_end(size_t bytes_taken)
{
    struct client *client = request.client;
    if (client == NULL)
        return;
    mutex_lock(&memory_lock);
    withdraw_request();
    client->memory.pinned += bytes_taken;
    client_update(client);
    mutex_unlock(&memory_lock);
    if (request.inside)
        gate_leave();
}

static void count_less(struct client *client, size_t bytes)
{
    client->memory.pinned -= bytes < client->memory.pinned ? bytes : client->memory.pinned;
    client_update(client);
}

void pinned_release_on(CUdevice device, size_t bytes)
{
    struct client *client = client_on(device);
    if (client == NULL || locked_here(&memory_lock))
        return;
    LOCKED(memory_lock);
    count_less(client, bytes);
}

/* Memory that counts until the last of its keys is forgotten. */
struct counted {
    size_t bytes;
    struct client *client;
    CUcontext context;               /* its end frees the memory; NULL: the memory has no context */
    unsigned keys;
};

struct entry {
    uint64_t key;
    size_t size;                     /* bytes, as given with the key */
    struct counted *counted;
    struct entry *next;
};

#define BUCKETS 1024
static struct entry *buckets[BUCKETS];             /* protected by memory_lock */

static struct entry **bucket_of(uint64_t key)
{
    return &buckets[key * 0x9E3779B97F4A7C15u >> 54];
}

static void add_key(uint64_t key, size_t size, struct counted *counted)
{
    struct entry *entry = malloc(sizeof *entry);
    counted->keys++;
    if (entry == NULL)
        return;                      /* out of memory: the object counts until the process ends */
    *entry = (struct entry){ key, size, counted, *bucket_of(key) };
    *bucket_of(key) = entry;
}

void pinned_remember(uint64_t key, size_t bytes)
{
    struct counted *counted = request.client == NULL ? NULL : malloc(sizeof *counted);
    if (counted == NULL)
        return;
    *counted = (struct counted){ bytes, request.client, request.context, 0 };
    LOCKED(memory_lock);
    add_key(key, bytes, counted);
}

void pinned_refer(uint64_t key, size_t size, uint64_t known)
{
    LOCKED_OR_RETURN();
    const struct entry *entry = *bucket_of(known);
    while (entry != NULL && entry->key != known)
        entry = entry->next;
    if (entry != NULL)
        add_key(key, size, entry->counted);
}

static void drop(struct entry *entry)
{
    struct counted *counted = entry->counted;
    LIST_REMOVE(*bucket_of(entry->key), entry);
    if (--counted->keys == 0) {
        count_less(counted->client, counted->bytes);
        free(counted);
    }
    free(entry);
}

size_t pinned_forget(uint64_t key)
{
    LOCKED_OR_RETURN(0);
    /* Drops the oldest entry: the driver may already have given the key to a new object. */
    struct entry *oldest = NULL;
    for (struct entry *entry = *bucket_of(key); entry != NULL; entry = entry->next)
        if (entry->key == key)
            oldest = entry;
    size_t size = oldest == NULL ? 0 : oldest->size;
    if (oldest != NULL)
        drop(oldest);
    return size;
}

void pinned_context_ends(CUcontext context)
{
    for (unsigned i = 0; i < BUCKETS && context != NULL; i++)
        EACH_LISTED(struct entry, entry, buckets[i])
            if (entry->counted->context == context)
                drop(entry);
}
