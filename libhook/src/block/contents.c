/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which blocks need no copy when they are evicted, because they are all zero (exact:
 * all words are or-ed) or unchanged since they were loaded. A kernel reads blocks on the card,
 * fifty times faster than the bus: 4 GiB in 1.2 ms on an H200. NVSHARE_EXAMINE=0 turns this off.
 *
 * The digest: four sums modulo 2^64 of products of the two halves of each 64-bit word, each half
 * added to a key for its position modulo 2^32 first. This is the function NH of UMAC (Black,
 * Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication", 1999) in
 * four passes with keys shifted by a word (Toeplitz). With random keys, two different blocks of
 * one size have equal sums with a probability of at most 2^-128. The keys come from a random
 * seed of the process.
 *
 * The kernel keeps the card from other work, often in another client's turn. Of a block that was
 * evicted before, it first reads one word in 64; only if these words equal the last eviction's,
 * or are zero, does it read all words, which decide. So a block that changes before each eviction
 * is read completely once only. The switch of contexts costs the running client more than reading
 * one word in 64, so one launch samples as many blocks as it can, also blocks of later orders
 * (swap.c). Fewer blocks are read completely in a launch: 0.3 ms for each GiB. */
#include "block/contents.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "gate/client.h"

#define GRID 264                     /* thread blocks: two for each SM of an H200 */
#define THREADS 256
#define TOGETHER 2                   /* equals TOGETHER in examine.cu */
#define PART 64                      /* the first pass reads one word in PART */

/* The layout must be that of `struct target` in examine.cu. */
struct target {
    CUdeviceptr address;
    uint64_t words;
};

/* By client index; objects of the client's copy_context. Protected by service_lock. */
static struct examiner {
    bool settled, usable;            /* loading is not tried again; the kernel is loaded */
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUdeviceptr table;               /* card memory: the blocks to read, and the results */
} examiners[CLIENTS_MAX];

struct launch {
    size_t count;
    struct target targets[READS_MAX];
    struct content *found[READS_MAX];
};

/* The table's first half is for blocks to sample, the second for blocks to read completely. */
#define ENTRY (sizeof(struct target) + sizeof(struct content))
#define HALF (READS_MAX * ENTRY)

extern const char examine_ptx[];
__asm__(".section .rodata\n.global examine_ptx\n.hidden examine_ptx\n"
        "examine_ptx: .incbin \"src/block/examine.ptx\"\n.byte 0\n.text\n");

_Static_assert(sizeof(struct content) == 40, "the kernel writes five words");

/* The random seed of the digests' keys; 0: the kernel has given no random bytes. */
static uint64_t seed(void)
{
    static MUTEX(seed_lock);
    static uint64_t value;
    LOCKED(seed_lock);
    if (value == 0 && syscall(SYS_getrandom, &value, sizeof value, 0) != sizeof value)
        value = 0;
    return value;
}

static void add(struct launch *launch, const struct block *block, struct content *found)
{
    launch->targets[launch->count] = (struct target){ block->address, block->size / 8 };
    launch->found[launch->count++] = found;
}

/* Starts the kernel, which reads the first 4 of each 4 * `every` words of the targets. */
static CUresult start(struct client *client, CUdeviceptr table, const struct launch *launch,
                      uint64_t every)
{
    CUstream stream = examiners[client->index].stream;
    CUdeviceptr found = table + READS_MAX * sizeof(struct target);
    uint64_t count = launch->count, key = seed();
    void *parameters[] = { &table, &count, &key, &every, &found };
    if (count == 0)
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemcpyHtoDAsync_v2)(table, launch->targets,
                                                 count * sizeof(struct target), stream);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemsetD8Async)(found, 0, count * sizeof(struct content), stream);
    if (result == CUDA_SUCCESS)
        result = REAL(cuLaunchKernel)(examiners[client->index].kernel, GRID,
                                      (unsigned)(count + TOGETHER - 1) / TOGETHER, 1, THREADS,
                                      1, 1, 0, stream, parameters, NULL);
    return result;
}

static CUresult finish(struct client *client, CUdeviceptr table, const struct launch *launch)
{
    struct content contents[READS_MAX];
    CUstream stream = examiners[client->index].stream;
    if (launch->count == 0)
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemcpyDtoHAsync_v2)(contents,
                                                 table + READS_MAX * sizeof(struct target),
                                                 launch->count * sizeof *contents, stream);
    CUresult ended = REAL(cuStreamSynchronize)(stream);
    for (size_t i = 0; i < launch->count; i++)
        *launch->found[i] = contents[i];
    return result != CUDA_SUCCESS ? result : ended;
}

