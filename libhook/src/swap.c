/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks between card and host.
 *
 * Copies run on a stream of our own, a few blocks in flight, so that the bus
 * never waits for a map or an unmap: while one block is copied the one before
 * it is unmapped and released. A block counts as resident from the moment its
 * memory is created to the moment it is released; its bytes exist in full in
 * at least one of the two places at every moment:
 *
 *   leaving   mapped until the copy has been seen to end; then the host slot
 *             is the only copy;
 *   coming    the host slot is kept until the copy has been seen to end.
 *
 * Blocks leave youngest first and so always in the same order: when a little
 * less than all must go, the same old blocks stay each time.
 *
 * Some need no copy. One that was never brought in holds nothing. And those that
 * are to leave are looked at first (content.c), a few, so that the copies begin,
 * and then more while these go on: what is all zero just goes, and is cleared
 * when it comes back; what is as it came in goes too, as its slot is still right.
 */
#include <pthread.h>

#include "block.h"
#include "content.h"
#include "log.h"
#include "real.h"

struct move { struct block *block; unsigned event; };

/* A ring of copies under way; one event each. */
struct pipeline {
    struct move moves[COPIES_IN_FLIGHT];
    unsigned first, count;
    uint64_t bytes;                  /* of all moves completed */
    bool failed;
};

bool swap_enter_context(struct client *client)
{
    pthread_mutex_lock(&memory_lock);
    CUcontext context = client->context_count > 0 ? client->contexts[0] : NULL;
    pthread_mutex_unlock(&memory_lock);
    if (context == NULL || REAL(cuCtxSetCurrent)(context) != CUDA_SUCCESS)
        return false;
    if (client->copy_context == context)
        return true;
    CUresult result = REAL(cuStreamCreate)(&client->copy_stream, CU_STREAM_NON_BLOCKING);
    unsigned made = 0;
    while (result == CUDA_SUCCESS && made < COPIES_IN_FLIGHT)
        result = REAL(cuEventCreate)(&client->copied[made++],
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS) {
        debug("no stream to swap on: error %d", (int)result);
        return false;
    }
    client->copy_context = context;
    return true;
}

/* The driver destroys what lives in a context with it. */
void swap_leave_context(struct client *client, CUcontext context)
{
    if (client->copy_context != context)
        return;
    client->copy_context = NULL;
    content_leave_context(client);
}

/* Waits for the oldest copy and completes its block's move. Lock held, released meanwhile. */
static void complete(struct client *client, struct pipeline *line)
{
    struct move move = line->moves[line->first];
    line->first = (line->first + 1) % COPIES_IN_FLIGHT;
    line->count--;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuEventSynchronize)(client->copied[move.event]);
    pthread_mutex_lock(&memory_lock);

    struct block *block = move.block;
    bool left = block->state == BLOCK_LEAVING;
    if (left && result == CUDA_SUCCESS)
        result = block_unmap(block);
    if (result == CUDA_SUCCESS) {
        block_set_state(block, left ? BLOCK_SWAPPED : BLOCK_RESIDENT);
        if (left)
            block->known = block->looked;
        if (!block->zero)
            line->bytes += block->size;
        block->zero = false;
    } else {
        /* Whichever way it was going, its bytes are still where it came from. */
        line->failed = true;
        if (!left)
            block_unmap(block);
        block_set_state(block, left ? BLOCK_RESIDENT : BLOCK_SWAPPED);
    }
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* Starts a copy; the block is LEAVING or COMING. Lock held. */
static bool start(struct client *client, struct pipeline *line, struct block *block)
{
    unsigned slot = (line->first + line->count) % COPIES_IN_FLIGHT;
    CUresult result;
    if (block->state == BLOCK_LEAVING)
        result = REAL(cuMemcpyDtoHAsync_v2)(block->slot.address, block->address, block->size,
                                            client->copy_stream);
    else if (block->zero)
        result = REAL(cuMemsetD8Async)(block->address, 0, block->size, client->copy_stream);
    else
        result = REAL(cuMemcpyHtoDAsync_v2)(block->address, block->slot.address, block->size,
                                            client->copy_stream);
    if (result == CUDA_SUCCESS)
        result = REAL(cuEventRecord)(client->copied[slot], client->copy_stream);
    if (result != CUDA_SUCCESS) {
        debug("a copy of %zu bytes failed: error %d", block->size, (int)result);
        return false;
    }
    line->moves[slot] = (struct move){ block, slot };
    line->count++;
    return true;
}

static struct block *youngest_resident(struct client *client)
{
    struct block *block = client->youngest;
    while (block != NULL && block->state != BLOCK_RESIDENT)
        block = block->older;
    return block;
}

/* A block that was to leave does not. */
static void stay(struct block *block)
{
    block_set_state(block, BLOCK_RESIDENT);
    if (block->doomed)
        block_free(block);
}

static uint64_t leaving(const struct pipeline *line)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < line->count; i++)
        bytes += line->moves[(line->first + i) % COPIES_IN_FLIGHT].block->size;
    return bytes;
}

/* Blocks that are to leave and were looked at together. */
struct batch {
    struct block *blocks[LOOKS_MAX];
    struct content contents[LOOKS_MAX];
    bool looked;
    size_t limit, count, taken;
};

