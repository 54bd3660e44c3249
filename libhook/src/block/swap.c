/* SPDX-License-Identifier: Apache-2.0 */
/* Moves blocks between the card and the tiers, a few copies in flight on a stream of the
 * library, so that the bus never waits for a map or an unmap. A block counts as resident from
 * the creation of its card memory to the release. At every moment its bytes are on the card or in
 * its place: an evicted block stays mapped, and a loaded block keeps its place, until the copy has
 * completed.
 *
 * Some blocks need no copy (contents.c): zeros are only released, and cleared when loaded again;
 * unchanged blocks still have their bytes in their place.
 *
 * A speculative order (NVSHARE_AHEAD) must free the bus when a program begins to copy
 * (bus_sharing.c): it ends at a YIELD, which it checks for before each block and piece, with at
 * most two pieces in flight. A piece takes about PIECE_US at the speed of the last one, however slow
 * the path is: memory that is not registered, or a bus that others use.
 *
 * Writeback: copies blocks of an idle program to their places and leaves them on the card
 * (nvshared/scheduler/ahead.py), so that they can be evicted as fast as memory is unmapped. It
 * allocates host memory slab by slab, not in several threads, as a program that wants to run
 * meanwhile waits for the slab. A block records the turn in which it was written back or loaded:
 * while the gate is closed nothing writes, so its place is current (block_is_clean()) until the
 * next turn begins. */
#include "block/swap.h"

#include <string.h>
#include <time.h>

#include "block/block.h"
#include "block/contents.h"
#include "block/search.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/bus_sharing.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "tier/tier.h"

#define COPIES_IN_FLIGHT 4
#define COPIES_AHEAD 2               /* copies in flight of a speculative order */
#define PIECE_MOST ((size_t)16 << 20)
#define PIECE_US 1000
#define HELD_MOST_US 2000            /* longest time that a loop holds memory_lock */

struct progress {
    uint64_t bytes;                  /* bytes of the blocks moved so far */
    unsigned copies;                 /* number of copies in flight */
    bool failed;
    bool yielded;                    /* a YIELD for the order has arrived: no more blocks move */
};

/* The copies in flight, in the order in which they complete. */
struct pipeline {
    struct move {
        struct block *block;
        struct progress *progress;
        size_t bytes;
        bool last;                   /* this copy is the last of its block */
        uint64_t began;              /* us: when the copy was submitted, */
        size_t flying;               /* and bytes in flight then, its own included */
    } moves[COPIES_IN_FLIGHT];       /* a ring; entry i has event i of copy_events[client] */
    unsigned first, count;
    uint64_t since, bytes;           /* us: when the first copy began; bytes copied from then on */
    size_t piece;                    /* bytes of the next piece; 0: no copy has ended yet */
};

static unsigned pipeline_depth(const struct nvshare_order *order)
{
    return (order->flags & NVSHARE_AHEAD) != 0 ? COPIES_AHEAD : COPIES_IN_FLIGHT;
}

/* By client index; created in the client's copy_context. Protected by service_lock. */
static CUevent copy_events[CLIENTS_MAX][COPIES_IN_FLIGHT];
/* By client index; created while the program had no context; or NULL. Protected by service_lock. */
static CUcontext own_contexts[CLIENTS_MAX];

/* The bytes that take PIECE_US at the speed of a copy of `bytes`. */
static size_t piece_size(size_t bytes, uint64_t microseconds)
{
    uint64_t size = bytes * PIECE_US / (microseconds + 1) / PAGE * PAGE;
    return size < PAGE ? PAGE : size < PIECE_MOST ? size : PIECE_MOST;
}

/* Whether a YIELD for the order has arrived. */
static bool order_yields(struct client *client, const struct nvshare_order *order,
                         struct progress *progress)
{
    if ((order->flags & NVSHARE_AHEAD) != 0 && !progress->yielded)
        progress->yielded = client_take_yield(client);
    return progress->yielded;
}

/* Releases memory_lock now and then in long loops, for the 50 us in which a waiting thread wakes
 * up: unlocking does not hand over a mutex. *held_since: us, kept by the caller, 0 at first. */
static void memory_lock_yields(uint64_t *held_since)
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

/* Creates a context for copies while the program has no context: physical memory outlives contexts.
 * It is not the primary context, which the program may query and reset. */
static CUcontext own_context(const struct client *client)
{
    CUcontext same, *own = &own_contexts[client->index];
    if (*own != NULL)
        return *own;
    CUresult result = REAL(cuCtxCreate_v2)(own, 0, client->device);
    if (result == CUDA_SUCCESS)
        REAL(cuCtxPopCurrent_v2)(&same);
    else
        debug("no context to swap in: error %d", (int)result);
    return *own;
}

