/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that is linked with the driver and has a thread which uses the card.
 * The thread ends with the plugin: the last dlclose() waits for it.
 */
#include <pthread.h>

#include "holder.h"

int plugin_begin(void);
int plugin_work(int *result);

static pthread_t thread;
static int working, *right;

int plugin_begin(void)
{
    begin();
    return 1;
}

static void *work(void *argument)
{
    (void)argument;
    check();
    *right = 1;
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
