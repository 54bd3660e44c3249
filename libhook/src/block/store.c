/* SPDX-License-Identifier: Apache-2.0 */
/* A block keeps its place until its bytes are in the file, so a LOAD never waits for a write. A
 * block that is freed or gives up its place during the write passes the place to the write. The youngest blocks, evicted first, are written first: they fill whole slabs of host
 * memory, which are then released. */
#include "block/store.h"

#include <errno.h>

#include "block/block.h"
#include "block/search.h"
#include "tier/tier.h"

#define STORES 16
#define POLL_US 5000
#define HANGS_US 30000000

/* By client index. */
static struct store {
    struct tier_write *writes[STORES];   /* writes in flight; NULL: free entry */
    uint64_t number;                 /* of the last STORE */
    int error;                       /* errno of the last failed write */
    bool changed;                    /* `error` or `number` is not reported yet */
    uint64_t reported;               /* bytes in the file as last reported */
    uint64_t progress;               /* us: last time when a write ended or none was in flight */
} stores[CLIENTS_MAX];

static struct tier_use *use_of(const struct client *client)
{
    return tier_use(client, tier_storing());
}

static const struct tier_store *file(void)
{
    return tier_storing()->store;
}

static void note_error(struct client *client, int error)
{
    struct store *store = &stores[client->index];
    store->changed |= store->error != error;
    store->error = error;
}

static void set_limit(struct client *client, uint64_t bytes)
{
    use_of(client)->limit = bytes;
    file()->limited(client);
}

bool store_has_file(const struct client *client)
{
    return file()->is_open(client);
}

/* Ends a write. If the bytes are written and still valid, the block's place is in the file. */
static void finish(struct client *client, struct tier_write *write)
{
    struct block *block = write->block;
    struct place source = block == NULL ? write->place : block->place;
    int error = write->error;
    bool stored = block != NULL && error == 0 && block->state == BLOCK_SWAPPED
        && !write->overwritten;
    if (block != NULL)
        block->write = NULL;
    size_t size = write->size;
    if (stored)
        tier_keep(client, tier_storing(), write, &block->place);
    if (stored || block == NULL)
        tier_give(client, size, &source);
    if (block != NULL)
        search_note(block);
    if (!stored)
        file()->discard(write);
    stores[client->index].progress = now_microseconds();
    client_changed(client);          /* the service thread then releases empty slabs */
    if (error == ECANCELED)
        return;
    note_error(client, error);
    if (error != 0) {
        set_limit(client, 0);            /* writes nothing more until the next STORE */
        store_cancel(client);
    }
    stores[client->index].changed = true;
}

static struct tier_write *begin(struct client *client)
{
    struct block *block = use_of(client)->limit == 0 || client->pin_reason != NVSHARE_PIN_NONE
        ? NULL : search_first(client, SEARCH_STORABLE);
    struct tier_write *write = block == NULL ? NULL
        : file()->write(client, block->size, block->place.memory);
    if (write == NULL)
        return NULL;
    write->block = block;
    block->write = write;
    search_note(block);
    return write;
}

int64_t store_step(struct client *client)
{
    struct store *store = &stores[client->index];
    struct tier_write **all = store->writes;
    bool busy = false, more = true;
    for (unsigned i = 0; i < STORES; i++) {
        struct tier_write *write = all[i];
        if (write != NULL && write->left == 0) {
            all[i] = NULL;
            finish(client, write);
        }
        busy |= all[i] != NULL;
    }
    uint64_t now = now_microseconds();
    if (!busy)
        store->progress = now;
    if (now - store->progress > HANGS_US && store->error == 0) {
        note_error(client, ETIMEDOUT);
        client_changed(client);
    }
    for (unsigned i = 0; more && i < STORES; i++)
        if (all[i] == NULL) {
            all[i] = begin(client);
            more = all[i] != NULL;
            busy |= more;
        }
    return busy ? POLL_US : NEVER;
}

void store_cancel(struct client *client)
{
    struct tier_write **all = stores[client->index].writes;
    for (unsigned i = 0; i < STORES; i++)
        if (all[i] != NULL)
            all[i]->cancelled = true;
}

void store_forget_order(struct client *client)
{
    store_cancel(client);
    set_limit(client, 0);
    struct store *store = &stores[client->index];
    store->number = 0;
    store->error = 0;
    store->reported = use_of(client)->bytes;
    store->changed = store->reported > 0;
}

void store_order(struct client *client, const struct nvshare_order *order, int descriptor)
{
    struct store *store = &stores[client->index];
    const struct tier_use *use = use_of(client);
    int error = order->file == 0 ? 0 : file()->open(client, descriptor);
    set_limit(client, error == 0 ? order->file : 0);
    store->number = order->number;
    store->error = error;
    store->changed = true;
    if (use->bytes > use->limit)
        store_cancel(client);
    for (struct block *block = client->blocks; block != NULL && use->bytes > use->limit;
         block = block->younger)
        if (block->state == BLOCK_RESIDENT && block->place.tier == tier_storing())
            block_give_place(block);
    client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY });
}

struct nvshare_report store_figures(const struct client *client)
{
    const struct store *store = &stores[client->index];
    return (struct nvshare_report){ .type = NVSHARE_STORED, .number = store->number,
                                    .moved = use_of(client)->bytes,
                                    .error = (uint64_t)store->error };
}

bool store_report(struct client *client, struct nvshare_report *report)
{
    struct store *store = &stores[client->index];
    uint64_t bytes = use_of(client)->bytes;
    if (!store->changed && bytes == store->reported)
        return false;
    store->changed = false;
    store->reported = bytes;
    *report = store_figures(client);
    return true;
}