bool swap_enter_context(struct client *client)
{
    CUcontext context = contexts_of(client->device, 0), *own = &own_contexts[client->index];
    pthread_mutex_lock(&memory_lock);
    bool alone = context == NULL && client->memory.allocated > 0, drained = client->drained;
    pthread_mutex_unlock(&memory_lock);
    if (alone || (*own != NULL && !drained)) {
        context = own_context(client);   /* its end would wait for work in flight, see waits.def */
    } else if (context != NULL && *own != NULL) {
        pthread_mutex_lock(&memory_lock);
        swap_leave_context(client, *own, true);
        pthread_mutex_unlock(&memory_lock);
        REAL(cuCtxDestroy_v2)(*own);
        *own = NULL;
    }
    if (context == NULL || REAL(cuCtxSetCurrent)(context) != CUDA_SUCCESS)
        return false;
    if (client->copy_context == context)
        return true;
    CUresult result = REAL(cuStreamCreate)(&client->copy_stream, CU_STREAM_NON_BLOCKING);
    unsigned made = 0;
    while (result == CUDA_SUCCESS && made < COPIES_IN_FLIGHT)
        result = REAL(cuEventCreate)(&copy_events[client->index][made++],
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS) {
        debug("no stream to swap on: error %d", (int)result);
        return false;
    }
    client->copy_context = context;
    return true;
}

/* The driver destroys the copy stream and its events with the context. */
void swap_leave_context(struct client *client, CUcontext context, bool drained)
{
    if (client->copy_context != context)
        return;
    tiers_leave_context(client, drained);
    client->copy_context = NULL;
    content_leave_context(client);
}

/* Calls the tier's settle() when all copies of the block have ended. memory_lock is not held. */
static enum settled settle(struct block *block)
{
    return block->zero || block->place.tier->settle == NULL
        ? SETTLED : block->place.tier->settle(&block->place, block->address);
}

/* After a failed copy: gives up a place in a tier that may fail, unless it has the only copy of the
 * bytes. Releases memory_lock meanwhile. */
static void avoid_place(struct client *client, struct block *block)
{
    if (block->zero || block->place.tier->failed == NULL)
        return;
    if (block->state == BLOCK_EVICTING)
        block->place.tier->failed(client);
    /* If only the wait for the copy has failed, the copy may still use the place. */
    pthread_mutex_unlock(&memory_lock);
    bool ended = REAL(cuStreamSynchronize)(client->copy_stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    if (ended && block->state == BLOCK_EVICTING)
        block_give_place(block);
    else if (ended && block->copy.tier != NULL)
        block_return_place(block);
}

/* Ends the move of a block, also before its first copy. Frees the block if the program has freed it
 * during the move. */
static void end_move(struct block *block, enum block_state state)
{
    block->writing_back = false;
    block_set_state(block, state);
    if (block->doomed)
        block_free(block);
    memory_notify();
}

/* Waits for the oldest copy in flight, with memory_lock released. If it was its block's last copy,
 * completes the block's move. */
static void pipeline_complete(struct client *client, struct pipeline *line)
{
    CUevent event = copy_events[client->index][line->first];
    struct move move = line->moves[line->first];
    line->first = (line->first + 1) % COPIES_IN_FLIGHT;
    line->count--;
    move.progress->copies--;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuEventSynchronize)(event);
    struct block *block = move.block;
    enum settled settled = move.last ? settle(block) : SETTLED;
    pthread_mutex_lock(&memory_lock);
    if (settled == UNSETTLED)
        result = CUDA_ERROR_UNKNOWN;

    /* Not from the end of the copy before it: this thread may notice both ends late. */
    uint64_t now = now_microseconds();
    line->piece = piece_size(move.flying, now - move.began);
    bool left = block->state == BLOCK_EVICTING, keeps = block->writing_back;
    if (result == CUDA_SUCCESS && !block->zero && block->place.tier->over_bus) {
        line->bytes += move.bytes;
        bus_sharing_measured(left ? BUS_OUT : BUS_IN, line->bytes, now - line->since);
    }
    if (!move.last)
        return;                      /* if this copy has failed, the block's last copy fails, too */
    enum block_state state = left && !keeps ? BLOCK_SWAPPED : BLOCK_RESIDENT;
    if (settled == LOST)
        result = block_unmap(block);
    if (left && !keeps && result == CUDA_SUCCESS)
        result = block_unmap(block);
    if (settled == LOST && result == CUDA_SUCCESS) {
        block_set_state(block, BLOCK_SWAPPED);
        block_lose(block);
        state = BLOCK_LOST;
    } else if (result == CUDA_SUCCESS) {
        if (left)
            block->known = block->content_valid;
        if (block->place.tier != NULL && !block->zero)
            block_note_clean(block);
        if (!block->zero)
            move.progress->bytes += block->size;
        block->zero = false;
        if (!left && block->place.tier != NULL && !block->place.tier->keeps)
            block_give_place(block);
    } else {
        /* After a failed copy in either direction, the bytes are still at the source. */
        move.progress->failed = true;
        avoid_place(client, block);
        if (!left)
            block_unmap(block);
        state = left ? BLOCK_RESIDENT : BLOCK_SWAPPED;
    }
    end_move(block, state);
}

