/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own copies between host and card, as far as they load the bus.
 */
#ifndef NVSHARE_TRAFFIC_H
#define NVSHARE_TRAFFIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRAFFIC_LEAST ((uint64_t)1 << 20)   /* bytes; smaller copies load no bus */

enum traffic_way { TRAFFIC_NONE = -1, TRAFFIC_IN, TRAFFIC_OUT, TRAFFIC_WAYS };

struct client;

/* A call of the program that copies. */
struct traffic {
    struct client *client;           /* NULL: it does not count */
    enum traffic_way way;
    unsigned period;
};

/* Clients (by index) that are to tell the daemon when their programs copy. */
extern _Atomic uint32_t traffic_watched;

static inline bool traffic_is_watched(void)
{
    return atomic_load_explicit(&traffic_watched, memory_order_relaxed) != 0;
}

/* Inside the gate, around the driver's function. `waits`: it returns when the
 * bytes have been copied. Any thread, no lock held. */
void traffic_begins(struct traffic *copy, enum traffic_way way, uint64_t bytes, bool waits);
void traffic_ends(const struct traffic *copy);

/* The same around the driver's function in a wrapper. `bytes` and `way` are worked out
 * only while somebody wants to know. */
#define TRAFFIC_BEGINS(copy, way, bytes, waits)                                          \
    struct traffic copy = { .client = NULL };                                            \
    uint64_t copy##_bytes = traffic_is_watched() ? (bytes) : 0;                          \
    if (__builtin_expect(copy##_bytes >= TRAFFIC_LEAST, 0))                              \
        traffic_begins(&copy, (way), copy##_bytes, (waits))
#define TRAFFIC_ENDS(copy)                                                               \
    if (__builtin_expect((copy).client != NULL, 0))                                      \
        traffic_ends(&(copy))

/* The bytes of many copies at once. Nobody has looked yet whether that many are there:
 * what loads the bus is seen by the first of them. */
#define TRAFFIC_SUMMED_MOST 256
static inline uint64_t traffic_sum(const size_t *sizes, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; sizes != NULL && i < count && i < TRAFFIC_SUMMED_MOST; i++)
        bytes += sizes[i];
    return bytes;
}

/* Whether the client is to tell from now on. What was told before is forgotten. */
void traffic_watch(const struct client *client, bool watched);
/* Now and then on the service thread: tells what has changed. No lock held but service_lock. */
void traffic_step(struct client *client);
/* Blocks of ours crossed the bus, one after the other: so fast can it be. */
void traffic_measured(enum traffic_way way, uint64_t bytes, uint64_t microseconds);

#endif
