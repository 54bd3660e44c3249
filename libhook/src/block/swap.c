/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out EVICT and LOAD: moves blocks between the card and the tiers.
 *
 * Copies run on a stream of the library, a few blocks in flight, so that the bus never waits for a
 * map or an unmap: while one block is copied, the previous one is unmapped and released. A block
 * counts as resident from the creation of its memory to its release. At every moment of a move, all
 * bytes of a block are on the card or in its place (`struct place`):
 *
 *   evicting   the block stays mapped until its copy to the place has completed;
 *   loading    the block keeps its place until the copy to the card has completed.
 *
 * Some blocks need no copy when they are evicted, so blocks are read first (contents.c). The memory
 * of a block of zeros is only released, and cleared when the block is loaded again. The memory of a
 * block that is unchanged since it was loaded is only released, too, because the block's place
 * still has the bytes. A block that was written back or loaded since the program's last turn need
 * not be read.
 *
 * A speculative order (NVSHARE_AHEAD) must free the bus when a program begins to copy
 * (bus_sharing.c). The daemon then sends YIELD. The order checks for YIELD before each block and
 * each piece of a block, and ends there: the other blocks stay where they are. It copies in pieces
 * of 16 MiB and has at most two in flight, which end in less than a millisecond.
 *
 * Writeback: copies blocks of an idle program to their places and leaves them on the card, when the
 * daemon finds program and bus idle (nvshared/scheduler/ahead.py). If another client needs the
 * memory of the card, these blocks are evicted as fast as memory can be unmapped. After a writeback
 * and after a load, a block records a turn: until that turn ends, its place is current
 * (block_is_clean()); the next turn makes the copy outdated, even if the program writes nothing.
 * Such blocks need not be read: while the gate is closed and all work has drained, nothing writes.
 * A program that wants to run again during a writeback waits until the writeback ends by YIELD, or,
 * if host memory is being allocated, until one slab is. For that reason a writeback allocates host
 * memory slab by slab and not in several threads.
 */
#include "block/swap.h"

#include <time.h>

#include "block/block.h"
#include "block/contents.h"
#include "block/search.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/bus_sharing.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "tier/host.h"
#include "tier/peer.h"

#define COPIES_IN_FLIGHT 4
#define COPIES_AHEAD 2               /* copies in flight of a speculative order */
#define PIECE_AHEAD ((size_t)16 << 20)
#define HELD_MOST_US 2000            /* for which a loop holds memory_lock */

/* The progress of one order. */
struct progress {
    uint64_t bytes;                  /* moved so far, in whole blocks */
    unsigned copies;                 /* in flight */
    bool failed;
};

/* Copies in flight between card and tiers, in the order of their completion. */
struct pipeline {
    struct move {
        struct block *block;
        struct progress *progress;
        size_t bytes;
        bool last;                   /* the last copy of its block */
    } moves[COPIES_IN_FLIGHT];       /* a ring; each entry has the event of its index */
    unsigned first, count;
    uint64_t since, bytes;           /* us: when it was last empty; bytes copied since */
};

/* How many copies an order may have in flight. */
static unsigned pipeline_depth(const struct nvshare_order *order)
{
    return (order->flags & NVSHARE_AHEAD) != 0 ? COPIES_AHEAD : COPIES_IN_FLIGHT;
}

enum start {
    STARTED,
    NOT_STARTED,                     /* the driver has refused a copy */
    YIELDED,                         /* a YIELD has arrived: the block has not moved */
};

/* By client, in its copy_context: one event for each copy in flight. Protected by service_lock. */
static CUevent copy_events[CLIENTS_MAX][COPIES_IN_FLIGHT];

/* Whether the daemon has sent a YIELD for the order being carried out. The daemon may send a
 * second EVICT before that YIELD; the second EVICT is postponed. */