static CUresult copy(struct client *client, struct block *block, size_t offset, size_t size)
{
    CUstream stream = client->copy_stream;
    if (block->zero)
        return REAL(cuMemsetD8Async)(block->address + offset, 0, size, stream);
    return block->place.tier->copy(&block->place, block->state == BLOCK_EVICTING, block->address,
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
        result = REAL(cuEventRecord)(copy_events[client->index][slot], client->copy_stream);
    if (result != CUDA_SUCCESS) {
        debug("a copy of %zu bytes failed: error %d", size, (int)result);
        return false;
    }
    size_t flying = size;
    for (unsigned i = 0; i < line->count; i++)
        flying += line->moves[(line->first + i) % COPIES_IN_FLIGHT].bytes;
    line->moves[slot] = (struct move){ block, progress, size, offset + size == block->size,
                                       now_microseconds(), flying };
    line->count++;
    progress->copies++;
    return true;
}

/* Starts to copy an EVICTING or LOADING block. False: the driver has refused a copy, or the order
 * yields; the block has not moved. May release memory_lock, and wait for copies. */
static bool pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                           struct progress *progress, const struct nvshare_order *order)
{
    bool ahead = (order->flags & NVSHARE_AHEAD) != 0, started = true;
    bool pieces = ahead && !block->zero && block->place.tier->pieces;
    for (size_t offset = 0, size; started && offset < block->size; offset += size) {
        while (line->count >= pipeline_depth(order))
            pipeline_complete(client, line);
        size_t piece = !pieces ? block->size : line->piece == 0 ? PAGE : line->piece;
        size = block->size - offset < piece ? block->size - offset : piece;
        started = (offset == 0 || !order_yields(client, order, progress))
            && start_piece(client, line, block, offset, size, progress);
    }
    if (started)
        return true;
    /* Pieces of the block may be in flight. All its bytes are still at the source. */
    while (line->count > 0)
        pipeline_complete(client, line);
    pthread_mutex_unlock(&memory_lock);
    settle(block);
    pthread_mutex_lock(&memory_lock);
    if (!progress->yielded)
        avoid_place(client, block);
    return false;
}

/* The order of eviction, if not all blocks must be evicted: blocks that were zero when last read;
 * blocks that are clean, or were unchanged at their last eviction; all others. Within a class the
 * youngest first: if nearly all must be evicted at each turn, the same old blocks stay resident,
 * and other blocks can use their places in the tiers. If the known zero blocks do not suffice,
 * blocks that were never read are read first: a program that allocates most of the card in advance
 * has many of them. Unless a block is clean, it is read again when it is evicted. */

/* `unready`: finds only blocks that need a copy, for writeback. *rank: its rank; 0 at first. */
static struct block *search_victim(const struct client *client, unsigned *rank, bool unready)
{
    enum search first = unready ? SEARCH_UNREADY : SEARCH_VICTIM;
    struct block *block = NULL;
    while (*rank < RANKS && (block = search_first(client, first + *rank)) == NULL)
        ++*rank;
    return block;
}

static void note_reading(struct block *block)
{
    block->was_read = true;
    block->was_zero = block->reading.whole && block->reading.all.any == 0;
}

/* Reads blocks that were never read until `wanted` bytes are known as zero, if not all blocks
 * must be evicted. Service thread; may release memory_lock. */
static void find_zero_blocks(struct client *client, uint64_t wanted,
                             const struct nvshare_order *order, struct progress *progress)
{
    struct block *block, *blocks[WHOLE_READS_MAX];
    bool read = wanted < client->memory.resident;
    while (read && !client->running && search_bytes(client, SEARCH_WAS_ZERO) < wanted
           && !order_yields(client, order, progress)) {
        size_t count = 0;
        for (; count < WHOLE_READS_MAX && (block = search_first(client, SEARCH_UNREAD)) != NULL;
             count++) {
            block_set_state(block, BLOCK_EVICTING);      /* a free is then deferred */
            blocks[count] = block;
        }
        if (count == 0)
            return;
        pthread_mutex_unlock(&memory_lock);
        read = content_read(client, blocks, count);
        pthread_mutex_lock(&memory_lock);
        for (size_t i = 0; i < count; i++) {
            if (read)
                note_reading(blocks[i]);
            end_move(blocks[i], BLOCK_RESIDENT);
        }
    }
}

