/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/own_thread.h"

#include <signal.h>
#include <sys/prctl.h>

#include "driver/process_start.h"

/* The program may have chosen smaller stacks (pthread_setattr_default_np(), ulimit -s) than the
 * library and the driver need. */
#define STACK_LEAST ((size_t)1 << 20)

int own_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    size_t stack;
    pthread_attr_init(&attributes);
    if (pthread_attr_getstacksize(&attributes, &stack) == 0 && stack < STACK_LEAST)
        pthread_attr_setstacksize(&attributes, STACK_LEAST);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

void own_thread_begins(const char *name)
{
    process_reset_thread();
    prctl(PR_SET_NAME, name);        /* last: a thread with this name is completely set up */
}