static bool order_yields(struct client *client, const struct nvshare_order *order)
{
    struct nvshare_order yield, next;
    if ((order->flags & NVSHARE_AHEAD) == 0)
        return false;
    if (client->postponed_count == 0 && connection_next(client->socket, NVSHARE_EVICT, &next))
        client_postpone(client, &next);
    return connection_next(client->socket, NVSHARE_YIELD, &yield);
}

/* For long loops with memory_lock held: regularly releases and retakes the lock. `held_since`: the
 * caller sets it to 0 before the loop and keeps it between calls.
 *
 * A mutex is not handed to a waiting thread: the first thread to lock it gets it, usually the
 * thread that has just released it. memory_lock is therefore left unlocked for the time that a
 * thread takes to wake up, some 50 us. */
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

/* Returns a context of the library, for copies while the program has none: physical memory outlives
 * the program's contexts. The primary context would not do, as the program may query and reset
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

/* Destroys the library's context: the program has one again. */
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
        result = REAL(cuEventCreate)(&copy_events[client->index][made++],
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS) {
        debug("no stream to swap on: error %d", (int)result);
        return false;
    }
    client->copy_context = context;
    return true;
}

/* Destroys no stream or event: the driver destroys a context's objects with the context. */
void swap_leave_context(struct client *client, CUcontext context, bool drained)
{
    if (client->copy_context != context)
        return;
    host_leave_context(client, drained);
    client->copy_context = NULL;
    content_leave_context(client);
}

/* Calls the tier's settle(), as all copies of the block have ended. Without memory_lock. */
static enum settled settle(struct block *block)
{
    return block->zero || block->place.tier->settle == NULL
        ? SETTLED : block->place.tier->settle(&block->place, block->address);
}

/* Called after a copy of the block has failed. If the block's place is on another GPU, gives up
 * that place, unless it has the only copy of the bytes. Releases and retakes memory_lock. */
