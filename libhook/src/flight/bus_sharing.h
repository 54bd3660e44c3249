/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own copies between host and card, as far as they load the bus.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUS_COPY_LEAST ((uint64_t)1 << 20) /* bytes; smaller copies load no bus */

enum bus_way { BUS_NONE = -1, BUS_IN, BUS_OUT, BUS_WAYS };

struct client;

/* A call of the program that copies. */
struct bus_copy {
    struct client *client;           /* NULL: it does not count */
    enum bus_way way;
    unsigned period;
};

/* Clients (by index) that are to tell the daemon when their programs copy. */
extern _Atomic uint32_t bus_sharing_watched;

static inline bool bus_sharing_is_watched(void)
{
    return atomic_load_explicit(&bus_sharing_watched, memory_order_relaxed) != 0;
}

/* Inside the gate, around the driver's function. `waits`: it returns when the
 * bytes have been copied. Any thread, no lock held. */
void bus_copy_begins(struct bus_copy *copy, enum bus_way way, uint64_t bytes, bool waits);
void bus_copy_ends(const struct bus_copy *copy);

/* The same around the driver's function in a wrapper. `bytes` and `way` are worked out
 * only while somebody wants to know. */
#define BUS_COPY_BEGINS(copy, way, bytes, waits)                                          \
    struct bus_copy copy = { .client = NULL };                                            \
    uint64_t copy##_bytes = bus_sharing_is_watched() ? (bytes) : 0;                          \
    if (__builtin_expect(copy##_bytes >= BUS_COPY_LEAST, 0))                              \
        bus_copy_begins(&copy, (way), copy##_bytes, (waits))
#define BUS_COPY_ENDS(copy)                                                               \
    if (__builtin_expect((copy).client != NULL, 0))                                      \
        bus_copy_ends(&(copy))

/* The bytes of many copies at once. Nobody has looked yet whether that many are there:
 * what loads the bus is seen by the first of them. */
#define BUS_SUMMED_MOST 256
static inline uint64_t bus_sharing_sum(const size_t *sizes, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; sizes != NULL && i < count && i < BUS_SUMMED_MOST; i++)
        bytes += sizes[i];
    return bytes;
}

/* Whether the client is to tell from now on. What was told before is forgotten. */
void bus_sharing_watch(const struct client *client, bool watched);
/* Now and then on the service thread: reports what has changed. False: nobody asks. No lock held but
 * service_lock. */
bool bus_sharing_step(struct client *client);
/* Blocks of ours crossed the bus, one after the other: so fast can it be. */
void bus_sharing_measured(enum bus_way way, uint64_t bytes, uint64_t microseconds);
