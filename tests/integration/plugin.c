/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that is linked with the driver and has a thread which uses the card.
 * The thread ends with the plugin: the last dlclose() waits for it.
 */
#include <pthread.h>
#include <stdlib.h>

#define SIZE (32u << 20)

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);
int cuMemsetD32_v2(unsigned long long, unsigned, size_t);
int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);

int plugin_begin(void);
int plugin_work(int *result);

static void *context;
static unsigned long long memory;
static pthread_t thread;
static int working, *right;

int plugin_begin(void)
{
    return cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0
        && cuCtxSetCurrent(context) == 0 && cuMemAlloc_v2(&memory, SIZE) == 0
        && cuMemsetD32_v2(memory, 0x12345678, SIZE / 4) == 0;
}

static void *work(void *argument)
{
    unsigned *words = malloc(SIZE);
    (void)argument;
    *right = cuCtxSetCurrent(context) == 0 && cuMemcpyDtoH_v2(words, memory, SIZE) == 0;
    for (unsigned i = 0; i < SIZE / 4; i++)
        *right &= words[i] == 0x12345678;
    free(words);
    return NULL;
}

int plugin_work(int *result)
{
    right = result;
    return working = pthread_create(&thread, NULL, work, NULL) == 0;
}

__attribute__((destructor)) static void end(void)
{
    if (working && (pthread_join(thread, NULL) != 0 || cuMemFree_v2(memory) != 0))
        *right = 0;
}