struct eviction {
    struct client *client;
    const struct nvshare_order *order;
    bool keeps_resident;             /* a writeback (EVICT with KEEP) */
    uint64_t ready;                  /* for a writeback: bytes that can be evicted without a copy */
    unsigned flags;                  /* flags of the answer to the order */
    struct pipeline line;
    struct progress progress;

    /* The batch chosen last, of which next_victim() has returned `taken` blocks. */
    struct block *blocks[WHOLE_READS_MAX];
    bool read;                       /* reading the batch has succeeded */
    size_t limit, count, taken;
    unsigned rank;                   /* rank of the last block chosen */
};

enum verdict { CHANGED, UNCHANGED, EMPTY };      /* block against its place; EMPTY: all zero */

/* Chooses at most `most` blocks until their sizes add up to `wanted` bytes, all managed or
 * all not managed. They become EVICTING, so that a free by the program is deferred. */
static size_t take(const struct eviction *eviction, unsigned *rank, struct block **blocks,
                   size_t most, uint64_t wanted)
{
    struct block *block;
    size_t count = 0;
    uint64_t bytes = 0;
    while (bytes < wanted && count < most
           && (block = search_victim(eviction->client, rank, eviction->keeps_resident)) != NULL
           && (count == 0 || block->managed == blocks[0]->managed)) {
        block_set_state(block, BLOCK_EVICTING);
        blocks[count++] = block;
        bytes += block->size;
    }
    return count;
}

/* Stores in `found` the blocks that must be read: blocks that are neither clean nor managed. */
static size_t filter_unread(struct block *const *blocks, size_t count, struct block **found)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (!blocks[i]->managed && !block_is_clean(blocks[i]))
            found[kept++] = blocks[i];
    return kept;
}

/* Reads the batch. As each launch takes a part of a millisecond from the running client, `further`
 * lets it also read the blocks that would be evicted next, for later batches and orders. */
static void read_victims(struct eviction *eviction, bool further)
{
    struct client *client = eviction->client;
    struct block *blocks[READS_MAX], *next[READS_MAX];
    size_t count = filter_unread(eviction->blocks, eviction->count, blocks), more = 0;
    unsigned rank = eviction->rank;
    bool known = true;
    eviction->read = false;
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        known = known && block_reading_is_valid(blocks[i]);
    if (further && !known) {
        more = take(eviction, &rank, next, READS_MAX - eviction->count, UINT64_MAX);
        count += filter_unread(next, more, blocks + count);
    }
    pthread_mutex_unlock(&memory_lock);
    eviction->read = content_read(client, blocks, count);
    pthread_mutex_lock(&memory_lock);
    for (size_t i = 0; i < more; i++) {
        if (eviction->read && block_reading_is_valid(next[i]))
            note_reading(next[i]);
        end_move(next[i], BLOCK_RESIDENT);
    }
}

/* The first batch is small so that copies begin soon, each later one four times larger. If a
 * client waits for the order, no further blocks are read with the first batch. */
static void choose_victims(struct eviction *eviction, uint64_t wanted)
{
    bool hurry = !eviction->keeps_resident && (eviction->order->flags & NVSHARE_AHEAD) == 0
        && eviction->limit == COPIES_IN_FLIGHT;
    eviction->count = eviction->taken = 0;
    if (!eviction->client->running && eviction->client->pin_reason == NVSHARE_PIN_NONE)
        eviction->count = take(eviction, &eviction->rank, eviction->blocks, eviction->limit,
                               wanted);
    eviction->limit = eviction->limit * 4 < WHOLE_READS_MAX ? eviction->limit * 4 : WHOLE_READS_MAX;
    read_victims(eviction, !hurry);
}

static enum verdict classify(struct eviction *eviction, struct block *block)
{
    if (block_is_clean(block))
        return UNCHANGED;
    if (!eviction->read)
        return CHANGED;
    note_reading(block);
    const struct reading *reading = &block->reading;
    if (reading->whole && reading->all.any == 0)
        return EMPTY;
    return reading->whole && block->known && content_equal(&reading->all, &block->content)
        ? UNCHANGED : CHANGED;
}

/* Starts to copy a block to its place in a tier. False: no further block can be evicted now. May
 * release memory_lock. */
