/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "block/region.h"
#include "gate/client.h"
#include "fuzz.h"
#include "driver/driver.h"
#include "driver/real.h"
#include "ipc/ipc_export.h"

#define STEPS 48
#define BYTES (7 * MIB)
#define SHARED WHOLE_PAGES(BYTES)
#define VALUE 0x5ecc2e75u

static CUdeviceptr memory;
static void *volatile kept;          /* the hook's last IPC handle; volatile, so that the leak
                                        check sees it */
static struct ipc_ticket ticket;
static struct { size_t files, threads, card; } before;

static size_t entries(const char *path)
{
    size_t count = 0;
    DIR *folder = opendir(path);
    MUST(folder != NULL, "%s cannot be read", path);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void carry_out(void (*part)(void))
{
    program_run(part);
    peer_accept();
    peer_put_right();
    program_finish();
}

static void share(void)
{
    CUipcMemHandle handle;
    succeed(cuMemAlloc_v2(&memory, BYTES), "allocating");
    succeed(cuMemsetD32Async(memory, VALUE, BYTES / 4, CU_STREAM_PER_THREAD), "filling");
    succeed(cuIpcGetMemHandle(&handle, memory), "sharing");
    memcpy(&ticket, &handle, sizeof ticket);
    pthread_mutex_lock(&memory_lock);
    kept = region_owner(memory);
    pthread_mutex_unlock(&memory_lock);
}

static void compare(void)
{
    compare_words(memory, BYTES, VALUE);
}

static void begin(void)
{
    peer_listen();
    program_enter(REAL(cuDevicePrimaryCtxRetain));
    program_start();
    carry_out(share);
    carry_out(compare);
    /* The first import allocates what the hook keeps for later imports. */
    const uint8_t truth[] = { 0, 3 };
    struct input input = { truth, sizeof truth };
    liar_step(&input);
    visitors_fetch(&ticket, SHARED);
    before.files = entries("/proc/self/fd");
    before.threads = entries("/proc/self/task");
    before.card = card_in_use();
}

/* Waits until the hook has dropped all clients that have left. Clients from before the first run
 * are dropped, too, so fewer files and threads may be open than at the beginning. */
static void settle(void)
{
    for (int waited = 0;; waited++) {
        size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
        size_t card = card_in_use();
        if (files <= before.files && threads <= before.threads && card <= before.card)
            return;
        MUST(waited < PATIENCE_MS, "%zu descriptors, %zu threads, %zu bytes; before %zu, %zu, %zu",
             files, threads, card, before.files, before.threads, before.card);
        poll(NULL, 0, 1);
    }
}

static void step(struct input *input)
{
    uint8_t kind = (uint8_t)take(input, 1);
    struct ipc_ticket false_ticket = ticket;
    if (kind < 180) {
        visitors_step(&ticket, input);
    } else if (kind < 220) {
        liar_step(input);
    } else if (kind < 240) {
        visitors_fetch(&ticket, SHARED);
    } else {
        *(kind % 3 == 0 ? &false_ticket.request.secret : kind % 3 == 1 ? &false_ticket.secret
          : &false_ticket.request.id) ^= (uint64_t)1 << kind % 64;
        visitors_fetch(&false_ticket, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool begun;
    if (!begun)
        begin();
    begun = true;
    struct input input = { data, size };
    for (int steps = 0; steps < STEPS && input.size > 0; steps++)
        step(&input);
    visitors_fetch(&ticket, SHARED);
    carry_out(compare);
    visitors_leave();
    settle();
    return 0;
}
