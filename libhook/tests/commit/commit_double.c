/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for client.c: a clock, a closed socket, and a daemon that the test plays.
 * Threads that sleep continue when the test answers, as in the program.
 */
#include "gate/client.h"
#include "driver/bell.h"
#include "driver/log.h"
#include "driver/own_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct client one = { .socket = 1 };
static uint64_t clock_us = 1;

/* Replaces the function of libc for now_microseconds(). */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){ (time_t)(clock_us / 1000000), (long)(clock_us % 1000000 * 1000) };
    return 0;
}

int own_file_descriptor(int handle)
{
    (void)handle;
    return -1;
}

static char complaints[4096];

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t length = strlen(complaints);
    vsnprintf(complaints + length, sizeof complaints - length, format, arguments);
    strcat(complaints, "\n");
    va_end(arguments);
}

SEEN const char *complained(void) { return complaints; }

/* Requests to pin `bytes`, in a thread of the test. After a grant the thread must call take(). */
SEEN bool ask_to_pin(uint64_t bytes)
{
    LOCKED(memory_lock);
    return client_commit_pinned(&one, bytes, bytes, 0);
}

SEEN void take(uint64_t bytes)
{
    LOCKED(memory_lock);
    one.memory.pinned += bytes;
    client_settle();
}

SEEN void release(uint64_t bytes)
{
    LOCKED(memory_lock);
    one.memory.pinned -= bytes;
}

static void limits(const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    one.limits = order->limits;
    client_commit_answered(&one, order->number, order);
    bell_ring(&one.commit_bell);
}

/* An answer in version 2, where the commit alone says whether the request is granted. */
SEEN void answer(uint64_t number, uint64_t commit)
{
    limits(&(struct nvshare_order){ .version = NVSHARE_PROTOCOL_OLDEST, .number = number,
                                    .limits.commit = commit });
}

SEEN void answer_granted(uint64_t number, uint64_t commit, bool granted)
{
    limits(&(struct nvshare_order){ .version = NVSHARE_PROTOCOL_VERSION, .number = number,
                                    .flags = granted ? NVSHARE_GRANTED : 0,
                                    .limits.commit = commit });
}

SEEN void reason(const char *text)
{
    LOCKED(memory_lock);
    client_append_refusal(&one, text, strlen(text));
}

/* Advances the clock. Returns the ms until client_expire_grants() is due; -1: never. */
SEEN int passes(uint64_t microseconds)
{
    LOCKED(memory_lock);
    clock_us += microseconds;
    int64_t left = client_expire_grants(&one);
    return left == NEVER ? -1 : (int)((left + 999) / 1000);
}

SEEN uint64_t asked_so_far(void)
{
    LOCKED(memory_lock);
    return one.last_commit;
}

SEEN uint64_t to_pin(void)
{
    LOCKED(memory_lock);
    return client_to_pin(&one);
}
