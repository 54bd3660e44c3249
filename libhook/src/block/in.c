/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out LOADs; out.c carries out EVICTs.
 *
 * A large program is loaded by a sequence of LOADs, as room for it becomes free, and the bus should
 * not pause between them. If the next LOAD has arrived when all copies of one have been started,
 * its copies are started after them. The first LOAD is answered when its own copies are done.
 */
#include "block/in.h"

#include "block/block.h"
#include "block/pipeline.h"
#include "block/search.h"
#include "gate/client.h"
#include "gate/connection.h"

/* One LOAD in progress. */
struct load {
    struct nvshare_order order;
    unsigned flags;                  /* of its answer */
    struct progress progress;
};

/* Cancels the load of a block: unmaps it and returns it to SWAPPED. */
static void back_out(struct block *block)
{
    block_unmap(block);
    block_set_state(block, BLOCK_SWAPPED);
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* Starts to load one block. False: no more can be loaded now. */
static bool fetch(struct client *client, struct pipeline *line, struct load *load,
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
    back_out(block);
    if (started == YIELDED)
        load->flags |= NVSHARE_YIELDED;
    else
        load->progress.failed = true;
    return false;
}

/* Starts to load blocks until the client's room is filled. */
static void fetch_all(struct client *client, struct pipeline *line, struct load *load)
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
        if (!fetch(client, line, load, block))
            return;
        while (line->count >= pipeline_depth(&load->order)) {
            pipeline_complete(client, line);
            blocks_give_places(client, load->order.host);
        }
        memory_lock_yields(&held_since);
    }
}

/* Answers a LOAD when its copies, and those of all earlier LOADs, have completed. */
static void answer(struct client *client, struct load *load, uint64_t *since)
{
    uint64_t now = now_microseconds();
    blocks_give_places(client, load->order.host);
    if (load->progress.failed && client->absent > 0)
        load->flags |= NVSHARE_DRIVER_ERROR;
    if ((load->flags & (NVSHARE_DRIVER_ERROR | NVSHARE_NO_MEMORY)) != 0)
        release_if_context_failed(client);
    client->lack_reported = false;
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
    bool ready = swap_enter_context(client), another = true;
    LOCKED(memory_lock);
    while (another) {
        load = load == &loads[0] ? &loads[1] : &loads[0];
        *load = (struct load){ next, 0, { .failed = !ready } };
        if (ready)
            fetch_all(client, &line, load);
        else
            client->memory.room = load->order.room;
        bool well = load->flags == 0 && !load->progress.failed;
        while (before != NULL && before->progress.copies > 0)
            pipeline_complete(client, &line);
        if (before != NULL)
            answer(client, before, &since);
        while (!(another = well && next_load(client, &next)) && line.count > 0)
            pipeline_complete(client, &line);
        before = load;
    }
    disk_end_reads(client);
    answer(client, load, &since);
}
