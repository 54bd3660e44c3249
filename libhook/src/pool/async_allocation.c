/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/async_allocation.h"

#include <stdlib.h>

#include "interpose/real.h"
#include "block/region.h"

#define BUCKETS 16384
#define MOST ((size_t)1 << 46)       /* bytes, in one piece */
#define SEARCHED 256                 /* pieces of a class, when one is wanted */

static struct piece *buckets[BUCKETS];

static struct piece **bucket_of(CUdeviceptr address)
{
    return &buckets[address * 0x9E3779B97F4A7C15u >> 50];
}

struct piece *piece_at(CUdeviceptr address)
{
    struct piece *piece = *bucket_of(address);
    while (piece != NULL && piece->address != address)
        piece = piece->next;
    return piece;
}

/* The bytes that an allocation takes, and the class of those that take about as many. */
static size_t room_of(size_t bytes, unsigned *class)
{
    if (bytes <= SMALL_MAX)
        return slab_place(bytes, class);
    size_t room = WHOLE_PAGES(bytes);
    *class = SLAB_CLASSES + 63 - (unsigned)__builtin_clzl(room / PAGE);
    return room;
}

static struct piece *new_piece(CUdeviceptr address, struct pool *pool)
{
    struct piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL)
        return NULL;
    piece->address = address;
    piece->pool = pool;
    ring_clear(&piece->order);
    ring_clear(&piece->alike);
    piece->next = *bucket_of(address);
    *bucket_of(address) = piece;
    return piece;
}

static void forget(struct piece *piece)
{
    struct piece **link = bucket_of(piece->address);
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    free(piece);
}

/* Altogether. */
static void release(struct piece *piece)
{
    struct pool *pool = piece->pool;
    ring_leave(&piece->order);
    ring_leave(&piece->alike);
    allocation_release(piece->address);
    if (pool != NULL) {
        pool->reserved -= piece->room;
        pool_leave(pool);
    }
    forget(piece);
}

bool pool_shrink(struct pool *pool, uint64_t keep)
{
    if (ring_empty(&pool->idle) || pool->reserved <= keep)
        return false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pool->users++;
    while (!ring_empty(&pool->idle) && pool->reserved > keep)
        release(RING_MEMBER(pool->idle.next, struct piece, order));
    pool_leave(pool);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return true;
}

void piece_idle(struct piece *piece)
{
    if (piece->pool == NULL || piece->pool->destroyed)
        release(piece);
    else
        ring_append(&piece->pool->idle, &piece->order);
}

struct piece *piece_retire(CUdeviceptr address)
{
    struct piece *piece = piece_at(address);
    if (piece == NULL) {
        piece = new_piece(address, NULL);
        if (piece != NULL && !allocation_retire(address)) {
            forget(piece);
            return NULL;
        }
    } else if (piece->freed || !allocation_retire(address)) {
        return NULL;
    }
    if (piece == NULL)
        return NULL;
    piece->freed = true;
    if (piece->pool != NULL) {
        piece->pool->used -= piece->size;
        ring_append(&piece->pool->freed[piece->class], &piece->alike);
    }
    return piece;
}

/* Whether work in the context's `stream` may have it now. */
static bool usable(const struct piece *piece, CUcontext context, uint64_t stream)
{
    if (piece->lane == NULL && (piece->stream == 0 || piece->pool->opportunistic))
        return true;
    return piece->stream == stream && stream != 0 && piece->context == context;
}

/* The smallest that is large enough and not much larger; latest freed first. */
static struct piece *fitting(const struct pool *pool, size_t room, unsigned class,
                             CUcontext context, uint64_t stream)
{
    size_t most = room + (class < SLAB_CLASSES ? 0 : room / 8);
    struct piece *best = NULL;
    unsigned last = class < SLAB_CLASSES ? class : class + 1, searched = 0;
    for (; class <= last && class < PIECE_CLASSES; class++) {
        const struct ring *head = &pool->freed[class];
        for (struct ring *link = head->previous; link != head && searched++ < SEARCHED;
             link = link->previous) {
            struct piece *piece = RING_MEMBER(link, struct piece, alike);
            if (piece->room < room || piece->room > most || !usable(piece, context, stream)
                || (best != NULL && best->room <= piece->room))
                continue;
            best = piece;
            if (piece->room == room)
                return piece;
        }
    }
    return best;
}

static void reuse(struct piece *piece, size_t bytes)
{
    lane_leave(piece);
    ring_leave(&piece->alike);
    piece->freed = false;
    piece->size = bytes;
    allocation_renew(piece->address, bytes);
}

/* Before it takes `room` bytes more. Beyond its threshold a pool keeps nothing
 * then; and below, not much more than it has ever needed at once, since what
 * does not fit the program's next allocation is of no use to it. */
static bool make_way(struct pool *pool, size_t room)
{
    uint64_t plenty = pool->peak + pool->peak / 4 + 2 * BLOCK_SIZE;
    uint64_t keep = pool->threshold < plenty ? pool->threshold : plenty;
    if (pool->most != 0 && (room > pool->most || pool->reserved + room > pool->most))
        pool_shrink(pool, room > pool->most ? 0 : pool->most - room);
    pool_shrink(pool, keep > room ? keep - room : 0);
    return pool->most == 0 || pool->reserved + room <= pool->most;
}

static CUresult make(struct pool *pool, struct client *client, size_t bytes, size_t room,
                     unsigned class, struct piece **piece)
{
    CUdeviceptr address;
    if (!make_way(pool, room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Of no context: pools outlive them. */
    CUresult result = bytes <= SMALL_MAX ? slab_allocate(client, NULL, bytes, &address)
                                         : large_allocate(client, NULL, bytes, &address);
    if (result != CUDA_SUCCESS)
        return result;
    *piece = new_piece(address, pool);
    if (*piece == NULL) {
        allocation_retire(address);
        allocation_release(address);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->users++;
    (*piece)->size = bytes;
    (*piece)->room = room;
    (*piece)->class = class;
    pool->reserved += room;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

CUresult piece_take(struct pool *pool, struct client *client, size_t bytes, CUcontext context,
                    uint64_t stream, CUdeviceptr *address)
{
    unsigned class;
    if (bytes > MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t room = room_of(bytes, &class);
    struct piece *piece = fitting(pool, room, class, context, stream);
    if (piece == NULL && lanes_look())
        piece = fitting(pool, room, class, context, stream);
    if (piece != NULL) {
        reuse(piece, bytes);
    } else {
        CUresult result = make(pool, client, bytes, room, class, &piece);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *address = piece->address;
    pool->used += bytes;
    if (pool->used + pool->lost > pool->used_high)
        pool->used_high = pool->used + pool->lost;
    if (pool->used > pool->peak)
        pool->peak = pool->used;
    client_update(client);
    return CUDA_SUCCESS;
}