static bool start_copy(struct eviction *eviction, struct block *block)
{
    struct client *client = eviction->client;
    const struct nvshare_order *order = eviction->order;
    const struct reading *reading = &block->reading;
    block->writing_back = eviction->keeps_resident;
    block->changed_before = block->known;
    bool has_place = block_take_place(block, order->host);
    block->known = false;            /* the place is about to be overwritten */
    if (block->write != NULL)
        block->write->overwritten = block->write->cancelled = true;
    block_give_copy(block);
    block->clean_as_of_turn = 0;
    block->content_valid = eviction->read && reading->whole;
    block->content = reading->all;
    block->part_valid = eviction->read;
    block->part = reading->part;
    struct progress *progress = &eviction->progress;
    if (!has_place && !order_yields(client, order, progress))
        eviction->flags |= NVSHARE_NO_MEMORY;
    if (!has_place || block->doomed) {
        end_move(block, BLOCK_RESIDENT);
        return has_place;
    }
    if (!pipeline_start(client, &eviction->line, block, progress, order)) {
        /* If a copy to a tier that may fail was refused, the block has lost its place there
         * and is chosen again. */
        bool refused = !progress->yielded && block->place.tier == NULL;
        progress->failed |= !progress->yielded && !refused;
        end_move(block, BLOCK_RESIDENT);
        return refused;
    }
    if (eviction->line.count == pipeline_depth(order))
        pipeline_complete(client, &eviction->line);
    return true;
}

/* Makes chosen blocks RESIDENT again and waits for all copies in flight. */
static void end_eviction(struct eviction *eviction)
{
    while (eviction->taken < eviction->count)
        end_move(eviction->blocks[eviction->taken++], BLOCK_RESIDENT);
    while (eviction->line.count > 0)
        pipeline_complete(eviction->client, &eviction->line);
    eviction->client->speculates = false;
    eviction->flags |= (eviction->progress.failed ? NVSHARE_DRIVER_ERROR : 0)
        | (eviction->progress.yielded ? NVSHARE_YIELDED : 0);
}

/* Bytes still to evict, not counting blocks with their last copy in flight. */
static uint64_t surplus(const struct eviction *eviction)
{
    const struct nvshare_memory *memory = &eviction->client->memory;
    const struct pipeline *line = &eviction->line;
    uint64_t filled = memory->resident + memory->pinned;
    for (unsigned i = 0; i < line->count; i++)
        if (line->moves[(line->first + i) % COPIES_IN_FLIGHT].last)
            filled -= line->moves[(line->first + i) % COPIES_IN_FLIGHT].block->size;
    return filled > eviction->order->room ? filled - eviction->order->room : 0;
}

/* Starts to evict a block. False: no further block can be evicted now. May release memory_lock. */
static bool evict(struct eviction *eviction, struct block *block)
{
    if (block->doomed || eviction->client->pin_reason != NVSHARE_PIN_NONE) {
        end_move(block, BLOCK_RESIDENT);
        return true;
    }
    bool clean = block_is_clean(block);
    enum verdict verdict = classify(eviction, block);
    if (verdict == CHANGED)
        return start_copy(eviction, block);
    if (block_unmap(block) != CUDA_SUCCESS) {
        end_move(block, BLOCK_RESIDENT);
        eviction->progress.failed = true;
        return false;
    }
    block_set_state(block, BLOCK_SWAPPED);
    memory_notify();
    if (!clean) {                    /* the block was read just now */
        block->zero = verdict == EMPTY;
        if (block->zero)
            block_give_place(block);
        block->changed_before = false;
        block->part_valid = true;
        block->part = block->reading.part;
    }
    return true;
}

/* Writes back a block, unless its place has its bytes. False: no further block can be moved now. */
static bool write_back(struct eviction *eviction, struct block *block)
{
    enum verdict verdict = block->doomed ? EMPTY : classify(eviction, block);
    if (verdict == CHANGED)
        return start_copy(eviction, block);
    if (verdict == UNCHANGED) {
        block->changed_before = false;
        block_note_clean(block);
    }
    end_move(block, BLOCK_RESIDENT);
    return true;
}

/* The next block to move: EVICTING and already read. NULL: no more. May release memory_lock. */
static struct block *next_victim(struct eviction *eviction)
{
    const struct nvshare_order *order = eviction->order;
    uint64_t wanted = !eviction->keeps_resident ? surplus(eviction)
        : order->writeback > eviction->ready ? order->writeback - eviction->ready : 0;
    if (wanted > 0 && eviction->taken == eviction->count)
        choose_victims(eviction, wanted);
    if (wanted == 0 || eviction->taken == eviction->count)
        return NULL;
    eviction->ready += eviction->blocks[eviction->taken]->size;
    return eviction->blocks[eviction->taken++];
}

