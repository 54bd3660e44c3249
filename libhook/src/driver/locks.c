/* SPDX-License-Identifier: Apache-2.0 */
#define LOCK_CHECK_ITSELF
#include "driver/locks.h"

#ifdef NVSHARE_CHECK_LOCKS
#include <dlfcn.h>
#include <execinfo.h>
#include <stdbool.h>
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
    bool fails;
} here __attribute__((tls_model("initial-exec")));

/* Whether a tool's callback within a driver call of the library has called the library: the stack
 * has frames of the library on both sides of others. What such a callback locks, and in which order,
 * is not the library's choice. */
static bool is_called_back(void *const *frames, int count)
{
    Dl_info own, info;
    bool left = false, back = false;
    if (dladdr(rows, &own) == 0)
        return false;
    for (int i = 0; i < count; i++) {
        bool ours = dladdr(frames[i], &info) != 0 && info.dli_fbase == own.dli_fbase;
        back = back || (left && ours);
        left = left || !ours;
    }
    return back;
}

/* Ends the process with the sentence and the stack, unless a tool's callback is the reason. */
static void fail(const char *sentence, const char *first,
                                           const char *second)
{
    char text[300];
    void *frames[FRAMES_MOST];
    here.fails = true;
    int count = backtrace(frames, FRAMES_MOST);
    if (!is_called_back(frames, count)) {
        int size = snprintf(text, sizeof text, sentence, first, second);
        if (write(STDERR_FILENO, text, (size_t)size) == size)
            backtrace_symbols_fd(frames, count, STDERR_FILENO);
        abort();
    }
    here.fails = false;
}

static const struct row *row_of(const pthread_mutex_t *mutex)
{
    for (const struct lock_place *place = __start_lock_places; place < __stop_lock_places; place++)
        if (place->mutex == mutex)
            return &rows[place->row];
    fail("nvshare: a lock that MUTEX() does not define is used\n", "", "");
    return &rows[0];
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
    for (unsigned i = 0; i < here.count && !here.fails; i++) {
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
    for (unsigned i = 0; i < here.count && !here.fails; i++)
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
    for (unsigned i = 0; i < here.count && !here.fails; i++)
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
