/* SPDX-License-Identifier: Apache-2.0 */
#include "block/host_provision.h"

#include <unistd.h>

#include "block/host_memory.h"
#include "block/host_slabs.h"
#include "block/region.h"
#include "client/client.h"
#include "flight/capture.h"
#include "interpose/own_thread.h"

#define PIECE ((uint64_t)16 << 20)   /* that one thread fills at a time */
#define REGISTERED_AHEAD ((uint64_t)256 << 20)  /* for the order that comes next */
#define REGISTRARS 4                 /* the driver may let in one at a time */

/* The slab to which the threads turn next, of what was mapped for all of them as long as
 * there is any left. NULL: there are enough, or the machine has no more. Lock held. */
static struct host_slab *begin(struct host_provision *provision)
{
    struct client *client = provision->client;
    uint64_t size = host_slab_size(client, PAGE, provision->target);
    if (size == 0)
        return NULL;
    char *memory = NULL;
    if (provision->mapped >= size) {
        provision->mapped -= size;
        memory = provision->memory + provision->mapped;
    }
    struct host_slab *slab = host_slab_new(client, memory, size);
    if (slab != NULL)
        client->memory.host += size;
    return slab;
}

/* Piece by piece, so that all of them work on the slab that is needed first. */
static void *provide(void *argument)
{
    struct host_provision *provision = argument;
    struct client *client = provision->client;
    own_thread_begins("nvshare-host");
    client_thread_is_ours();
    capture_relax();
    bool ready = REAL(cuCtxSetCurrent)(provision->context) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    while (ready && host_register_next(client, provision->wanted + REGISTERED_AHEAD))
        continue;
    while (ready) {
        struct host_slab *slab = provision->slab != NULL ? provision->slab : begin(provision);
        if (slab == NULL)
            break;
        char *piece = slab->memory + slab->begun;
        uint64_t left = slab->size - slab->begun, size = left < PIECE ? left : PIECE;
        slab->begun += size;
        provision->slab = size < left ? slab : NULL;
        pthread_mutex_unlock(&memory_lock);
        host_memory_fill(piece, size);
        pthread_mutex_lock(&memory_lock);
        slab->filled += size;
        if (slab->filled == slab->size)
            ready = host_slab_enlist(client, slab);
    }
    client->providers--;
    pthread_cond_broadcast(&memory_changed);
    pthread_mutex_unlock(&memory_lock);
    return NULL;
}

void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision)
{
    uint64_t useful = host_useful(client), target = allowance < useful ? allowance : useful;
    if (host_free(client) >= provision->wanted)
        target = client->memory.host;
    uint64_t lacking = target > client->memory.host ? target - client->memory.host : 0;
    uint64_t jobs = (lacking + PIECE - 1) / PIECE;
    if (host_registrable(client, provision->wanted + REGISTERED_AHEAD) != NULL)
        jobs += REGISTRARS;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned most = online < 2 ? 1 : online > PROVIDERS_MAX ? PROVIDERS_MAX : (unsigned)online;
    *provision = (struct host_provision){
        .wanted = provision->wanted, .client = client, .context = client->copy_context,
        .target = target,
    };
    lacking = lacking / PAGE * PAGE;
    if (lacking > 0)
        provision->memory = host_memory_map(lacking, client->node);
    if (provision->memory != NULL)
        provision->mapped = lacking;
    while (provision->count < jobs && provision->count < most
           && own_thread_start(&provision->threads[provision->count], provide, provision) == 0) {
        provision->count++;
        client->providers++;
    }
}

void host_provided(struct host_provision *provision)
{
    for (unsigned i = 0; i < provision->count; i++)
        pthread_join(provision->threads[i], NULL);
    if (provision->mapped > 0)
        host_memory_unmap(provision->memory, provision->mapped);
}
