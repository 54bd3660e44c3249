/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream on which blocks are copied, and the copies in flight; see out.c.
 */
#include "block/pipeline.h"

#include <time.h>

#include "block/contents.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/bus_sharing.h"
#include "gate/client.h"
#include "gate/connection.h"
#include "gate/contexts.h"
#include "tier/host.h"
#include "tier/peer.h"

#define HELD_MOST_US 2000

/* Indexed by client, in copy_context: one for each copy in flight. Protected by service_lock. */
static CUevent copied[CLIENTS_MAX][COPIES_IN_FLIGHT];

/* An EVICT may be followed by another one before its YIELD; that one is kept for later. */
bool order_yields(struct client *client, const struct nvshare_order *order)
{
    struct nvshare_order yield, next;
    if ((order->flags & NVSHARE_AHEAD) == 0)
        return false;
    if (client->postponed_count == 0 && connection_next(client->socket, NVSHARE_EVICT, &next))
        client_postpone(client, &next);
    return connection_next(client->socket, NVSHARE_YIELD, &yield);
}

/* A mutex is not handed to a waiting thread: the first to lock it gets it, usually the thread that
 * has just released it. It therefore stays unlocked for the time that a thread takes to wake up,
 * some 50 us. */
void memory_lock_yields(uint64_t *held_since)
{
    uint64_t now = now_microseconds();
    if (*held_since == 0)
        *held_since = now;
    if (now - *held_since < HELD_MOST_US)
        return;
    pthread_mutex_unlock(&memory_lock);
    nanosleep(&(struct timespec){ .tv_nsec = 1 }, NULL);
    pthread_mutex_lock(&memory_lock);
    *held_since = now_microseconds();
}

/* A context of the library. Physical memory outlives the program's contexts, and may have to be
 * copied while there is none; the primary context belongs to the program, which may query and reset
 * it. */
static CUcontext own_context(struct client *client)
{
    CUcontext same;
    if (client->own_context != NULL)
        return client->own_context;
    CUresult result = REAL(cuCtxCreate_v2)(&client->own_context, 0, client->device);
    if (result == CUDA_SUCCESS)
        REAL(cuCtxPopCurrent_v2)(&same);
    else
        debug("no context to swap in: error %d", (int)result);
    return client->own_context;
}

/* The program has a context again. */
static void end_own_context(struct client *client)
{
    pthread_mutex_lock(&memory_lock);
    swap_leave_context(client, client->own_context, true);
    pthread_mutex_unlock(&memory_lock);
    REAL(cuCtxDestroy_v2)(client->own_context);
    client->own_context = NULL;
}

bool swap_enter_context(struct client *client)
{
    CUcontext context = contexts_of(client->device, 0);
    pthread_mutex_lock(&memory_lock);
    bool alone = context == NULL && client->memory.allocated > 0;
    pthread_mutex_unlock(&memory_lock);
    if (alone)
        context = own_context(client);
    else if (context != NULL && client->own_context != NULL)
        end_own_context(client);
    if (context == NULL || REAL(cuCtxSetCurrent)(context) != CUDA_SUCCESS)
        return false;
    if (client->copy_context == context)
        return true;
    CUresult result = REAL(cuStreamCreate)(&client->copy_stream, CU_STREAM_NON_BLOCKING);
    unsigned made = 0;
    while (result == CUDA_SUCCESS && made < COPIES_IN_FLIGHT)
        result = REAL(cuEventCreate)(&copied[client->index][made++],
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS) {
        debug("no stream to swap on: error %d", (int)result);
        return false;
    }
    client->copy_context = context;
    return true;
}

/* The driver destroys a context's objects with it. */
void swap_leave_context(struct client *client, CUcontext context, bool drained)
{
    if (client->copy_context != context)
        return;
    host_leave_context(client, drained);
    client->copy_context = NULL;
    content_leave_context(client);
}

/* All copies of the block have ended. Without memory_lock. */
static enum settled settle(struct block *block)
{
    return block->zero || block->place.tier->settle == NULL
        ? SETTLED : block->place.tier->settle(&block->place, block->address);
}

/* A copy between the block and another GPU has failed: gives up its place there, if the bytes are
 * elsewhere, too. Releases and retakes memory_lock. */
