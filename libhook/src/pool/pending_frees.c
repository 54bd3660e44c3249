/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: memory that was freed in a stream and may still be touched by what
 * the stream held then. Behind that an event is recorded, at once, when the
 * memory is freed. A stream's events come to pass in order, so only the oldest
 * is asked, when somebody wants memory; waited for only if there is no other.
 *
 * Recording, and asking events of ours, disturbs no capture in a thread whose
 * mode is relaxed.
 */
#include <pthread.h>
#include <stdlib.h>

#include "client/client_state.h"
#include "pool/async_allocation.h"
#include "interpose/real.h"
#include "block/region.h"

/* An event, used again and again as long as its context lives. */
struct marker {
    CUevent event;
    struct marker *next;             /* in its stock */
};

struct stock {
    CUcontext context;
    struct marker *markers;          /* unused ones */
    unsigned waiting;                /* threads, for one of its events */
    struct stock *next;
};

struct lane {
    struct stock *stock;
    uint64_t stream;
    unsigned marks;                  /* being made for it */
    struct ring pieces;              /* by the order of their events */
    struct lane *next;
};

static struct stock *stocks;
static struct lane *lanes;

static CUstreamCaptureMode relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

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

static struct lane *lane_of(CUcontext context, uint64_t stream)
{
    struct lane *lane = lanes;
    while (lane != NULL && (lane->stream != stream || lane->stock->context != context))
        lane = lane->next;
    if (lane != NULL)
        return lane;
    struct stock *stock = stock_of(context);
    lane = stock == NULL ? NULL : malloc(sizeof *lane);
    if (lane == NULL)
        return NULL;
    *lane = (struct lane){ .stock = stock, .stream = stream, .next = lanes };
    ring_clear(&lane->pieces);
    return lanes = lane;
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

CUresult lane_mark(CUstream stream, struct mark *mark)
{
    CUcontext context, current = NULL;
    CUdevice device;
    CUresult result = stream_place(stream, &context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t name = stream_name(stream);
    pthread_mutex_lock(&memory_lock);
    mark->lane = lane_of(context, name);
    mark->marker = mark->lane == NULL ? NULL : mark->lane->stock->markers;
    if (mark->marker != NULL)
        mark->lane->stock->markers = mark->marker->next;
    else if (mark->lane != NULL)
        mark->marker = calloc(1, sizeof *mark->marker);
    if (mark->marker != NULL)
        mark->lane->marks++;
    pthread_mutex_unlock(&memory_lock);
    if (mark->marker == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    REAL(cuCtxGetCurrent)(&current);
    CUstreamCaptureMode mode = relax();
    if (context != current)
        result = REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = record(stream, mark->marker);
        if (context != current)
            REAL(cuCtxPopCurrent_v2)(&current);
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_lock(&memory_lock);
        lane_unmark(mark);
        pthread_mutex_unlock(&memory_lock);
    }
    return result;
}

void lane_unmark(const struct mark *mark)
{
    mark->lane->marks--;
    if (mark->marker->event != NULL)
        give(mark->lane->stock, mark->marker);
    else
        free(mark->marker);
}

void lane_put(struct piece *piece, const struct mark *mark)
{
    mark->lane->marks--;
    piece->lane = mark->lane;
    piece->marker = mark->marker;
    piece->stream = mark->lane->stream;
    piece->context = mark->lane->stock->context;
    ring_append(&mark->lane->pieces, &piece->order);
}

void lane_leave(struct piece *piece)
{
    ring_leave(&piece->order);
    if (piece->lane == NULL)
        return;
    give(piece->lane->stock, piece->marker);
    piece->lane = NULL;
    piece->marker = NULL;
}

static void is_done(struct piece *piece)
{
    lane_leave(piece);
    piece_idle(piece);
}

static struct piece *first(const struct lane *lane)
{
    return RING_MEMBER(lane->pieces.next, struct piece, order);
}

/* A context that has failed for good runs nothing any more. */
static bool reached(const struct piece *piece)
{
    return REAL(cuEventQuery)(piece->marker->event) != CUDA_ERROR_NOT_READY;
}

static bool look(struct lane *lane)
{
    bool any = false;
    while (!ring_empty(&lane->pieces) && reached(first(lane))) {
        is_done(first(lane));
        any = true;
    }
    return any;
}

bool lanes_look(void)
{
    bool any = false;
    if (lanes == NULL)
        return false;
    CUstreamCaptureMode mode = relax();
    for (struct lane **link = &lanes, *lane; (lane = *link) != NULL;) {
        any |= look(lane);
        if (!ring_empty(&lane->pieces) || lane->marks > 0) {
            link = &lane->next;
            continue;
        }
        *link = lane->next;
        free(lane);
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return any;
}

bool lanes_wait(void)
{
    struct lane *lane = lanes;
    while (lane != NULL && ring_empty(&lane->pieces))
        lane = lane->next;
    if (lane == NULL)
        return false;
    struct stock *stock = lane->stock;
    CUevent event = first(lane)->marker->event;
    stock->waiting++;
    pthread_mutex_unlock(&memory_lock);
    CUstreamCaptureMode mode = relax();
    REAL(cuEventSynchronize)(event);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pthread_mutex_lock(&memory_lock);
    if (--stock->waiting == 0)
        pthread_cond_broadcast(&memory_changed);
    lanes_look();
    return true;
}

/* The context's memory goes with it, in whichever stream it was freed. */
static void drop_memory_of(CUcontext context, struct lane *lane)
{
    for (struct ring *link = lane->pieces.next, *next; link != &lane->pieces; link = next) {
        struct piece *piece = RING_MEMBER(link, struct piece, order);
        next = link->next;
        if (piece->pool == NULL
            && ((struct page_owner *)region_owner(piece->address))->context == context)
            is_done(piece);
    }
}

/* Its events are destroyed with it, and its work is done; so nobody waits for one for long. */
void lanes_context_ends(CUcontext context)
{
    const struct stock *own = stocks;
    while (own != NULL && own->context != context)
        own = own->next;
    while (own != NULL && own->waiting > 0)
        pthread_cond_wait(&memory_changed, &memory_lock);
    for (struct lane **link = &lanes, *lane; (lane = *link) != NULL;) {
        bool ends = lane->stock->context == context;
        while (ends && !ring_empty(&lane->pieces))
            is_done(first(lane));
        drop_memory_of(context, lane);
        if (!ends || lane->marks > 0) {
            link = &lane->next;
            continue;
        }
        *link = lane->next;
        free(lane);
    }
    for (struct stock *stock = stocks; stock != NULL; stock = stock->next)
        while (stock->context == context && stock->markers != NULL) {
            struct marker *marker = stock->markers;
            stock->markers = marker->next;
            free(marker);
        }
}
