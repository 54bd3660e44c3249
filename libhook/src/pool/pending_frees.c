/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps memory that was freed in a stream until no work of that stream touches it. The free records
 * an event after the work that the stream holds.
 *
 * Events of a stream complete in order, so an allocation queries only the oldest event. No thread
 * waits for an event, because the work may wait for that very thread. If an allocation finds no
 * other memory, its stream waits instead. All this matches the driver (measured on an H100, driver
 * 580). Recording and querying events disturbs no capture while the thread's capture mode is
 * relaxed. A failed query says nothing about the work: the memory then stays pending.
 */
#include "pool/pending_frees.h"

#include <stdlib.h>

#include "block/region.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "pool/async_allocation.h"
#include "pool/pool.h"
#include "pool/stream.h"

/* An event, reused as long as its context lives. */
struct marker {
    CUevent event;
    struct marker *next;             /* in the list of unused markers */
};

struct stock {
    CUcontext context;
    struct marker *markers;          /* unused ones */
    struct stock *next;
};

struct pending_frees {
    struct stock *stock;
    uint64_t stream;
    unsigned marks;                  /* marks being recorded for this stream */
    struct ring allocations;         /* in the order of their events */
    struct pending_frees *next;
};

static struct stock *stocks;
static struct pending_frees *pending_lists;

static struct stock *stock_of(CUcontext context)
{
    struct stock *stock = stocks;
    while (stock != NULL && stock->context != context)
        stock = stock->next;
    if (stock == NULL && (stock = malloc(sizeof *stock)) != NULL) {
        *stock = (struct stock){ .context = context, .next = stocks };
        stocks = stock;
    }
    return stock;
}

static struct pending_frees *pending_frees_of(CUcontext context, uint64_t stream)
{
    struct pending_frees *pending = pending_lists;
    while (pending != NULL && (pending->stream != stream || pending->stock->context != context))
        pending = pending->next;
    if (pending != NULL)
        return pending;
    struct stock *stock = stock_of(context);
    pending = stock == NULL ? NULL : malloc(sizeof *pending);
    if (pending == NULL)
        return NULL;
    *pending = (struct pending_frees){ .stock = stock, .stream = stream, .next = pending_lists };
    ring_clear(&pending->allocations);
    return pending_lists = pending;
}

static void give(struct stock *stock, struct marker *marker)
{
    marker->next = stock->markers;
    stock->markers = marker;
}

/* The context is current. */
static CUresult record(CUstream stream, struct marker *marker)
{
    CUresult result = CUDA_SUCCESS;
    if (marker->event == NULL)
        result = REAL(cuEventCreate)(&marker->event,
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    return result != CUDA_SUCCESS ? result : REAL(cuEventRecord)(marker->event, stream);
}

CUresult pending_frees_mark(CUstream stream, struct mark *mark)
{
    CUcontext context, current = NULL;
    CUdevice device;
    CUresult result = stream_place(stream, &context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t name = stream_name(stream);
    pthread_mutex_lock(&memory_lock);
    mark->pending = pending_frees_of(context, name);
    mark->marker = mark->pending == NULL ? NULL : mark->pending->stock->markers;
    if (mark->marker != NULL)
        mark->pending->stock->markers = mark->marker->next;
    else if (mark->pending != NULL)
        mark->marker = calloc(1, sizeof *mark->marker);
    if (mark->marker != NULL)
        mark->pending->marks++;
    pthread_mutex_unlock(&memory_lock);
    if (mark->marker == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    contexts_current(&current);
    RELAXED;
    if (context != current)
        result = REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = record(stream, mark->marker);
        if (context != current)
            REAL(cuCtxPopCurrent_v2)(&current);
    }
    if (result != CUDA_SUCCESS) {
        LOCKED(memory_lock);
        pending_frees_unmark(mark);
    }
    return result;
}

void pending_frees_unmark(const struct mark *mark)
{
    mark->pending->marks--;
    if (mark->marker->event != NULL)
        give(mark->pending->stock, mark->marker);
    else
        free(mark->marker);
}

void pending_frees_put(struct async_allocation *async, const struct mark *mark)
{
    mark->pending->marks--;
    async->pending = mark->pending;
    async->marker = mark->marker;
    async->stream = mark->pending->stream;
    async->context = mark->pending->stock->context;
    ring_append(&mark->pending->allocations, &async->order);
}

void pending_frees_leave(struct async_allocation *async)
{
    ring_leave(&async->order);
    if (async->pending == NULL)
        return;
    give(async->pending->stock, async->marker);
    async->pending = NULL;
    async->marker = NULL;
}

static void is_done(struct async_allocation *async)
{
    pending_frees_leave(async);
    async_idle(async);
}

static struct async_allocation *first(const struct pending_frees *pending)
{
    return RING_MEMBER(pending->allocations.next, struct async_allocation, order);
}

/* A context that has failed for good runs no work any more. */
static bool reached(const struct async_allocation *async)
{
    CUresult result = REAL(cuEventQuery)(async->marker->event);
    return result == CUDA_SUCCESS
        || (result != CUDA_ERROR_NOT_READY && context_error(async->context) != CUDA_SUCCESS);
}

static bool look(struct pending_frees *pending)
{
    bool any = false;
    while (!ring_empty(&pending->allocations) && reached(first(pending))) {
        is_done(first(pending));
        any = true;
    }
    return any;
}

bool pending_frees_look(void)
{
    bool any = false;
    if (pending_lists == NULL)
        return false;
    RELAXED;
    for (struct pending_frees **link = &pending_lists, *pending; (pending = *link) != NULL;) {
        any |= look(pending);
        if (!ring_empty(&pending->allocations) || pending->marks > 0) {
            link = &pending->next;
            continue;
        }
        *link = pending->next;
        free(pending);
    }
    return any;
}

CUresult pending_frees_order(struct async_allocation *async, CUstream stream)
{
    RELAXED;
    return REAL(cuStreamWaitEvent)(stream, async->marker->event, 0);
}

/* The end of a context frees its memory, in whichever stream the memory was freed. */
static void drop_memory_of(CUcontext context, struct pending_frees *pending)
{
    for (struct ring *link = pending->allocations.next, *next; link != &pending->allocations; link = next) {
        struct async_allocation *async = RING_MEMBER(link, struct async_allocation, order);
        next = link->next;
        if (async->pool == NULL
            && region_owner(async->address)->context == context)
            is_done(async);
    }
}

/* The context's events are destroyed with it, and its work is done. */
void pending_frees_context_ends(CUcontext context)
{
    for (struct pending_frees **link = &pending_lists, *pending; (pending = *link) != NULL;) {
        bool ends = pending->stock->context == context;
        while (ends && !ring_empty(&pending->allocations))
            is_done(first(pending));
        drop_memory_of(context, pending);
        if (!ends || pending->marks > 0) {
            link = &pending->next;
            continue;
        }
        *link = pending->next;
        free(pending);
    }
    for (struct stock *stock = stocks; stock != NULL; stock = stock->next)
        while (stock->context == context && stock->markers != NULL) {
            struct marker *marker = stock->markers;
            stock->markers = marker->next;
            free(marker);
        }
}