static void avoid(struct client *client, struct block *block)
{
    if (block->zero || block->place.tier != &tier_peer)
        return;
    if (block->state == BLOCK_EVICTING)
        peer_failed(client);
    /* If only the wait has failed, the copy may still use the place. */
    pthread_mutex_unlock(&memory_lock);
    bool ended = REAL(cuStreamSynchronize)(client->copy_stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    if (ended && block->state == BLOCK_EVICTING)
        block_give_place(block);
    else if (ended && block->copy.tier != NULL)
        block_return_place(block);
}

void pipeline_complete(struct client *client, struct pipeline *line)
{
    struct move move = line->moves[line->first];
    line->first = (line->first + 1) % COPIES_IN_FLIGHT;
    line->count--;
    move.progress->copies--;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuEventSynchronize)(copied[client->index][move.event]);
    struct block *block = move.block;
    enum settled settled = move.last ? settle(block) : SETTLED;
    pthread_mutex_lock(&memory_lock);
    if (settled == UNSETTLED)
        result = CUDA_ERROR_UNKNOWN;

    bool left = block->state == BLOCK_EVICTING, stays = block->writing_back;
    if (result == CUDA_SUCCESS && !block->zero && block->place.tier->over_bus) {
        line->bytes += move.bytes;
        bus_sharing_measured(left ? BUS_OUT : BUS_IN, line->bytes,
                         now_microseconds() - line->since);
    }
    if (!move.last)
        return;                      /* after a failure all later copies fail, too */
    block->writing_back = false;
    if (settled == LOST)
        result = block_unmap(block);
    if (left && !stays && result == CUDA_SUCCESS)
        result = block_unmap(block);
    if (settled == LOST && result == CUDA_SUCCESS) {
        block_set_state(block, BLOCK_SWAPPED);
        block_lose(block);
    } else if (result == CUDA_SUCCESS) {
        if (left)
            block->known = block->looked;
        if (block->place.tier != NULL && !block->zero)
            block_note_clean(block);
        if (!block->zero)
            move.progress->bytes += block->size;
        block->zero = false;
        block_set_state(block, left && !stays ? BLOCK_SWAPPED : BLOCK_RESIDENT);
        if (!left && block->place.tier != NULL && !block->place.tier->keeps)
            block_give_place(block);
    } else {
        /* In either direction, the bytes are still at the source. */
        move.progress->failed = true;
        avoid(client, block);
        if (!left)
            block_unmap(block);
        block_set_state(block, left ? BLOCK_RESIDENT : BLOCK_SWAPPED);
    }
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* Starts to copy `size` bytes of the block from `offset` on. */
static CUresult copy(struct client *client, struct block *block, size_t offset, size_t size)
{
    CUstream stream = client->copy_stream;
    if (block->zero)
        return REAL(cuMemsetD8Async)(block->address + offset, 0, size, stream);
    const struct tier *tier = block->place.tier;
    return (block->state == BLOCK_EVICTING ? tier->out : tier->in)(&block->place, block->address,
                                                                  offset, size, stream);
}

static bool start_piece(struct client *client, struct pipeline *line, struct block *block,
                        size_t offset, size_t size, struct progress *progress)
{
    unsigned slot = (line->first + line->count) % COPIES_IN_FLIGHT;
    if (line->count == 0) {
        line->since = now_microseconds();
        line->bytes = 0;
    }
    CUresult result = copy(client, block, offset, size);
    if (result == CUDA_SUCCESS)
        result = REAL(cuEventRecord)(copied[client->index][slot], client->copy_stream);
    if (result != CUDA_SUCCESS) {
        debug("a copy of %zu bytes failed: error %d", size, (int)result);
        return false;
    }
    line->moves[slot] = (struct move){ block, progress, slot, size, offset + size == block->size };
    line->count++;
    progress->copies++;
    return true;
}

/* Pieces of the block may be in flight. In either direction, its bytes are still at the source. */
static void cut_short(struct client *client, struct pipeline *line, struct block *block)
{
    while (line->count > 0)
        pipeline_complete(client, line);
    pthread_mutex_unlock(&memory_lock);
    settle(block);
    pthread_mutex_lock(&memory_lock);
}

enum start pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                          struct progress *progress, const struct nvshare_order *order)
{
    bool ahead = (order->flags & NVSHARE_AHEAD) != 0;
    size_t piece = ahead && !block->zero && block->place.tier->pieces ? PIECE_AHEAD : block->size;
    enum start started = STARTED;
    for (size_t offset = 0, size; started == STARTED && offset < block->size; offset += size) {
        size = block->size - offset < piece ? block->size - offset : piece;
        while (line->count >= pipeline_depth(order))
            pipeline_complete(client, line);
        if (offset > 0 && order_yields(client, order))
            started = YIELDED;
        else if (!start_piece(client, line, block, offset, size, progress))
            started = NOT_STARTED;
    }
    if (started != STARTED)
        cut_short(client, line, block);
    if (started == NOT_STARTED)
        avoid(client, block);
    return started;
}
