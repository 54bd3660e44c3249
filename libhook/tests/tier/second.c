/* SPDX-License-Identifier: Apache-2.0 */
/* A tier of the tests alone, before all others: one more region of host memory, of SIZE bytes, for
 * all clients of the process. Its pages are not registered with the driver, so each copy may wait
 * for the bus. NVSHARE_TEST_TIER is the name of a file that is created when a block has a place. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "tier/ranges.h"
#include "tier/tier.h"

#define SIZE ((size_t)8 << 20)

static struct ranges space;          /* the region's free addresses */
static bool used;

static void note_use(void)
{
    UNFORKED;
    const char *name = getenv("NVSHARE_TEST_TIER");
    if (!used && name != NULL)
        close(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    used = true;
}

static void attach(struct client *client)
{
    (void)client;
    if (space.sorted != NULL)
        return;
    void *memory = mmap(NULL, SIZE + PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED)
        ranges_give(&space, WHOLE_PAGES((uintptr_t)memory), SIZE, 0, UINT64_MAX);
}

static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    CUdeviceptr address;
    (void)patient;
    if (!tiers_make_room(client, size, allowance)
        || !ranges_take(&space, size, UINT64_MAX, &address))
        return false;
    place->memory = (char *)(uintptr_t)address;
    note_use();
    return true;
}

static void give(struct client *client, size_t size, struct place *place)
{
    (void)client;
    ranges_give(&space, (uintptr_t)place->memory, size, 0, UINT64_MAX);
}

static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    char *memory = place->memory + offset;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = out ? REAL(cuMemcpyDtoHAsync_v2)(memory, address + offset, size, stream)
                          : REAL(cuMemcpyHtoDAsync_v2)(address + offset, memory, size, stream);
    pthread_mutex_lock(&memory_lock);
    return result;
}

const struct tier tier_second = {
    .take = take, .give = give, .copy = copy, .pieces = true, .keeps = true, .readable = true,
    .cost = COSTS_PLACES, .attach = attach,
};
