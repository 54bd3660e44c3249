/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What need not cross the bus. Programs allocate far more than they write, and
 * much of what they have written once they only read: the memory of a model
 * that answers questions never changes. The card reads its own memory fifty
 * times faster than the bus carries it; so before blocks leave, a kernel looks
 * at them:
 *
 *   all zero         nothing is copied; the block is cleared when it comes back
 *   as it came in    its host slot, kept since, is still right
 *
 * The digest. A block is read as 64-bit words of two halves each. Four sums
 * modulo 2^64 are taken over it, of products of the halves, each half added to
 * a key of its place modulo 2^32 first: the function NH of UMAC (Black, Halevi,
 * Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication",
 * 1999), in four passes whose keys are shifted against each other by a word
 * (their Toeplitz construction). With random keys, two different blocks of one
 * size have equal sums with a probability of at most 2^-32 in each pass and
 * 2^-128 in all four. The keys are made by a generator from a seed that the
 * kernel of this machine gives each process; no data knows it. At a million
 * comparisons a second for the age of the universe, the chance that one
 * difference is overlooked is about 10^-15.
 *
 * Zero is not a matter of chance: all words are or-ed together.
 *
 * NVSHARE_EXAMINE=0 in a program's environment turns all of it off.
 */
#include "content.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "log.h"
#include "real.h"

#define GRID 264                     /* blocks of the kernel: two for each of an H200's 132 */
#define THREADS 256

extern const char examine_ptx[];
__asm__(".section .rodata\n.global examine_ptx\n.hidden examine_ptx\n"
        "examine_ptx: .incbin \"src/examine.ptx\"\n.byte 0\n.text\n");

_Static_assert(sizeof(struct content) == 40, "the kernel writes five words");

/* The service threads of several devices share it. */
static uint64_t seed(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t value;
    pthread_mutex_lock(&lock);
    if (value == 0 && getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
        value = 0;
    uint64_t got = value;
    pthread_mutex_unlock(&lock);
    return got;
}

static bool turned_off(void)
{
    const char *text = setting("NVSHARE_EXAMINE");
    return text != NULL && strcmp(text, "0") == 0;
}

static CUresult look(struct client *client, CUdeviceptr address, size_t size, CUdeviceptr result)
{
    uint64_t words = size / sizeof(uint64_t), key = seed();
    void *parameters[] = { &address, &words, &key, &result };
    return REAL(cuLaunchKernel)(client->examiner.kernel, GRID, 1, 1, THREADS, 1, 1, 0,
                                client->examiner.stream, parameters, NULL);
}

/* The driver loads a kernel when it is first launched, at the latest. */
static CUresult load(struct client *client)
{
    struct examiner *own = &client->examiner;
    CUresult result = CUDA_SUCCESS;
    if (own->module == NULL)
        result = REAL(cuModuleLoadData)(&own->module, examine_ptx);
    if (result == CUDA_SUCCESS && own->kernel == NULL)
        result = REAL(cuModuleGetFunction)(&own->kernel, own->module, "nvshare_examine");
    if (result == CUDA_SUCCESS && own->stream == NULL)
        result = REAL(cuStreamCreate)(&own->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && own->results == 0)
        result = REAL(cuMemAlloc_v2)(&own->results, (LOOKS_MAX + 1) * sizeof(struct content));
    if (result == CUDA_SUCCESS)
        result = look(client, own->results, 32,
                      own->results + LOOKS_MAX * sizeof(struct content));
    if (result == CUDA_SUCCESS)
        result = REAL(cuStreamSynchronize)(own->stream);
    return result;
}

/* Made once for each context that copies; what fails is not tried again there. */
static bool ready(struct client *client)
{
    struct examiner *own = &client->examiner;
    if (own->settled)
        return own->usable;
    own->settled = turned_off() || seed() == 0;
    /* Loading may synchronise the context, which no capture survives. */
    if (own->settled || !capture_forbid())
        return false;
    CUresult result = load(client);
    capture_allow();
    own->usable = result == CUDA_SUCCESS;
    /* On a card that is full there may be room another time. */
    own->settled = result != CUDA_ERROR_OUT_OF_MEMORY;
    if (!own->usable)
        debug("blocks are not looked at before they leave: error %d", (int)result);
    return own->usable;
}

void content_leave_context(struct client *client)
{
    client->examiner = (struct examiner){ .settled = false };
}

bool content_look(struct client *client, struct block *const *blocks, size_t count,
                  struct content *contents)
{
    if (!ready(client))
        return false;
    CUstream stream = client->examiner.stream;
    CUdeviceptr results = client->examiner.results;
    size_t size = count * sizeof *contents;
    CUresult result = REAL(cuMemsetD8Async)(results, 0, size, stream);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = look(client, blocks[i]->address, blocks[i]->size,
                      results + i * sizeof *contents);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemcpyDtoHAsync_v2)(contents, results, size, stream);
    CUresult ended = REAL(cuStreamSynchronize)(stream);
    if (result == CUDA_SUCCESS)
        result = ended;
    if (result != CUDA_SUCCESS)
        debug("looking at %zu blocks failed: error %d", count, (int)result);
    return result == CUDA_SUCCESS;
}

bool content_is_zero(const struct content *content)
{
    return content->any == 0;
}

bool content_equal(const struct content *a, const struct content *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}