/* Evicts or writes back blocks until the order is fulfilled. False: no more blocks can be moved. */
static bool move_victims(struct eviction *eviction)
{
    struct client *client = eviction->client;
    struct progress *progress = &eviction->progress;
    struct block *block;
    uint64_t held_since = 0;
    bool more = true;
    while (more && !progress->failed && (block = next_victim(eviction)) != NULL) {
        if (order_yields(client, eviction->order, progress)) {
            end_move(block, BLOCK_RESIDENT);
            return false;
        }
        more = eviction->keeps_resident ? write_back(eviction, block) : evict(eviction, block);
        memory_lock_yields(&held_since);
    }
    return more && !progress->failed;
}

uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    uint64_t room = order->room;
    struct eviction eviction = { .client = client, .order = order, .limit = COPIES_IN_FLIGHT };
    bool ready = swap_enter_context(client);
    LOCKED(memory_lock);
    bool more = ready && client->pin_reason == NVSHARE_PIN_NONE;
    struct nvshare_memory *memory = &client->memory;
    client->speculates = (order->flags & NVSHARE_AHEAD) != 0;
    /* Set before blocks are evicted, so that the program's allocations respect the new room. */
    uint64_t before = memory->room;
    memory->room = room;
    eviction.progress.failed = !ready;
    uint64_t occupied = memory->resident + memory->pinned;
    if (more && occupied > room) {
        tiers_expect(client, occupied - room);
        find_zero_blocks(client, occupied - room, order, &eviction.progress);
    }
    if (more)
        move_victims(&eviction);
    end_eviction(&eviction);
    if ((eviction.flags & (NVSHARE_DRIVER_ERROR | NVSHARE_NO_MEMORY)) != 0)
        release_if_context_failed(client);
    /* Blocks that could not be evicted still fill the client's room, which thus stays larger. */
    uint64_t filled = memory->resident + memory->pinned + (client->running ? memory->pending : 0);
    if (filled > before)
        filled = before;             /* `pending` may include room not granted yet */
    if (memory->room < filled)
        memory->room = filled;
    *flags = eviction.flags;
    return eviction.progress.bytes;
}

/* The bytes that the client's blocks have in the lent tier, beyond `loan`. */
static uint64_t beyond(const struct client *client, uint64_t loan)
{
    uint64_t borrowed = tier_use(client, tier_lent())->bytes;
    return borrowed > loan ? borrowed - loan : 0;
}

/* Takes a place for a copy of a block in the lent tier. */
static bool take_copy(struct client *client, size_t size, uint64_t allowance, struct place *place)
{
    EACH_TIER(tier)
        if (tier->take != NULL && !tier->managed && tier->lend == NULL
            && tier_take(client, tier, size, allowance, true, place))
            return true;
    return false;
}

/* Starts to copy a COPYING block from the lent tier to a new place, with at most two pieces in
 * flight. It ends early at a YIELD or, as no YIELD follows the return of a loan, at a LOAD: blocks
 * that are loaded can be returned without a copy. False: the copy is not complete. May release
 * memory_lock. */
static bool copy_behind(struct client *client, struct block *block, struct place *place,
                        const struct nvshare_order *order, struct progress *progress)
{
    CUevent *events = copy_events[client->index];
    size_t piece = PAGE, offset = 0, sizes[2];
    uint64_t began[2];
    bool more = take_copy(client, block->size, order->host, place);
    if (!more)
        order_yields(client, order, progress);  /* a YIELD ends the making of host memory, too */
    for (unsigned i = 0, last = 1; more && offset < block->size; i = last, last = !last) {
        sizes[i] = block->size - offset < piece ? block->size - offset : piece;
        began[i] = now_microseconds();
        if ((order->flags & NVSHARE_AHEAD) == 0)
            progress->yielded = progress->yielded || client_load_follows(client);
        more = !order_yields(client, order, progress)
            && place->tier->copy(place, true, block->place.address, offset, sizes[i],
                                 client->copy_stream) == CUDA_SUCCESS
            && REAL(cuEventRecord)(events[i], client->copy_stream) == CUDA_SUCCESS;
        offset += sizes[i];
        if (!more || offset == sizes[i])
            continue;
        pthread_mutex_unlock(&memory_lock);
        more = REAL(cuEventSynchronize)(events[last]) == CUDA_SUCCESS;
        pthread_mutex_lock(&memory_lock);
        piece = piece_size(sizes[last], now_microseconds() - began[last]);
    }
    return more;
}

/* Copies swapped blocks from the lent tier to one behind it if no copy is there: the oldest first,
 * until `bytes` or COPIES_IN_FLIGHT blocks are chosen. The blocks are COPYING, so that a free is
 * deferred. Gives back their lent memory as long as more than `loan` bytes are borrowed.
 * Returns the bytes copied. Releases memory_lock. */
