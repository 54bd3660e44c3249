/* SPDX-License-Identifier: Apache-2.0 */
/* A futex word on which a thread sleeps until another thread changes the word. The sleeping thread
 * is recorded nowhere, so it may leave by siglongjmp() from a signal handler. Sleeping is no
 * cancellation point. A thread reads the word, checks its condition, then sleeps on the value that
 * it has read. */
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while the word equals `value`, until `until` (CLOCK_MONOTONIC); may return earlier. */
static inline void bell_sleep(_Atomic uint32_t *bell, uint32_t value, const struct timespec *until)
{
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Changes the word and wakes all its sleeping threads. */
static inline void bell_ring(_Atomic uint32_t *bell)
{
    atomic_fetch_add(bell, 1);
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