/* The next blocks that must go to leave no more than `room` filled. Lock held, released meanwhile. */
static bool gather(struct client *client, const struct pipeline *line, uint64_t room,
                   struct batch *batch)
{
    uint64_t filled = client->memory.resident - leaving(line) + client->memory.pinned;
    struct block *block;
    batch->count = batch->taken = 0;
    while (!client->granted && filled > room && batch->count < batch->limit
           && (block = youngest_resident(client)) != NULL) {
        /* From here on it does not disappear, even if it is freed. */
        block_set_state(block, BLOCK_LEAVING);
        batch->blocks[batch->count++] = block;
        filled -= block->size;
    }
    batch->limit = batch->limit * 4 < LOOKS_MAX ? batch->limit * 4 : LOOKS_MAX;
    if (batch->count == 0)
        return false;
    pthread_mutex_unlock(&memory_lock);
    batch->looked = content_look(client, batch->blocks, batch->count, batch->contents);
    pthread_mutex_lock(&memory_lock);
    return true;
}

/* Leaves without a copy. */
static bool vanish(struct block *block, bool zero)
{
    if (block_unmap(block) != CUDA_SUCCESS) {
        stay(block);
        return false;
    }
    if (zero)
        host_give(block);
    block->zero = zero;
    block_set_state(block, BLOCK_SWAPPED);
    pthread_cond_broadcast(&memory_changed);
    return true;
}

/* Sends one block on its way. `content` may be NULL. False: no more can go now.
 * Lock held, may be released meanwhile. */
static bool leave(struct client *client, struct pipeline *line, struct block *block,
                  const struct content *content, struct host_provision *provision,
                  uint64_t host, unsigned *flags)
{
    if (block->doomed) {
        stay(block);
        return true;
    }
    bool zero = content != NULL && content_is_zero(content);
    if (zero || (content != NULL && block->known && content_equal(content, &block->content))) {
        line->failed |= !vanish(block, zero);
        return !line->failed;
    }
    if (provision->client == NULL)
        host_provide(client, host, provision);
    bool has_slot = host_take(client, block, host);
    block->known = false;            /* the slot is about to be overwritten */
    block->looked = content != NULL;
    if (content != NULL)
        block->content = *content;
    if (!has_slot)
        *flags |= NVSHARE_NO_HOST_MEMORY;
    if (!has_slot || block->doomed || !start(client, line, block)) {
        line->failed |= has_slot && !block->doomed;
        stay(block);
        return has_slot && !line->failed;
    }
    if (line->count == COPIES_IN_FLIGHT)
        complete(client, line);
    return true;
}

uint64_t swap_out(struct client *client, uint64_t room, uint64_t host, unsigned *flags)
{
    struct pipeline line = { .count = 0 };
    struct batch batch = { .limit = COPIES_IN_FLIGHT };
    bool ready = swap_enter_context(client);
    pthread_mutex_lock(&memory_lock);
    struct nvshare_memory *memory = &client->memory;
    /* From here on the program's own allocations keep to the new room. */
    uint64_t before = memory->room;
    memory->room = room;
    struct host_provision provision = { .count = 0 };
    bool more = ready;
    while (more && (batch.taken < batch.count || gather(client, &line, room, &batch))) {
        size_t next = batch.taken++;
        more = leave(client, &line, batch.blocks[next],
                     batch.looked ? &batch.contents[next] : NULL, &provision, host, flags);
    }
    while (batch.taken < batch.count)
        stay(batch.blocks[batch.taken++]);
    while (line.count > 0)
        complete(client, &line);
    pthread_mutex_unlock(&memory_lock);
    host_provided(&provision);
    pthread_mutex_lock(&memory_lock);
    /* What could not leave still fills its room. */
    uint64_t filled = memory->resident + memory->pinned + (client->granted ? memory->pending : 0);
    if (filled > before)
        filled = before;             /* a wish is no room: nobody gave it any */
    if (memory->room < filled)
        memory->room = filled;
    if (line.failed || !ready)
        *flags |= NVSHARE_DRIVER_ERROR;
    pthread_mutex_unlock(&memory_lock);
    return line.bytes;
}

/* Its host memory goes with its slot if the client may not keep so much. */
static void settle_host(struct client *client, uint64_t host)
{
    if (client->memory.host <= host)
        return;
    for (struct block *block = client->blocks;
         block != NULL && client->memory.host > host; block = block->younger)
        if (block->state == BLOCK_RESIDENT)
            host_give(block);
    host_trim(client, host);
}

static struct block *next_absent(struct client *client)
{
    struct block *block = client->blocks;
    while (block != NULL && block->state != BLOCK_EMPTY && block->state != BLOCK_SWAPPED)
        block = block->younger;
    return block;
}

uint64_t swap_in(struct client *client, uint64_t room, uint64_t host, unsigned *flags)
{
    struct pipeline line = { .count = 0 };
    uint64_t mapped = 0;
    bool ready = swap_enter_context(client);
    pthread_mutex_lock(&memory_lock);
    client->memory.room = room;
    struct block *block;
    while (ready && (block = next_absent(client)) != NULL
           && client_free_room(client) >= block->size) {
        CUresult result = block_map(block);
        if (result != CUDA_SUCCESS) {
            *flags |= result == CUDA_ERROR_OUT_OF_MEMORY ? NVSHARE_NO_DEVICE_MEMORY
                                                         : NVSHARE_DRIVER_ERROR;
            break;
        }
        if (block->state == BLOCK_EMPTY) {
            block_set_state(block, BLOCK_RESIDENT);
            mapped += block->size;
            continue;
        }
        block_set_state(block, BLOCK_COMING);
        if (!start(client, &line, block)) {
            block_unmap(block);
            block_set_state(block, BLOCK_SWAPPED);
            line.failed = true;
            break;
        }
        if (line.count == COPIES_IN_FLIGHT) {
            complete(client, &line);
            settle_host(client, host);
        }
    }
    while (line.count > 0)
        complete(client, &line);
    settle_host(client, host);
    if (line.failed || !ready)
        *flags |= client->absent > 0 ? NVSHARE_DRIVER_ERROR : 0;
    pthread_mutex_unlock(&memory_lock);
    return line.bytes + mapped;
}
