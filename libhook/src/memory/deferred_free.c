/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that was freed while a stream was being captured.
 *
 * Freeing waits for the work in flight, which nobody may do then. So the memory is kept until
 * a wait that began later is over, at the latest until it is needed.
 */
#include "memory/deferred_free.h"

#include <stdlib.h>

#include "block/region.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "memory/allocation.h"

#define SLICE_US 1000                /* of a wait: a context that ends must not wait for its work */

/* The latest first. */
struct deferred {
    CUdeviceptr address;
    CUcontext context;
    uint64_t number;                 /* which of all that were it is */
    struct deferred *next;
};
static struct deferred *deferred;    /* protected by memory_lock, as are the next */
static uint64_t deferrals;
static CUcontext waited_in;          /* by reclaiming, which is one thread's at a time */

uint64_t deferred_frees_so_far(void)
{
    return deferrals;
}

void deferred_frees_add(CUdeviceptr address, CUcontext context)
{
    struct deferred *one = malloc(sizeof *one);
    if (one == NULL)
        return;                      /* it stays until its context ends */
    *one = (struct deferred){ address, context, ++deferrals, deferred };
    deferred = one;
}

static bool deferred_by(const struct deferred *one, const struct client *client)
{
    return region_owner(one->address)->client == client;
}

void deferred_frees_waited(CUcontext context, uint64_t number)
{
    for (struct deferred **link = &deferred, *one; (one = *link) != NULL;) {
        if (one->context != context || one->number > number) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        allocation_release(one->address);
        free(one);
    }
}

static const struct deferred *first_of(const struct client *client)
{
    const struct deferred *one = deferred;
    while (one != NULL && !deferred_by(one, client))
        one = one->next;
    return one;
}

/* Lock held, released meanwhile. */
static bool wait_in(CUcontext context)
{
    CUresult ignored_as_work_that_failed_is_done;
    uint64_t earlier = deferrals;
    waited_in = context;
    pthread_mutex_unlock(&memory_lock);
    bool waited = drain_context(context, SLICE_US, &ignored_as_work_that_failed_is_done);
    pthread_mutex_lock(&memory_lock);
    if (waited)
        deferred_frees_waited(context, earlier);
    waited_in = NULL;
    pthread_cond_broadcast(&memory_changed);
    return waited;
}

bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)bytes;
    BLOCKED;
    const struct deferred *one;
    while (now_microseconds() < until && (one = first_of(client)) != NULL) {
        if (waited_in != NULL)
            pthread_cond_wait(&memory_changed, &memory_lock);
        else if (wait_in(one->context))
            return true;
        else if (capture_going_on())
            return false;
    }
    return false;
}

void deferred_frees_context_end(CUcontext context)
{
    while (waited_in == context)
        pthread_cond_wait(&memory_changed, &memory_lock);
    deferred_frees_waited(context, deferrals);
}
