/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream on which blocks are copied, and what is under way on it; see swap.c.
 */
#include "swap/pipeline.h"

#include "block/host_slabs.h"
#include "block/store.h"
#include "client/client.h"
#include "client/contexts.h"
#include "flight/bus_sharing.h"
#include "interpose/log.h"
#include "interpose/real.h"
#include "swap/content.h"
#include "swap/yield.h"

/* Each client's, in copy_context: one for each copy in flight. Protected by service_lock. */
static CUevent copied[CLIENTS_MAX][COPIES_IN_FLIGHT];

/* A context of the library's own. Physical memory outlives its program's contexts, and may have
 * to be copied while there is none; the primary one is the program's to look at and to reset. */
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

/* The program has one again. */
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

/* The driver destroys what lives in a context with it. */
void swap_leave_context(struct client *client, CUcontext context, bool drained)
{
    if (client->copy_context != context)
        return;
    host_leave_context(client, drained);
    client->copy_context = NULL;
    content_leave_context(client);
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
    if (move.last && !block->zero)
        result = block->store->settle(block, result);
    pthread_mutex_lock(&memory_lock);

    bool left = block->state == BLOCK_LEAVING, stays = block->presaving;
    if (result == CUDA_SUCCESS && !block->zero && block->store->slabs) {
        line->bytes += move.bytes;
        bus_sharing_measured(left ? BUS_OUT : BUS_IN, line->bytes,
                         now_microseconds() - line->since);
    }
    if (!move.last)
        return;                      /* what has failed fails what comes after it, too */
    block->presaving = false;
    if (left && !stays && result == CUDA_SUCCESS)
        result = block_unmap(block);
    if (result == CUDA_SUCCESS) {
        if (left)
            block->known = block->looked;
        if (block->stored && !block->zero)
            block_note_presaved(block);
        if (!block->zero)
            move.progress->bytes += block->size;
        block->zero = false;
        block_set_state(block, left && !stays ? BLOCK_SWAPPED : BLOCK_RESIDENT);
        if (!left && !block->store->keeps)
            store_give(block);
    } else {
        /* Whichever way it was going, its bytes are still where it came from. */
        move.progress->failed = true;
        if (!left)
            block_unmap(block);
        block_set_state(block, left ? BLOCK_RESIDENT : BLOCK_SWAPPED);
    }
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* Starts to copy `size` bytes of it from `offset` on. */
static CUresult copy(struct client *client, struct block *block, size_t offset, size_t size)
{
    CUstream stream = client->copy_stream;
    if (block->state == BLOCK_LEAVING)
        return block->store->out(block, offset, size, stream);
    return block->zero ? REAL(cuMemsetD8Async)(block->address + offset, 0, size, stream)
                       : block->store->in(block, offset, size, stream);
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

/* Its pieces may be under way. Whichever way it was going, its bytes are still where it
 * came from. */
static void cut_short(struct client *client, struct pipeline *line, struct block *block)
{
    while (line->count > 0)
        pipeline_complete(client, line);
    if (block->zero)
        return;
    pthread_mutex_unlock(&memory_lock);
    block->store->settle(block, CUDA_ERROR_NOT_READY);
    pthread_mutex_lock(&memory_lock);
}

enum start pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                          struct progress *progress, const struct nvshare_order *order)
{
    bool ahead = (order->flags & NVSHARE_AHEAD) != 0;
    size_t piece = ahead && block->store->pieces && !block->zero ? PIECE_AHEAD : block->size;
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
    return started;
}
