/* SPDX-License-Identifier: Apache-2.0 */
/* A futex word on which a thread sleeps until another thread changes the word. The sleeping thread
 * is recorded nowhere, so it may leave by siglongjmp() from a signal handler. bell_sleep() is no
 * cancellation point. A thread reads the word, checks its condition, then sleeps on the value that
 * it has read. */
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver/leave.h"
#include "driver/locks.h"

/* Sleeps while the word equals `value`, until `until` (CLOCK_MONOTONIC); may return earlier. */
static inline void bell_sleep(_Atomic uint32_t *bell, uint32_t value, const struct timespec *until)
{
    LOCK_CHECK_WAIT("bell_sleep");
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Sleeps for about `us` microseconds. No cancellation point, unlike nanosleep(). */
static inline void bell_nap(uint64_t us)
{
    const struct timespec time = { (time_t)(us / 1000000), (long)(us % 1000000 * 1000) };
    int error = errno;
    LOCK_CHECK_WAIT("bell_nap");
    syscall(SYS_nanosleep, &time, NULL);
    errno = error;
}

/* As bell_sleep(), for waits without a short bound of threads that hold nothing: cancellation acts
 * here at the latest after BELL_SLICE_US. */
#define BELL_SLICE_US 250000
static inline void bell_wait(_Atomic uint32_t *bell, uint32_t value, const struct timespec *until)
{
    struct timespec slice;
    clock_gettime(CLOCK_MONOTONIC, &slice);
    slice.tv_nsec += BELL_SLICE_US * 1000L;
    if (slice.tv_nsec >= 1000000000L) {
        slice.tv_sec++;
        slice.tv_nsec -= 1000000000L;
    }
    bool last = until != NULL && (until->tv_sec < slice.tv_sec
        || (until->tv_sec == slice.tv_sec && until->tv_nsec < slice.tv_nsec));
    bell_sleep(bell, value, last ? until : &slice);
    if (!last && atomic_load(bell) == value)
        leave_if_cancelled();
}

/* Changes the word and wakes all its sleeping threads. */
static inline void bell_ring(_Atomic uint32_t *bell)
{
    atomic_fetch_add(bell, 1);
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
