/* SPDX-License-Identifier: Apache-2.0 */
/* Defines locks, each with a row in locks.def. With NVSHARE_CHECK_LOCKS the rows are checked at run
 * time, as the kernel's lockdep does: the first violation ends the process with a sentence, in
 * whichever order threads happened to run. Without, nothing remains of this. */
#pragma once

#include <pthread.h>

enum lock_row {
#define LOCK(name, ...) LOCK_ROW_##name,
#include "driver/locks.def"
#undef LOCK
    LOCK_ROWS
};

#ifndef NVSHARE_CHECK_LOCKS

/* After `static` or nothing. */
#define MUTEX(name)                                     \
    pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;   \
    _Static_assert(LOCK_ROW_##name < LOCK_ROWS, #name)
#define LOCK_CHECK_CALL(name) (void)0
#define LOCK_CHECK_WAIT(name) (void)0
#define LOCK_CHECK_READ(mutex) (void)0
#define LOCK_CHECK_FORKED() (void)0

#else

struct lock_place {
    pthread_mutex_t *mutex;
    enum lock_row row;
};

#define MUTEX(name)                                                                           \
    pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                         \
    static const struct lock_place place_of_##name                                            \
        __attribute__((section("lock_places"), used)) = { &name, LOCK_ROW_##name }
#define LOCK_CHECK_CALL(name) lock_check_call(#name)
#define LOCK_CHECK_WAIT(name) lock_check_wait(name)
#define LOCK_CHECK_READ(mutex) lock_check_read(mutex)
#define LOCK_CHECK_FORKED() lock_check_forked()

void lock_check_call(const char *name);
void lock_check_wait(const char *name);
void lock_check_read(const pthread_mutex_t *mutex);
void lock_check_forked(void);
int lock_checked(pthread_mutex_t *mutex);
int lock_checked_try(pthread_mutex_t *mutex);
int lock_checked_end(pthread_mutex_t *mutex);
void lock_check_condition(const pthread_mutex_t *mutex);

#ifndef LOCK_CHECK_ITSELF
#define pthread_mutex_lock(mutex) lock_checked(mutex)
#define pthread_mutex_trylock(mutex) lock_checked_try(mutex)
#define pthread_mutex_unlock(mutex) lock_checked_end(mutex)
#define pthread_cond_wait(condition, mutex) \
    (lock_check_condition(mutex), pthread_cond_wait(condition, mutex))
#define nanosleep(...) (lock_check_wait("nanosleep"), nanosleep(__VA_ARGS__))
#define usleep(us) (lock_check_wait("usleep"), usleep(us))
#define pthread_join(...) (lock_check_wait("pthread_join"), pthread_join(__VA_ARGS__))
#endif

#endif