static uint64_t copy_borrowed(struct client *client, const struct nvshare_order *order,
                              uint64_t bytes, uint64_t loan, struct progress *progress)
{
    struct block *block, *blocks[COPIES_IN_FLIGHT];
    struct place places[COPIES_IN_FLIGHT] = { { .tier = NULL } };
    unsigned count = 0, started = 0;
    uint64_t copied = 0;
    for (uint64_t chosen = 0; chosen < bytes && count < COPIES_IN_FLIGHT
         && (block = search_first(client, SEARCH_DIRTY)) != NULL; chosen += block->size) {
        block_set_state(block, BLOCK_COPYING);
        blocks[count++] = block;
    }
    while (started < count
           && copy_behind(client, blocks[started], &places[started], order, progress))
        started++;
    pthread_mutex_unlock(&memory_lock);
    bool done = REAL(cuStreamSynchronize)(client->copy_stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < count; i++) {
        block = blocks[i];
        if (done && i < started) {
            block->copy = places[i];
            copied += block->size;
        } else {
            tier_give(client, block->size, &places[i]);
        }
        if (block->copy.tier != NULL && beyond(client, loan) > 0)
            block_return_place(block);
        end_move(block, BLOCK_SWAPPED);
    }
    return copied;
}

uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order)
{
    tier_lent()->lend(client, order->loan, order->lender);
    uint64_t loan = tier_use(client, tier_lent())->limit;
    for (struct block *block = client->blocks; block != NULL && beyond(client, loan) > 0;
         block = block->younger)
        if (block->place.tier != NULL && block->place.tier->lend != NULL
            && (block->state == BLOCK_RESIDENT
                || (block->state == BLOCK_SWAPPED && block->copy.tier != NULL)))
            block_return_place(block);
    return loan;
}

void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    pthread_mutex_lock(&memory_lock);
    uint64_t loan = swap_forget_borrowed(client, order);
    uint64_t surplus = beyond(client, loan);
    pthread_mutex_unlock(&memory_lock);
    if (surplus == 0)
        return;
    bool ready = swap_enter_context(client);
    LOCKED(memory_lock);
    surplus = beyond(client, loan);  /* the lock was released */
    /* Borrowed bytes count in memory.host, and so do their new places: the surplus would count
     * twice against the order's `host`. It is therefore left out of memory.host until all is
     * copied, but for reports, which other threads may send meanwhile. Frees by the program reduce
     * `uncounted` (tier_give()). */
    client->memory.host -= surplus;
    client->uncounted = surplus;
    tiers_expect(client, surplus);
    struct progress progress = { .copies = 0 };
    while (ready && beyond(client, loan) > 0
           && copy_borrowed(client, order, beyond(client, loan), loan, &progress) > 0)
        continue;
    tiers_expect(client, 0);
    client->memory.host += client->uncounted;
    client->uncounted = 0;
    if (progress.yielded) {
        *flags |= NVSHARE_YIELDED;
    } else if (beyond(client, loan) > 0) {
        *flags |= NVSHARE_NO_MEMORY;
        release_if_context_failed(client);
    }
}

uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    struct eviction eviction = { .client = client, .order = order, .keeps_resident = true,
                                 .limit = COPIES_IN_FLIGHT };
    bool more = swap_enter_context(client);
    LOCKED(memory_lock);
    tier_lent()->lend(client, order->loan, order->lender);
    client->speculates = (order->flags & NVSHARE_AHEAD) != 0;
    eviction.progress.failed = !more;
    more = more && !client->running;
    if (more) {
        find_zero_blocks(client, order->writeback, order, &eviction.progress);
        eviction.ready = search_bytes(client, SEARCH_READY);
        more = move_victims(&eviction);
    }
    while (more && search_dirty_bytes(client) > 0 && !order_yields(client, order, &eviction.progress))
        more = copy_borrowed(client, order, 1, UINT64_MAX, &eviction.progress) > 0;
    end_eviction(&eviction);
    *flags = eviction.flags;
    return search_bytes(client, SEARCH_READY);
}

/* A large program is loaded by a sequence of LOADs, and the bus should not pause between them:
 * once all copies of a LOAD are started, the copies of the next LOAD are started if it has arrived.
 * Each LOAD is answered when its own copies are done. */

struct load {
    struct nvshare_order order;
    unsigned flags;                  /* flags of the answer to `order` */
    struct progress progress;
};