static void avoid_lender(struct client *client, struct block *block)
{
    if (block->zero || block->place.tier != &tier_peer)
        return;
    if (block->state == BLOCK_EVICTING)
        peer_failed(client);
    /* If only the wait for the copy has failed, the copy may still use the place. */
    pthread_mutex_unlock(&memory_lock);
    bool ended = REAL(cuStreamSynchronize)(client->copy_stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    if (ended && block->state == BLOCK_EVICTING)
        block_give_place(block);
    else if (ended && block->copy.tier != NULL)
        block_return_place(block);
}

/* Gives `state` to a block after the end of its move, or to a block that was chosen for a move
 * which will not begin. Frees the block if the program has freed it meanwhile. */
static void end_move(struct block *block, enum block_state state)
{
    block_set_state(block, state);
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* Waits for the oldest copy, with memory_lock released, and completes its block's move if it was
 * the last copy of that block. */
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

    bool left = block->state == BLOCK_EVICTING, keeps = block->writing_back;
    if (result == CUDA_SUCCESS && !block->zero && block->place.tier->over_bus) {
        line->bytes += move.bytes;
        bus_sharing_measured(left ? BUS_OUT : BUS_IN, line->bytes,
                         now_microseconds() - line->since);
    }
    if (!move.last)
        return;                      /* if it has failed, the block's last copy fails, too */
    block->writing_back = false;
    if (settled == LOST)
        result = block_unmap(block);
    if (left && !keeps && result == CUDA_SUCCESS)
        result = block_unmap(block);
    if (settled == LOST && result == CUDA_SUCCESS) {
        block_set_state(block, BLOCK_SWAPPED);
        block_lose(block);
    } else if (result == CUDA_SUCCESS) {
        if (left)
            block->known = block->content_valid;
        if (block->place.tier != NULL && !block->zero)
            block_note_clean(block);
        if (!block->zero)
            move.progress->bytes += block->size;
        block->zero = false;
        block_set_state(block, left && !keeps ? BLOCK_SWAPPED : BLOCK_RESIDENT);
        if (!left && block->place.tier != NULL && !block->place.tier->keeps)
            block_give_place(block);
    } else {
        /* In either direction, the bytes are still at the source. */
        move.progress->failed = true;
        avoid_lender(client, block);
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
    line->moves[slot] = (struct move){ block, progress, size, offset + size == block->size };
    line->count++;
    progress->copies++;
    return true;
}

/* Waits for all copies in flight, because pieces of a block that cannot be moved completely may be
 * among them. In either direction, the block's bytes are still at the source. */
static void end_early(struct client *client, struct pipeline *line, struct block *block)
{
    while (line->count > 0)
        pipeline_complete(client, line);
    pthread_mutex_unlock(&memory_lock);
    settle(block);
    pthread_mutex_lock(&memory_lock);
}

/* Starts to copy a block that is EVICTING or LOADING. May release memory_lock meanwhile, and wait
 * for earlier copies. */
static enum start pipeline_start(struct client *client, struct pipeline *line, struct block *block,
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
        end_early(client, line, block);
    if (started == NOT_STARTED)
        avoid_lender(client, block);
    return started;
}

/*
 * Chooses the blocks to evict when not all must be evicted. The cheapest are evicted first:
 *
 *   1. blocks that were all zero when they were last read: no copy either way;
 *   2. blocks that were unchanged at their last eviction, and blocks written back or loaded since
 *      the program's last turn: no copy to the place;
 *   3. all other blocks.
 *
 * Within a class the blocks allocated last are evicted first, so the order is always the same. If
 * nearly all blocks must be evicted at each turn, the same old blocks stay resident each time, and
 * other blocks can use the places of these.
 *
 * A program that has allocated most of the card in advance has many blocks of zeros, but only
 * reading shows which. If the known blocks of zeros do not suffice, blocks that were never read are
 * read now, fifty times faster than the bus could copy them.
 *
 * All of this only determines the order. Unless a block is clean, it is read again when it is
 * evicted, which decides whether it is copied.
 */

/* The next block to evict, or, with `unready`, to write back. The caller sets *rank to 0 before the
 * first call and keeps it between calls. NULL: there is none. */
static struct block *search_victim(const struct client *client, unsigned *rank, bool unready)
{
    struct block *block = NULL;
    while (*rank < RANKS
           && (block = search_youngest(client, (unready ? SEARCH_UNREADY : SEARCH_VICTIM) + *rank))
              == NULL)
        ++*rank;
    return block;
}


/* Records that a block has been read, and whether it was all zero. */
static void note_reading(struct block *block)
{
    block->was_read = true;
    block->was_zero = block->reading.whole && block->reading.all.any == 0;
}

/* Chooses blocks that were never read. They become EVICTING, so that a free by the program is
 * deferred. */
static size_t choose_unread(struct client *client, struct block **blocks)
{
    struct block *block;
    size_t count = 0;
    while (count < WHOLE_READS_MAX && (block = search_youngest(client, SEARCH_UNREAD)) != NULL) {
        block_set_state(block, BLOCK_EVICTING);
        blocks[count++] = block;
    }
    return count;
}

/* Reads blocks that were never read until `wanted` bytes, those to be evicted, are known as zero;
 * only if not all blocks must be evicted. Service thread, as content_read(); may release and retake
 * memory_lock. */
static void find_zero_blocks(struct client *client, uint64_t wanted)
{
    struct block *blocks[WHOLE_READS_MAX];
    size_t count;
    bool read = true;
    if (wanted >= client->memory.resident)
        return;
    while (read && !client->running && search_bytes(client, SEARCH_WAS_ZERO) < wanted
           && (count = choose_unread(client, blocks)) > 0) {
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

/* One EVICT in progress. */
struct eviction {
    struct client *client;
    const struct nvshare_order *order;
    bool keeps_resident;                      /* copied blocks stay on the card: KEEP */
    unsigned flags;                  /* of the answer */
    struct pipeline line;
    struct progress progress;

    /* The batch of blocks chosen last: `count` blocks, of which next_victim() has returned `taken`;
     * `limit`: most blocks in the next batch. */
    struct block *blocks[WHOLE_READS_MAX];
    bool read;                       /* reading the batch has succeeded */
    size_t limit, count, taken;
    unsigned rank;                   /* of the last block chosen */
};

/* The result of reading a block. */
enum verdict { CHANGED, UNCHANGED, EMPTY };

static struct eviction new_eviction(struct client *client, const struct nvshare_order *order,
                                    bool keeps_resident)
{
    return (struct eviction){
        .client = client, .order = order, .keeps_resident = keeps_resident,
        .limit = COPIES_IN_FLIGHT,
    };
}

/* Chooses blocks to evict until their sizes add up to `wanted` bytes, at most `most` blocks: all of
 * them managed, or none. They become EVICTING, so that a free by the program is deferred. */
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

/* Stores in `found` the blocks that must be read: clean and managed blocks need not be. */
static size_t filter_unread(struct block *const *blocks, size_t count, struct block **found)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (!blocks[i]->managed && !block_is_clean(blocks[i]))
            found[kept++] = blocks[i];
    return kept;
}

/* Reads the chosen blocks. Each launch, however small, takes a part of a millisecond from the
 * client that runs. With `further`, the blocks that would be evicted next are read in the same
 * launch, and later batches and orders use the results. */
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

/* Chooses and reads the next batch, which is small at first so that copies begin soon; each later
 * batch is four times larger. If another client waits for the order, no further blocks are read
 * with the first batch. */
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

/* Returns the next block to be evicted or written back, in state EVICTING and read. `wanted`: bytes
 * still to be evicted or written back. NULL: there is none. memory_lock is held, and may
 * be released meanwhile. */
static struct block *next_victim(struct eviction *eviction, uint64_t wanted)
{
    if (eviction->taken == eviction->count)
        choose_victims(eviction, wanted);
    return eviction->taken < eviction->count ? eviction->blocks[eviction->taken++] : NULL;
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

/* Takes a place for a block chosen and read, and starts to copy it there. False: no more can be
 * evicted now. memory_lock is held, and may be released meanwhile. */
static bool start_copy(struct eviction *eviction, struct block *block)
{
    struct client *client = eviction->client;
    const struct nvshare_order *order = eviction->order;
    const struct reading *reading = &block->reading;
    block->writing_back = eviction->keeps_resident;
    block->changed_before = block->known;
    bool has_place = block_take_place(block, order->host);
    block->known = false;            /* the place is about to be overwritten */
    if (block->store != NULL)
        block->store->overwritten = block->store->write.cancelled = true;
    block_give_copy(block);
    block->clean_as_of_turn = 0;
    block->content_valid = eviction->read && reading->whole;
    block->content = reading->all;
    block->part_valid = eviction->read;
    block->part = reading->part;
    if (!has_place)
        eviction->flags |= NVSHARE_NO_MEMORY;
    if (!has_place || block->doomed) {
        block->writing_back = false;
        end_move(block, BLOCK_RESIDENT);
        return has_place;
    }
    enum start started = pipeline_start(client, &eviction->line, block, &eviction->progress,
                                        order);
    if (started != STARTED) {
        /* If a copy to another GPU was refused, the block has lost its place there: it is chosen
         * again, and evicted to the host. */
        bool refused = started == NOT_STARTED && block->place.tier == NULL;
        block->writing_back = false;
        eviction->progress.failed |= started == NOT_STARTED && !refused;
        eviction->flags |= started == YIELDED ? NVSHARE_YIELDED : 0;
        end_move(block, BLOCK_RESIDENT);
        return refused;
    }
    if (eviction->line.count == pipeline_depth(order))
        pipeline_complete(client, &eviction->line);
    return true;
}

/* Ends the order: makes chosen blocks RESIDENT again and waits for all copies in flight. */
static void end_eviction(struct eviction *eviction)
{
    while (eviction->taken < eviction->count)
        end_move(eviction->blocks[eviction->taken++], BLOCK_RESIDENT);
    while (eviction->line.count > 0)
        pipeline_complete(eviction->client, &eviction->line);
    host_expect(eviction->client, 0);
    if (eviction->progress.failed)
        eviction->flags |= NVSHARE_DRIVER_ERROR;
}

/* Total size in bytes of the blocks that have their last copy in flight. */
static uint64_t bytes_leaving(const struct pipeline *line)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < line->count; i++)
        if (line->moves[(line->first + i) % COPIES_IN_FLIGHT].last)
            bytes += line->moves[(line->first + i) % COPIES_IN_FLIGHT].block->size;
    return bytes;
}

/* Bytes still to be evicted, besides the blocks in flight, to fit the order's room. */
static uint64_t surplus(const struct eviction *eviction)
{
    const struct nvshare_memory *memory = &eviction->client->memory;
    uint64_t filled = memory->resident - bytes_leaving(&eviction->line) + memory->pinned;
    return filled > eviction->order->room ? filled - eviction->order->room : 0;
}

/* Evicts a block without a copy. `read`: it was read just now; `zero`: and found all zero. False:
 * the driver refuses to unmap it. */
static bool evict_without_copy(struct block *block, bool read, bool zero)
{
    if (block_unmap(block) != CUDA_SUCCESS) {
        end_move(block, BLOCK_RESIDENT);
        return false;
    }
    block_set_state(block, BLOCK_SWAPPED);
    pthread_cond_broadcast(&memory_changed);
    if (read) {
        if (zero)
            block_give_place(block);
        block->zero = zero;
        block->changed_before = false;
        block->part_valid = true;
        block->part = block->reading.part;
    }
    return true;
}

/* Starts to evict one block. False: no more can be evicted now. memory_lock is held, and may be
 * released meanwhile. */
static bool evict(struct eviction *eviction, struct block *block)
{
    if (block->doomed || eviction->client->pin_reason != NVSHARE_PIN_NONE) {
        end_move(block, BLOCK_RESIDENT);
        return true;
    }
    bool saved = block_is_clean(block), gone;
    enum verdict verdict = classify(eviction, block);
    if (verdict == CHANGED)
        return start_copy(eviction, block);
    gone = evict_without_copy(block, !saved, verdict == EMPTY);
    eviction->progress.failed |= !gone;
    return gone;
}

uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    uint64_t room = order->room, held_since = 0;
    struct eviction eviction = new_eviction(client, order, false);
    bool ready = swap_enter_context(client);
    LOCKED(memory_lock);
    bool more = ready && client->pin_reason == NVSHARE_PIN_NONE;
    struct nvshare_memory *memory = &client->memory;
    /* From here on the program's own allocations respect the new room. */
    uint64_t before = memory->room;
    memory->room = room;
    eviction.progress.failed = !ready;
    uint64_t occupied = memory->resident + memory->pinned;
    if (more && occupied > room) {
        host_expect(client, occupied - room);
        find_zero_blocks(client, occupied - room);
    }
    struct block *block;
    while (more && !eviction.progress.failed
           && (block = next_victim(&eviction, surplus(&eviction))) != NULL) {
        if (order_yields(client, order)) {
            eviction.flags |= NVSHARE_YIELDED;
            end_move(block, BLOCK_RESIDENT);
            break;
        }
        more = evict(&eviction, block);
        memory_lock_yields(&held_since);
    }
    end_eviction(&eviction);
    if ((eviction.flags & (NVSHARE_DRIVER_ERROR | NVSHARE_NO_MEMORY)) != 0)
        release_if_context_failed(client);
    /* Blocks that could not be evicted still fill the client's room. */
    uint64_t filled = memory->resident + memory->pinned + (client->running ? memory->pending : 0);
    if (filled > before)
        filled = before;             /* `pending` may not have been granted yet */
    if (memory->room < filled)
        memory->room = filled;
    *flags = eviction.flags;
    return eviction.progress.bytes;
}

/* Copies to the host the oldest swapped blocks that have their only copy on another GPU: at most
 * COPIES_IN_FLIGHT blocks, and no further block once `bytes` bytes are chosen. They are COPYING
 * meanwhile, so that a free by the program is deferred. Returns the bytes copied; 0: no block could
 * be copied. Service thread, with memory_lock, which is released meanwhile. */
static uint64_t copy_borrowed(struct client *client, uint64_t bytes, uint64_t allowance)
{
    struct block *block, *blocks[COPIES_IN_FLIGHT];
    struct place places[COPIES_IN_FLIGHT] = { { .tier = NULL } };
    unsigned count = 0, started = 0;
    uint64_t copied = 0;
    for (uint64_t chosen = 0; chosen < bytes && count < COPIES_IN_FLIGHT
         && (block = search_oldest(client, SEARCH_DIRTY)) != NULL; chosen += block->size) {
        block_set_state(block, BLOCK_COPYING);
        blocks[count++] = block;
    }
    for (; started < count; started++) {
        struct place *place = &places[started];
        block = blocks[started];
        if (!tier_host.take(client, block->size, allowance, true, place))
            break;
        place->tier = &tier_host;
        if (tier_host.copy(place, true, block->place.peer.address, 0, block->size,
                           client->copy_stream) != CUDA_SUCCESS)
            break;
    }
    pthread_mutex_unlock(&memory_lock);
    bool done = REAL(cuStreamSynchronize)(client->copy_stream) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < count; i++) {
        block = blocks[i];
        if (done && i < started) {
            block->copy = places[i];
            copied += block->size;
        } else if (places[i].tier != NULL) {
            places[i].tier->give(client, block->size, &places[i]);
        }
        block_set_state(block, BLOCK_SWAPPED);
        if (block->doomed)
            block_free(block);
    }
    pthread_cond_broadcast(&memory_changed);
    return copied;
}

uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order)
{
    uint64_t loan = peer_allow(client, order->loan, order->lender);
    for (struct block *block = client->blocks; block != NULL && client->borrowed > loan;
         block = block->younger)
        if (block->place.tier == &tier_peer
            && (block->state == BLOCK_RESIDENT
                || (block->state == BLOCK_SWAPPED && block->copy.tier != NULL)))
            block_return_place(block);
    return loan;
}

void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    pthread_mutex_lock(&memory_lock);
    uint64_t loan = swap_forget_borrowed(client, order);
    uint64_t surplus = client->borrowed > loan ? client->borrowed - loan : 0;
    pthread_mutex_unlock(&memory_lock);
    if (surplus == 0)
        return;
    bool ready = swap_enter_context(client);
    LOCKED(memory_lock);
    surplus = client->borrowed > loan ? client->borrowed - loan : 0;     /* may have shrunk */
    /* Borrowed bytes count in memory.host, and so do their new places on the host: the surplus
     * would count twice, and the order's `host` allows it only once. It is therefore taken out of
     * memory.host and added again only in reports, which other threads may send while the lock is
     * released. If the program frees such blocks meanwhile, peer.c reduces `returning`. */
    client->memory.host -= surplus;
    client->returning = surplus;
    host_expect(client, surplus);
    while (ready && client->borrowed > loan
           && copy_borrowed(client, client->borrowed - loan, order->host) > 0)
        swap_forget_borrowed(client, order);
    host_expect(client, 0);
    client->memory.host += client->returning;
    client->returning = 0;
    if (client->borrowed > loan) {
        *flags |= NVSHARE_NO_MEMORY;
        release_if_context_failed(client);
    }
}

