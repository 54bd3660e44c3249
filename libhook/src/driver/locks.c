/* SPDX-License-Identifier: Apache-2.0 */
#define LOCK_CHECK_ITSELF
#include "driver/locks.h"

#ifdef NVSHARE_CHECK_LOCKS
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELD_MOST 16
#define FRAMES_MOST 32

enum calls { NO_CALLS, CALLS };
enum waits { NO_WAITS, OWN_WORK, WAITS };
enum jumps { DEFERS, JUMPS };

static const struct row {
    const char *name;
    unsigned rank;
    enum calls calls;
    enum waits waits;
    enum jumps jumps;
} rows[] = {
#define LOCK(name, rank, calls, waits, jumps, protects, longest) \
    { #name, rank, calls, waits, jumps },
#include "driver/locks.def"
#undef LOCK
};

extern const struct lock_place __start_lock_places[] __attribute__((visibility("hidden")));
extern const struct lock_place __stop_lock_places[] __attribute__((visibility("hidden")));

static __thread struct {
    unsigned count;
    pthread_mutex_t *held[HELD_MOST];
} here __attribute__((tls_model("initial-exec")));

/* Ends the process with the sentence and the stack. */
__attribute__((noreturn)) static void fail(const char *sentence, const char *first, const char *second)
{
    char text[300];
    void *frames[FRAMES_MOST];
    int size = snprintf(text, sizeof text, sentence, first, second);
    if (write(STDERR_FILENO, text, (size_t)size) == size)
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MOST), STDERR_FILENO);
    abort();
}

static const struct row *row_of(const pthread_mutex_t *mutex)
{
    for (const struct lock_place *place = __start_lock_places; place < __stop_lock_places; place++)
        if (place->mutex == mutex)
            return &rows[place->row];
    fail("nvshare: a lock that MUTEX() does not define is used\n", "", "");
}

static void note(pthread_mutex_t *mutex)
{
    if (here.count == HELD_MOST)
        fail("nvshare: too many locks are held when %s is locked\n", row_of(mutex)->name, "");
    here.held[here.count++] = mutex;
}

int lock_checked(pthread_mutex_t *mutex)
{
    const struct row *row = row_of(mutex);
    for (unsigned i = 0; i < here.count; i++) {
        const struct row *held = row_of(here.held[i]);
        if (held->rank >= row->rank)
            fail("nvshare: locks.def forbids to lock %s while %s is held\n", row->name, held->name);
    }
    int result = pthread_mutex_lock(mutex);
    note(mutex);
    return result;
}

int lock_checked_try(pthread_mutex_t *mutex)
{
    row_of(mutex);
    int result = pthread_mutex_trylock(mutex);
    if (result == 0)
        note(mutex);
    return result;
}

int lock_checked_end(pthread_mutex_t *mutex)
{
    unsigned at = here.count;
    while (at > 0 && here.held[at - 1] != mutex)
        at--;
    if (at == 0)
        fail("nvshare: %s is unlocked by a thread that does not hold it\n", row_of(mutex)->name, "");
    here.count--;
    memmove(&here.held[at - 1], &here.held[at], (here.count - at + 1) * sizeof here.held[0]);
    return pthread_mutex_unlock(mutex);
}

/* A wait that each lock held but `but` must allow at least as `kind`. */
static void check_wait(const char *name, enum waits kind, const pthread_mutex_t *but)
{
    for (unsigned i = 0; i < here.count; i++)
        if (here.held[i] != but && row_of(here.held[i])->waits < kind)
            fail("nvshare: locks.def forbids to wait in %s while %s is held\n", name,
                 row_of(here.held[i])->name);
}

void lock_check_wait(const char *name)
{
    check_wait(name, WAITS, NULL);
}

void lock_check_condition(const pthread_mutex_t *mutex)
{
    check_wait("pthread_cond_wait", WAITS, mutex);
}

void lock_check_call(const char *name)
{
    if (strstr(name, "Synchronize") != NULL)
        check_wait(name, OWN_WORK, NULL);
    for (unsigned i = 0; i < here.count; i++)
        if (row_of(here.held[i])->calls == NO_CALLS)
            fail("nvshare: locks.def forbids to call %s while %s is held\n", name,
                 row_of(here.held[i])->name);
}

void lock_check_read(const pthread_mutex_t *mutex)
{
    if (row_of(mutex)->jumps != JUMPS)
        fail("nvshare: locks.def forbids a jump while %s is held, but it is locked to read\n",
             row_of(mutex)->name, "");
}

void lock_check_forked(void)
{
    here.count = 0;
}

#endif
