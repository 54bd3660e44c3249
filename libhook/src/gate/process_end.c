/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps exit() until no thread of ours is within the driver. Otherwise a program that ends while
 * its memory moves would crash at its very end.
 *
 * The driver goes in two steps. Its first cuInit registers a function with atexit(); from when exit()
 * calls that, each call fails at once. Later its static objects are destroyed, and a call that has
 * not returned by then finds nothing where it looks. Functions are called in the reverse order. So
 * one that is registered right before cuInit is called between the two. It waits until service
 * threads have come out of the call that they are in. The next ones are harmless.
 *
 * (So do the drivers 535, 550 and 555: the function that cuInit registers does nothing but mark the
 * driver as ended.)
 */
#include "gate/process_end.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "driver/log.h"
#include "gate/client.h"

/* A call takes milliseconds. But a signal handler may exit over a thread that has the lock. */
#define PATIENCE_US 5000000

static void await(pthread_mutex_t *lock, uint64_t until)
{
    while (pthread_mutex_trylock(lock) != 0) {
        if (now_microseconds() > until) {
            debug("the process exits while its memory is being moved");
            return;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
    pthread_mutex_unlock(lock);
}

static void at_exit(void)
{
    uint64_t until = now_microseconds() + PATIENCE_US;
    await(&service_lock, until);
    await(&memory_lock, until);
}

void process_end_watch(void)
{
    static _Atomic bool watched;
    if (!atomic_exchange(&watched, true) && atexit(at_exit) != 0)
        debug("the end of the process cannot be watched");
}