/* Writes back one block. False: no more can be written back now. */
static bool write_back(struct eviction *eviction, struct block *block)
{
    if (!block->doomed) {
        switch (classify(eviction, block)) {
        case CHANGED:
            return start_copy(eviction, block);
        case UNCHANGED:
            block->changed_before = false;
            block_note_clean(block);
            break;
        case EMPTY:
            break;
        }
    }
    end_move(block, BLOCK_RESIDENT);
    return true;
}

uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    struct eviction eviction = new_eviction(client, order, true);
    bool more = swap_enter_context(client);
    LOCKED(memory_lock);
    eviction.progress.failed = !more;
    more = more && !client->running;
    if (more)
        find_zero_blocks(client, order->writeback);
    uint64_t ready = search_bytes(client, SEARCH_READY), held_since = 0;
    while (more && ready < order->writeback) {
        struct block *block = next_victim(&eviction, order->writeback - ready);
        if (block == NULL)
            break;
        ready += block->size;
        bool yields = order_yields(client, order);
        if (yields) {
            eviction.flags |= NVSHARE_YIELDED;
            end_move(block, BLOCK_RESIDENT);
        }
        more = !yields && write_back(&eviction, block) && !eviction.progress.failed;
        memory_lock_yields(&held_since);
    }
    while (more && client->dirty > 0) {
        more = !order_yields(client, order);
        eviction.flags |= more ? 0 : NVSHARE_YIELDED;
        more = more && copy_borrowed(client, 1, order->host) > 0;
    }
    end_eviction(&eviction);
    ready = search_bytes(client, SEARCH_READY);
    *flags = eviction.flags;
    return ready;
}

