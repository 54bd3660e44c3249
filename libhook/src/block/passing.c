/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes physical memory on from one program to the next instead of freeing it.
 *
 * What a program frees the driver clears with the very engine that copies from the host to the
 * card, so it slows down the way in of whoever the memory was freed for. Exported memory is not
 * freed, nor cleared, while anybody holds it, be it only as a descriptor. So the program that
 * leaves exports a block, unmaps it and sends the descriptor to the daemon (PASSED); the daemon
 * gives it to the program that comes (LOAD), which imports it and maps it at an address of its
 * own. Which programs may see each other's memory the daemon decides.
 *
 *   clean     What has arrived holds what another program left there. So only blocks get it all
 *             of whose bytes come in from the host or are set to zero before the gate opens.
 *             A block that never held anything gets new memory, which the driver has cleared.
 *   again     The driver exports only what it has made itself for this process. So a block with
 *             imported memory keeps the descriptor for the next time.
 *   counting  What has arrived counts against the room until a block claims it, and is let go
 *             before other memory has to be made in that room.
 *             What is on its way lies in the room that was given up: more is not passed on, although
 *             whole blocks may have left more than the order asked for.
 *   failing   Whatever fails, the memory is freed as ever, or new memory is made, at once: also
 *             where what came was of another size than was said, and cannot be mapped.
 *
 * A descriptor holds memory of the card wherever it is. All of ours lie from a number on that leaves
 * a program half of its table, and close to it for a select() on its own. When there is no place
 * for one, its memory is freed. A forked child closes them; exec() does. The kernel copies the table
 * of descriptors before it copies memory, so none comes or goes during a fork.
 */
#include "block/passing.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "block/mapped.h"
#include "block/region.h"
#include "interpose/log.h"
#include "interpose/real.h"

#define HELD_MOST 2048
#define FIRST_MOST 4096              /* number of a descriptor */
#define LEFT_PART 8                  /* of the table, behind all of ours */

static uint64_t held[HELD_MOST / 64]; /* a bit for each descriptor, from `first` on */
static int first;                    /* 0: not known yet */
/* Whoever forks holds it, and so does whoever adds or closes one. No signal handler runs meanwhile,
 * which could fork as well. */
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static sigset_t forking;             /* signals that were blocked before the fork */
static bool refused;                 /* the driver makes no exportable memory here */

static sigset_t shut(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&held_lock);
    return before;
}

static void open_again(const sigset_t *before)
{
    pthread_mutex_unlock(&held_lock);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* A copy of the descriptor, which is closed, where ours are; 0: there is no place. */
static int hold(int descriptor)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (first == 0)
        first = limit.rlim_cur / 2 < FIRST_MOST ? (int)(limit.rlim_cur / 2) : FIRST_MOST;
    rlim_t end = limit.rlim_cur - limit.rlim_cur / LEFT_PART;
    sigset_t before = shut();
    int mine = fcntl(descriptor, F_DUPFD_CLOEXEC, first);
    if (mine >= first && mine - first < HELD_MOST && (rlim_t)mine < end) {
        held[(mine - first) / 64] |= (uint64_t)1 << ((mine - first) % 64);
    } else {
        if (mine >= 0)
            close(mine);
        mine = 0;
    }
    open_again(&before);
    close(descriptor);
    return mine;
}

static void let_go(int descriptor)
{
    sigset_t before = shut();
    held[(descriptor - first) / 64] &= ~((uint64_t)1 << ((descriptor - first) % 64));
    close(descriptor);
    open_again(&before);
}

static void before_fork(void)
{
    forking = shut();
}

static void after_fork(void)
{
    sigset_t before = forking;
    open_again(&before);
}

static void in_child(void)
{
    for (int i = 0; i < HELD_MOST; i++)
        if (held[i / 64] >> (i % 64) & 1)
            close(first + i);
    memset(held, 0, sizeof held);
    after_fork();
}

