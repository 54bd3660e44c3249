/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls the driver at random and prints the results.
 *
 *     random --seed S [--sequences N] [--calls N] [--called FILE]
 *
 * The calls of a sequence depend on its seed alone, and free all that they allocate. The
 * transcript has no address and no handle, so the same seed must print the same transcript with
 * and without the library. FILE: the names of the called functions are written to it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actions.h"

static unsigned char pattern_bytes[SCRATCH];
const unsigned char *pattern = pattern_bytes;

static const struct {
    void (*act)(void);
    unsigned weight;
} actions[] = {
#define ACTION(name, weight) { name, weight },
    ACTIONS(ACTION)
#undef ACTION
};

static void act(void)
{
    unsigned total = 0, chosen, i = 0;
    for (size_t n = 0; n < sizeof actions / sizeof *actions; n++)
        total += actions[n].weight;
    for (chosen = (unsigned)roll(total); chosen >= actions[i].weight; i++)
        chosen -= actions[i].weight;
    actions[i].act();
}

/* No sequence may break its context, because later results would mean nothing. */
static void still_well(uint64_t seed)
{
    CUresult result = DO(cuCtxSynchronize, (), "%s", "");
    if (result == CUDA_SUCCESS)
        return;
    calls_end();
    fprintf(stderr, "random: after sequence %llu the context is broken: error %d\n",
            (unsigned long long)seed, (int)result);
    exit(3);
}

static void sequence(uint64_t seed, unsigned calls)
{
    dice_seed(seed);
    blocks_begin();
    DO(cuDevicePrimaryCtxRetain, (&primary, device), "sequence %llu", (unsigned long long)seed);
    context = primary;
    DO(cuCtxSetCurrent, (primary), "primary");
    kernels_begin();
    pools_begin();
    streams_begin();
    while (calls-- > 0)
        act();
    still_well(seed);
    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].kind != NOTHING) {
            block_read(&blocks[i]);
            block_free(&blocks[i]);
        }
    streams_end();
    pools_end();
    kernels_end();
    if (one_in(10))
        EITHER(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (device), "0");
    EITHER(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (device), "0");
}

static const char *option(int argc, char **argv, const char *name, const char *fallback)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return fallback;
}

int main(int argc, char **argv)
{
    uint64_t seed = strtoull(option(argc, argv, "--seed", "1"), NULL, 0);
    uint64_t sequences = strtoull(option(argc, argv, "--sequences", "1"), NULL, 0);
    unsigned calls = (unsigned)atoi(option(argc, argv, "--calls", "60"));
    const char *list = option(argc, argv, "--called", NULL);
    calls_load();
    dice_seed(0);
    for (size_t i = 0; i < SCRATCH; i++)
        pattern_bytes[i] = (unsigned char)roll(256);
    if (DO(cuInit, (0), "0") != CUDA_SUCCESS || DO(cuDeviceGet, (&device, 0), "0") != CUDA_SUCCESS)
        return 2;
    for (uint64_t i = 0; i < sequences; i++)
        sequence(seed + i, calls);
    DO(cuInit, (0), "the end");
    calls_end();
    if (list != NULL)
        calls_list(list);
    return 0;
}
