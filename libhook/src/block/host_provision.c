/* SPDX-License-Identifier: Apache-2.0 */
#include "block/host_provision.h"

#include <unistd.h>

#include "block/host_memory.h"
#include "block/host_slabs.h"
#include "block/region.h"
#include "client/client.h"
#include "flight/capture.h"

#define PIECE ((uint64_t)16 << 20)   /* that one thread fills at a time; */
#define EARLY_PIECE ((uint64_t)4 << 20)  /* meanwhile the program's own mappings may have to wait */
#define EARLY_PART 4                 /* of the processors; the others are the program's */
#define REGISTERED_AHEAD ((uint64_t)256 << 20)   /* for the order that comes next */
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

static uint64_t piece_size(const struct host_provision *provision)
{
    return provision->early ? EARLY_PIECE : PIECE;
}

/* Piece by piece, so that all of them work on the slab that is needed first. Lock held, released
 * meanwhile. */
static void make(struct host_provision *provision)
{
    struct client *client = provision->client;
    bool well = true;
    while (well) {
        struct host_slab *slab = provision->slab != NULL ? provision->slab : begin(provision);
        if (slab == NULL)
            break;
        char *piece = slab->memory + slab->begun;
        uint64_t left = slab->size - slab->begun, most = piece_size(provision);
        uint64_t size = left < most ? left : most;
        slab->begun += size;
        provision->slab = size < left ? slab : NULL;
        pthread_mutex_unlock(&memory_lock);
        host_memory_fill(piece, size);
        pthread_mutex_lock(&memory_lock);
        slab->filled += size;
        if (slab->filled < slab->size)
            continue;
        if (provision->early)
            host_slab_add(client, slab);
        else
            well = host_slab_enlist(client, slab);
    }
}

static void *provide(void *argument)
{
    struct host_provision *provision = argument;
    struct client *client = provision->client;
    bool ready = provision->early;
    if (!ready) {
        capture_relax();
        ready = REAL(cuCtxSetCurrent)(provision->context) == CUDA_SUCCESS;
    }
    pthread_mutex_lock(&memory_lock);
    while (ready && !provision->early
           && host_register_next(client, provision->wanted + REGISTERED_AHEAD))
        continue;
    if (ready)
        make(provision);
    if (--client->providers == 0 && provision->early)
        client_wake(client);
    pthread_cond_broadcast(&memory_changed);
    pthread_mutex_unlock(&memory_lock);
    return NULL;
}

static unsigned threads_most(bool early)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    long most = early ? online / EARLY_PART : online;
    return most < 2 ? 1 : most > PROVIDERS_MAX ? PROVIDERS_MAX : (unsigned)most;
}

static void begin_all(struct client *client, uint64_t allowance, bool early,
                      struct host_provision *provision)
{
    uint64_t useful = host_useful(client), target = allowance < useful ? allowance : useful;
    uint64_t wanted = provision->wanted;
    if (!early && host_free(client) >= wanted)
        target = client->memory.host;
    uint64_t lacking = target > client->memory.host ? target - client->memory.host : 0;
    unsigned most = threads_most(early);
    *provision = (struct host_provision){
        .wanted = wanted, .client = client, .context = client->copy_context, .early = early, .target = target,
    };
    uint64_t size = piece_size(provision), jobs = (lacking + size - 1) / size;
    if (!early && host_registrable(client, wanted + REGISTERED_AHEAD) != NULL)
        jobs += REGISTRARS;
    lacking = lacking / PAGE * PAGE;
    if (lacking > 0)
        provision->memory = host_memory_map(lacking, client->node);
    if (provision->memory != NULL)
        provision->mapped = lacking;
    while (provision->count < jobs && provision->count < most
           && pthread_create(&provision->threads[provision->count], NULL, provide, provision) == 0) {
        provision->count++;
        client->providers++;
    }
}

void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision)
{
    begin_all(client, allowance, false, provision);
}

void host_provide_early(struct client *client, uint64_t allowance,
                        struct host_provision *provision)
{
    begin_all(client, allowance, true, provision);
}

void host_provide_no_more(struct host_provision *provision)
{
    provision->target = 0;
}

void host_provided(struct host_provision *provision)
{
    for (unsigned i = 0; i < provision->count; i++)
        pthread_join(provision->threads[i], NULL);
    if (provision->mapped > 0)
        host_memory_unmap(provision->memory, provision->mapped);
}