/* Loads the kernel and launches it once, because the driver may defer loading until then. */
static CUresult load(struct client *client)
{
    struct examiner *own = &examiners[client->index];
    CUresult result = CUDA_SUCCESS;
    if (own->module == NULL)
        result = REAL(cuModuleLoadData)(&own->module, examine_ptx);
    if (result == CUDA_SUCCESS && own->kernel == NULL)
        result = REAL(cuModuleGetFunction)(&own->kernel, own->module, "nvshare_examine");
    if (result == CUDA_SUCCESS && own->stream == NULL)
        result = REAL(cuStreamCreate)(&own->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && own->table == 0)
        result = REAL(cuMemAlloc_v2)(&own->table, 2 * HALF);
    struct content any;
    struct launch first = { 1, { { own->table + HALF, 4 } }, { &any } };
    if (result == CUDA_SUCCESS)
        result = start(client, own->table, &first, 1);
    if (result == CUDA_SUCCESS)
        result = finish(client, own->table, &first);
    return result;
}

/* Loads the kernel at the first call; after an error other than a lack of memory never again. */
static bool ready(struct client *client)
{
    struct examiner *own = &examiners[client->index];
    if (own->settled)
        return own->usable;
    const char *text = setting("NVSHARE_EXAMINE");
    own->settled = (text != NULL && strcmp(text, "0") == 0) || seed() == 0;
    /* Loading synchronises the context, which would invalidate a capture, and lets no other call
     * into the context until work in flight is over (waits.def). */
    if (own->settled || !client->drained || !capture_forbid(false))
        return false;
    CUresult result = load(client);
    capture_allow();
    own->usable = result == CUDA_SUCCESS;
    own->settled = result != CUDA_ERROR_OUT_OF_MEMORY;
    if (!own->usable)
        debug("blocks are not read before their eviction: error %d", (int)result);
    return own->usable;
}

void content_leave_context(struct client *client)
{
    examiners[client->index] = (struct examiner){ .settled = false };
}

/* Reads one word in PART of each block that has a digest, and all words of each other block. */
static CUresult read_first(struct client *client, struct block *const *blocks, size_t count)
{
    struct launch parts = { .count = 0 }, wholes = { .count = 0 };
    CUdeviceptr table = examiners[client->index].table;
    for (size_t i = 0; i < count; i++) {
        add(&parts, blocks[i], &blocks[i]->reading.part);
        blocks[i]->reading.whole = !blocks[i]->part_valid;
        if (blocks[i]->reading.whole)
            add(&wholes, blocks[i], &blocks[i]->reading.all);
    }
    CUresult result = start(client, table, &parts, PART);
    if (result == CUDA_SUCCESS)
        result = start(client, table + HALF, &wholes, 1);
    if (result == CUDA_SUCCESS)
        result = finish(client, table, &parts);
    return result != CUDA_SUCCESS ? result : finish(client, table + HALF, &wholes);
}

/* Reads all words of each block with sampled words (one in PART) that are all zero or unchanged.
 * Removes blocks beyond WHOLE_READS_MAX from the list: a later order reads them. */
static CUresult read_wholly(struct client *client, struct block **blocks, size_t *count)
{
    struct launch wholes = { .count = 0 };
    CUdeviceptr table = examiners[client->index].table;
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        struct reading *reading = &blocks[i]->reading;
        bool doubtful = !reading->whole
            && (reading->part.any == 0 || content_equal(&reading->part, &blocks[i]->part));
        if (doubtful && wholes.count == WHOLE_READS_MAX)
            continue;
        blocks[kept++] = blocks[i];
        if (!doubtful)
            continue;
        reading->whole = true;
        add(&wholes, blocks[i], &reading->all);
    }
    *count = kept;
    CUresult result = start(client, table, &wholes, 1);
    return result != CUDA_SUCCESS ? result : finish(client, table, &wholes);
}

bool content_read(struct client *client, struct block *const *blocks, size_t count)
{
    struct block *fresh[READS_MAX];
    size_t found = 0, new = 0;
    for (size_t i = 0; i < count; i++) {
        if (block_reading_is_valid(blocks[i]))
            continue;
        blocks[i]->reading.turn = 0;
        if (blocks[i]->part_valid || new++ < WHOLE_READS_MAX)
            fresh[found++] = blocks[i];
    }
    if (!ready(client))
        return false;
    CUresult result = found == 0 ? CUDA_SUCCESS : read_first(client, fresh, found);
    if (result == CUDA_SUCCESS && found > 0)
        result = read_wholly(client, fresh, &found);
    if (result != CUDA_SUCCESS)
        debug("reading %zu blocks failed: error %d", count, (int)result);
    for (size_t i = 0; i < found; i++)
        fresh[i]->reading.turn = result == CUDA_SUCCESS ? client->turns : 0;
    return result == CUDA_SUCCESS;
}