void passing_prepare(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

bool passing_intends(const struct block *block)
{
    const struct client *client = block->client;
    struct page_owner *owner = region_owner(block->address);
    CUmemAccessDesc access[CLIENTS_MAX];
    return client->pass_from != 0 && block->size >= client->pass_from
        && block->store->map == mapped_map && (owner == NULL || owner->mappings == NULL)
        && mapped_access(client, access) == 1;
}

CUresult passing_create(struct block *block, CUmemAllocationProp property)
{
    block->exportable = !refused && passing_intends(block);
    if (block->exportable) {
        CUmemAllocationProp exportable = property;
        exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUresult result = REAL(cuMemCreate)(&block->handle, block->size, &exportable, 0);
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
            return result;
        debug("memory cannot be passed on here: error %d", (int)result);
        refused = true;
        block->exportable = false;
    }
    return REAL(cuMemCreate)(&block->handle, block->size, &property, 0);
}

int passing_export(struct block *block)
{
    const struct client *client = block->client;
    if (block->state != BLOCK_LEAVING || client->passing == 0 || client->socket < 0
        || block->size > client->passes_most || !passing_intends(block))
        return 0;
    if (block->descriptor != 0)
        return block->descriptor;
    int descriptor;
    if (!block->exportable
        || REAL(cuMemExportToShareableHandle)(&descriptor, block->handle,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
        return 0;
    return block->descriptor = hold(descriptor);
}

void passing_send(struct block *block, int descriptor)
{
    struct client *client = block->client;
    struct nvshare_report report = {
        .type = NVSHARE_PASSED, .version = NVSHARE_PROTOCOL_VERSION, .number = client->passing,
        .moved = block->size,
    };
    client_fill_report(client, &report);
    if (!connection_pass(client->socket, &report, descriptor))
        debug("%zu bytes are freed instead of passed on", block->size);
    client->passes_most -= block->size;
    passing_forget(block);
}

void passing_forget(struct block *block)
{
    if (block->descriptor != 0)
        let_go(block->descriptor);
    block->descriptor = 0;
}

void passing_arrived(struct client *client, const struct nvshare_order *order,
                     struct descriptors *came)
{
    struct arrivals *arrivals = &client->arrivals;
    while (order->type == NVSHARE_LOAD && order->passed != 0 && came->count > 0) {
        int descriptor = hold(came->fd[--came->count]);
        if (descriptor != 0 && arrivals->count < ARRIVALS_MOST)
            arrivals->descriptors[arrivals->count++] = descriptor;
        else if (descriptor != 0)
            let_go(descriptor);
    }
    arrivals->size = order->passed;
    descriptors_close(came);
}

void passing_claim(struct block *block)
{
    struct arrivals *arrivals = &block->client->arrivals;
    if (block->state == BLOCK_SWAPPED && arrivals->count > 0 && arrivals->size == block->size
        && passing_intends(block))
        block->descriptor = arrivals->descriptors[--arrivals->count];
}

bool passing_import(struct block *block)
{
    if (block->descriptor == 0)
        return false;
    CUresult result = REAL(cuMemImportFromShareableHandle)(&block->handle,
        (void *)(uintptr_t)block->descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    block->exportable = false;
    if (result == CUDA_SUCCESS)
        return true;
    debug("memory that was passed on cannot be had: error %d", (int)result);
    passing_forget(block);
    return false;
}

uint64_t passing_imported(const struct client *client)
{
    uint64_t bytes = 0;
    for (const struct block *block = client->blocks; block != NULL; block = block->younger)
        if (block->descriptor != 0 && !block->exportable)
            bytes += block->size;
    return bytes;
}

bool passing_drop(struct client *client)
{
    struct arrivals *arrivals = &client->arrivals;
    if (arrivals->count == 0)
        return false;
    let_go(arrivals->descriptors[--arrivals->count]);
    return true;
}
