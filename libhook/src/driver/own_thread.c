/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/own_thread.h"

#include <signal.h>
#include <sys/prctl.h>

#include "driver/process_start.h"

int own_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void own_thread_begins(const char *name)
{
    process_reset_thread();
    prctl(PR_SET_NAME, name);        /* last: a thread with this name is completely set up */
}
