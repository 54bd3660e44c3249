/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/forked.h"

#include <pthread.h>
#include <stdatomic.h>

#include "driver/bell.h"
#include "driver/locks.h"
#include "driver/own_file.h"

/* fork() waits at most 1 s for UNFORKED scopes: a driver call in such a scope may never return. */
#define TRIES_MOST 10000
#define TRY_US 100

static MUTEX(forked_lock);
static KEPT_IN_CHILD bool child = false;
static KEPT_IN_CHILD void (*release_all)(void) = NULL;
static KEPT_IN_CHILD void (*wake_all)(void) = NULL;
static __thread bool held __attribute__((tls_model("initial-exec")));

/* Bounds of .bss, which a child resets: all variables that are not KEPT_IN_CHILD. */
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));

bool unforked_begin(void)
{
    mutex_lock(&forked_lock);        /* signals wait: a handler may fork */
    return true;
}

void unforked_end(const bool *unused)
{
    (void)unused;
    mutex_unlock(&forked_lock);
}

static void before_fork(void)
{
    DEFERRED;
    held = false;
    for (unsigned tries = 0; !held && tries < TRIES_MOST; tries++) {
        held = pthread_mutex_trylock(&forked_lock) == 0;
        if (!held)
            bell_nap(TRY_US);
    }
}

static void in_parent(void)
{
    if (held)
        pthread_mutex_unlock(&forked_lock);
}

/* Sanitizer checks are off here: they forbid writes to the gaps between variables. */
__attribute__((no_sanitize("address", "thread"))) static void reset_variables(void)
{
    for (volatile char *byte = __bss_start; byte < _end; byte++)
        if (*byte != 0)              /* else the write would copy a page of the parent */
            *byte = 0;
}

static void in_child(void)
{
    child = true;
    leave_in_child();
    LOCK_CHECK_FORKED();
    own_files_close_all();
    release_all();
    reset_variables();
    wake_all();
}

void forks_watch(void (*release)(void), void (*wake)(void))
{
    static KEPT_IN_CHILD _Atomic bool watched = false;
    if (atomic_exchange(&watched, true))
        return;
    release_all = release;
    wake_all = wake;
    pthread_atfork(before_fork, in_parent, in_child);
}

bool is_forked_child(void)
{
    return child;
}
