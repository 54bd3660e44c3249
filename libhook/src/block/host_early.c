/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To take host memory from the kernel takes two to ten times as long as to copy into it, so the
 * first way out of a program was that slow. The daemon knows before that programs will not fit
 * together (nvshared/scheduler/presave.py), and the program that has the card goes on meanwhile.
 *
 * It is to notice nothing of that. The threads are few, and others go first. They call nothing of
 * the driver: its locks, its contexts and its captures are none of their business, so a slab is
 * registered when something is to leave, which takes a fraction of the time. The lock of the
 * process's mappings is theirs for one page at a time.
 *
 * Nobody waits for a thread that others go before. What it has begun counts, and can be used or is
 * given back when it is done, however late that is; store_host.c waits for it last.
 */
#define _GNU_SOURCE
#include "block/host_early.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "block/host_memory.h"
#include "block/host_slabs.h"
#include "block/region.h"
#include "interpose/log.h"
#include "interpose/own_thread.h"

#define THREADS_MOST 4
#define THREADS_PART 4               /* of the processors that the process may use */
#define NICER 10

/* False: the kernel has none. Lock held, released meanwhile. */
static bool make(struct client *client, uint64_t size)
{
    client->memory.host += size;
    pthread_mutex_unlock(&memory_lock);
    struct host_slab *slab = host_slab_new(client, NULL, size);
    for (uint64_t filled = 0; slab != NULL && filled < size; filled += PAGE)
        host_memory_fill(slab->memory + filled, PAGE);
    pthread_mutex_lock(&memory_lock);
    bool made = slab != NULL;
    if (made && client->memory.host <= client->host_most) {
        host_slab_add(client, slab);
    } else {
        client->memory.host -= size;
        if (made)
            host_memory_unmap(slab->memory, size);
        free(slab);
    }
    client_changed(client);
    return made;
}

static void *make_all(void *argument)
{
    struct client *client = argument;
    own_thread_begins("nvshare-early");
    errno = 0;
    if (nice(NICER) == -1 && errno != 0)
        debug("host memory is made as if it were urgent: %s", error_text(errno));
    LOCKED(memory_lock);
    uint64_t size;
    do {
        uint64_t useful = host_useful(client), most = client->host_most;
        size = host_slab_size(client, PAGE, useful < most ? useful : most);
    } while (client->provides_early && size > 0 && make(client, size));
    client->early_providers--;
    pthread_cond_broadcast(&memory_changed);
    return NULL;
}

static unsigned threads_most(void)
{
    cpu_set_t usable;
    int count = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
    int most = count / THREADS_PART;
    return most < 1 ? 1 : most > THREADS_MOST ? THREADS_MOST : (unsigned)most;
}

void host_provided_early(struct client *client, uint64_t most)
{
    client->provides_early = false;
    client->host_most = most;
}

void host_provide_early(struct client *client, uint64_t most)
{
    client->provides_early = true;
    client->host_most = most;
    pthread_t thread;
    while (client->early_providers < threads_most()
           && own_thread_start(&thread, make_all, client) == 0) {
        pthread_detach(thread);
        client->early_providers++;
    }
}
