/* SPDX-License-Identifier: Apache-2.0 */
/* Doing nothing for a second, again and again, as a notebook may. */
#pragma once

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static atomic_bool resting;

static inline double seconds_since(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun->tv_sec) + 1e-9 * (double)(now.tv_nsec - begun->tv_nsec);
}

/* `passed` seconds after the start: in the last second of every `period`. 0: never. */
static inline void rest_as_due(double passed, double period)
{
    double within = period > 0 ? passed - period * (double)(long)(passed / period) : 0;
    atomic_store(&resting, period > 0 && within >= period - 1);
}

/* True: it has rested for a moment, and may go on to. */
static inline bool rested(void)
{
    bool rests = atomic_load(&resting);
    if (rests)
        usleep(5000);
    return rests;
}
