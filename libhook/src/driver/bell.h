/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A word to sleep on until somebody changes it (futex(2)).
 *
 * What a thread of the program waits on for long. Unlike a condition variable
 * it knows nothing of who sleeps, so whoever is cancelled there, or jumps away
 * from a signal handler, leaves nothing behind. Sleeping is no cancellation
 * point. The sleeper reads the word, then looks whether there is anything to
 * wait for, then sleeps on what it has read.
 */
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when the word is another, or for no reason; at `until` (monotonic) at the latest. */
static inline void bell_sleep(_Atomic uint32_t *bell, uint32_t value, const struct timespec *until)
{
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static inline void bell_ring(_Atomic uint32_t *bell)
{
    atomic_fetch_add(bell, 1);
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
