/* SPDX-License-Identifier: Apache-2.0 */
/* A block keeps its place in host memory until its bytes are in the file, so a LOAD never waits
 * for a write. A block that is freed or gives up its place during the write passes the place to
 * the write. The youngest blocks, evicted first, are written first: they fill whole slabs of host
 * memory, which are then released. */
#include "block/store.h"

#include <errno.h>

#include "block/block.h"
#include "block/search.h"
#include "tier/disk.h"

#define STORES 16
#define POLL_US 5000
#define HANGS_US 30000000

static struct disk_extent *writes[CLIENTS_MAX][STORES];   /* writes in flight; NULL: free entry */

static void note_error(struct client *client, int error)
{
    client->store_changed |= client->store_error != error;
    client->store_error = error;
}

static void set_limit(struct client *client, uint64_t bytes)
{
    client->file = bytes;
    disk_wake_writers();
}

/* Ends a write. If the bytes are written and still valid, the extent becomes the block's place. */
static void finish(struct client *client, struct disk_extent *extent)
{
    struct block *block = extent->block;
    struct place source = block == NULL ? extent->place : block->place;
    int error = extent->error;
    bool stored = block != NULL && error == 0 && block->state == BLOCK_SWAPPED
        && !extent->overwritten;
    if (block != NULL)
        block->write = NULL;
    if (stored)
        disk_take(client, extent, &block->place);
    if (stored || block == NULL)
        source.tier->give(client, extent->size, &source);
    if (block != NULL)
        search_note(block);
    if (!stored)
        disk_give(extent);
    client->store_progress = now_microseconds();
    client_changed(client);          /* the service thread then releases empty slabs */
    if (error == ECANCELED)
        return;
    note_error(client, error);
    if (error != 0) {
        set_limit(client, 0);            /* writes nothing more until the next STORE */
        store_cancel(client);
    }
    client->store_changed = true;
}

static struct disk_extent *begin(struct client *client)
{
    struct block *block = client->file == 0 || client->pin_reason != NVSHARE_PIN_NONE
        ? NULL : search_first(client, SEARCH_STORABLE);
    struct disk_extent *extent = block == NULL ? NULL
        : disk_write(client, block->size, client->file, block->place.host.address);
    if (extent == NULL)
        return NULL;
    extent->block = block;
    block->write = extent;
    search_note(block);
    return extent;
}

int64_t store_step(struct client *client)
{
    struct disk_extent **all = writes[client->index];
    bool busy = false, more = true;
    for (unsigned i = 0; i < STORES; i++) {
        struct disk_extent *extent = all[i];
        if (extent != NULL && extent->left == 0) {
            all[i] = NULL;
            finish(client, extent);
        }
        busy |= all[i] != NULL;
    }
    uint64_t now = now_microseconds();
    if (!busy)
        client->store_progress = now;
    if (now - client->store_progress > HANGS_US && client->store_error == 0) {
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
    for (unsigned i = 0; i < STORES; i++)
        if (writes[client->index][i] != NULL)
            writes[client->index][i]->cancelled = true;
}

void store_forget_order(struct client *client)
{
    store_cancel(client);
    set_limit(client, 0);
    client->store_number = 0;
    client->store_error = 0;
    client->store_changed = client->stored > 0;
}

void store_order(struct client *client, const struct nvshare_order *order, int descriptor)
{
    int error = order->file == 0 ? 0 : disk_open(client, descriptor);
    set_limit(client, error == 0 ? order->file : 0);
    client->store_number = order->number;
    client->store_error = error;
    client->store_changed = true;
    if (client->stored > client->file)
        store_cancel(client);
    for (struct block *block = client->blocks; block != NULL && client->stored > client->file;
         block = block->younger)
        if (block->state == BLOCK_RESIDENT && block->place.tier == &tier_disk)
            block_give_place(block);
    client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY });
}