/* Maps a block and starts to copy its bytes. False: no further block can be loaded now. */
static bool load_block(struct client *client, struct pipeline *line, struct load *load,
                       struct block *block)
{
    CUresult result = block_map(block);
    if (result != CUDA_SUCCESS) {
        load->flags |= result == CUDA_ERROR_OUT_OF_MEMORY ? NVSHARE_NO_MEMORY
                                                          : NVSHARE_DRIVER_ERROR;
        return false;
    }
    if (block->state == BLOCK_EMPTY) {
        block_set_state(block, BLOCK_RESIDENT);
        load->progress.bytes += block->size;
        return true;
    }
    block_set_state(block, BLOCK_LOADING);
    if (pipeline_start(client, line, block, &load->progress, &load->order))
        return true;
    block_unmap(block);
    end_move(block, BLOCK_SWAPPED);
    load->progress.failed |= !load->progress.yielded;
    return false;
}

/* Called when the copies of `load` and of all earlier LOADs have completed. */
static void answer_load(struct client *client, struct load *load, uint64_t *since)
{
    uint64_t now = now_microseconds();
    blocks_give_places(client, load->order.host);
    if (load->progress.failed && client->absent > 0)
        load->flags |= NVSHARE_DRIVER_ERROR;
    load->flags |= load->progress.yielded ? NVSHARE_YIELDED : 0;
    if ((load->flags & (NVSHARE_DRIVER_ERROR | NVSHARE_NO_MEMORY)) != 0)
        release_if_context_failed(client);
    client->starved_reported = false;
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_MOVED, .flags = load->flags, .number = load->order.number,
        .moved = load->progress.bytes, .took = now - *since,
    });
    client_update(client);
    *since = now;
}

/* Starts to load blocks until the client's room is filled. Answers `*before`, the LOAD before this
 * one, as soon as its last copy has completed: the daemon then sends the next LOAD while blocks of
 * this one still move. */
static void load_blocks(struct client *client, struct pipeline *line, struct load *load,
                        struct load **before, uint64_t *since)
{
    struct block *block;
    uint64_t held_since = 0;
    client->memory.room = load->order.room;
    while (!load->progress.failed && (block = search_first(client, SEARCH_ABSENT)) != NULL) {
        if (client_free_room(client) < block->size
            || order_yields(client, &load->order, &load->progress)
            || !load_block(client, line, load, block))
            return;
        while (line->count >= pipeline_depth(&load->order)) {
            pipeline_complete(client, line);
            blocks_give_places(client, load->order.host);
        }
        if (*before != NULL && (*before)->progress.copies == 0) {
            answer_load(client, *before, since);
            *before = NULL;
        }
        memory_lock_yields(&held_since);
    }
}

void swap_in(struct client *client, const struct nvshare_order *order)
{
    struct nvshare_order next = *order;
    struct pipeline line = { .count = 0 };
    struct load loads[2] = { { .flags = 0 } }, *load = NULL, *before = NULL;
    uint64_t since = now_microseconds();
    bool ready = swap_enter_context(client), has_next = true;
    LOCKED(memory_lock);
    while (has_next) {
        load = load == &loads[0] ? &loads[1] : &loads[0];
        *load = (struct load){ next, 0, { .failed = !ready } };
        if (ready)
            load_blocks(client, &line, load, &before, &since);
        else
            client->memory.room = load->order.room;
        bool succeeded = load->flags == 0 && !load->progress.failed && !load->progress.yielded;
        while (before != NULL && before->progress.copies > 0)
            pipeline_complete(client, &line);
        if (before != NULL)
            answer_load(client, before, &since);
        /* Postponed orders come before the next LOAD (service.c). */
        while (!(has_next = succeeded && client_next(client, NVSHARE_LOAD, &next)) && line.count > 0)
            pipeline_complete(client, &line);
        before = load;
    }
    tiers_loaded(client);
    answer_load(client, load, &since);
}

/* What was last reported, by client index. */
static struct {
    uint64_t borrowed, dirty;
} reported[CLIENTS_MAX];

bool swap_report(struct client *client, struct nvshare_report *report)
{
    const struct tier_use *use = tier_use(client, tier_lent());
    uint64_t dirty = search_dirty_bytes(client);
    if (use->bytes == reported[client->index].borrowed
        && dirty == reported[client->index].dirty)
        return false;
    reported[client->index].borrowed = use->bytes;
    reported[client->index].dirty = dirty;
    *report = (struct nvshare_report){ .type = NVSHARE_BORROWED, .moved = use->bytes,
                                       .dirty = dirty };
    memcpy(report->uuid, use->lender, sizeof report->uuid);
    return true;
}

void swap_report_again(struct client *client)
{
    if (reported[client->index].borrowed > 0)
        reported[client->index].borrowed = UINT64_MAX;
}