/*
 * A large program is loaded by a sequence of LOADs, as other clients are evicted, and the bus
 * should not pause between them. If the next LOAD has arrived when all copies of a LOAD have been
 * started, the copies of the next are started at once. Each LOAD is answered when its own copies
 * are done.
 */

/* One LOAD in progress. */
struct load {
    struct nvshare_order order;
    unsigned flags;                  /* of its answer */
    struct progress progress;
};

/* Starts to load one block. False: no more can be loaded now. */
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
    enum start started = pipeline_start(client, line, block, &load->progress, &load->order);
    if (started == STARTED)
        return true;
    block_unmap(block);
    end_move(block, BLOCK_SWAPPED);
    if (started == YIELDED)
        load->flags |= NVSHARE_YIELDED;
    else
        load->progress.failed = true;
    return false;
}

/* Starts to load blocks until the client's room is filled. */
static void load_blocks(struct client *client, struct pipeline *line, struct load *load)
{
    struct block *block;
    uint64_t held_since = 0;
    client->memory.room = load->order.room;
    while (!load->progress.failed && (block = search_oldest(client, SEARCH_ABSENT)) != NULL) {
        if (client_free_room(client) < block->size)
            return;
        if (order_yields(client, &load->order)) {
            load->flags |= NVSHARE_YIELDED;
            return;
        }
        if (!load_block(client, line, load, block))
            return;
        while (line->count >= pipeline_depth(&load->order)) {
            pipeline_complete(client, line);
            blocks_give_places(client, load->order.host);
        }
        memory_lock_yields(&held_since);
    }
}

/* Answers a LOAD when its copies, and those of all earlier LOADs, have completed. */
static void answer_load(struct client *client, struct load *load, uint64_t *since)
{
    uint64_t now = now_microseconds();
    blocks_give_places(client, load->order.host);
    if (load->progress.failed && client->absent > 0)
        load->flags |= NVSHARE_DRIVER_ERROR;
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

/* Receives the next LOAD if it is the next order. Orders that order_yields() has postponed come
 * first (service.c). */
static bool next_load(struct client *client, struct nvshare_order *order)
{
    return client->postponed_count == 0 && connection_next(client->socket, NVSHARE_LOAD, order);
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
            load_blocks(client, &line, load);
        else
            client->memory.room = load->order.room;
        bool succeeded = load->flags == 0 && !load->progress.failed;
        while (before != NULL && before->progress.copies > 0)
            pipeline_complete(client, &line);
        if (before != NULL)
            answer_load(client, before, &since);
        while (!(has_next = succeeded && next_load(client, &next)) && line.count > 0)
            pipeline_complete(client, &line);
        before = load;
    }
    disk_end_reads(client);
    answer_load(client, load, &since);
}
