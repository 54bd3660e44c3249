/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/own_thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>

#include "driver/forked.h"
#include "driver/leave.h"
#include "driver/log.h"

/* The program may have chosen smaller stacks than the library and the driver need. */
#define STACK_LEAST ((size_t)1 << 20)

/* The process's processors at its start. The program may later bind its threads to fewer. */
static KEPT_IN_CHILD struct {
    bool known;
    cpu_set_t set;
} processors = { .known = false };

void own_threads_note_processors(void)
{
    processors.known = sched_getaffinity(0, sizeof processors.set, &processors.set) == 0;
}

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
    leave_thread_is_ours();
    const struct sched_param none = { .sched_priority = 0 };
    if (sched_getscheduler(0) != SCHED_OTHER && sched_setscheduler(0, SCHED_OTHER, &none) != 0)
        debug("a thread keeps its starter's scheduling policy: %s", error_text(errno));
    if (processors.known && sched_setaffinity(0, sizeof processors.set, &processors.set) != 0)
        debug("a thread keeps its starter's processors: %s", error_text(errno));
    prctl(PR_SET_NAME, name);        /* last: a thread with this name is fully set up */
}
