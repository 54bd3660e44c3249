/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how the program's own copies between host and card load the bus. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUS_COPY_LEAST ((uint64_t)1 << 20) /* bytes; smaller copies are ignored */

enum bus_direction { BUS_NONE = -1, BUS_IN, BUS_OUT, BUS_DIRECTIONS };

struct client;
struct flow;

/* Bit client->index is set while that client must report its copies. */
extern _Atomic uint32_t bus_sharing_watched;

static inline bool bus_sharing_is_watched(void)
{
    return atomic_load_explicit(&bus_sharing_watched, memory_order_relaxed) != 0;
}

/* bus_copy_begins() and bus_copy_ends() enclose the driver's call, inside the gate. `waits`: the
 * call returns when the bytes have been copied. NULL: the copy does not count. For any thread
 * that holds no lock. */
struct flow *bus_copy_begins(enum bus_direction direction, uint64_t bytes, bool waits);
void bus_copy_ends(struct flow *flow);

/* For wrappers. `bytes` and `direction` are evaluated only while the daemon requests COPIES. */
#define BUS_COPY_BEGINS(copy, direction, bytes, waits)                             \
    struct flow *copy = NULL;                                                      \
    uint64_t copy##_bytes = bus_sharing_is_watched() ? (bytes) : 0;                \
    if (__builtin_expect(copy##_bytes >= BUS_COPY_LEAST, 0))                       \
        copy = bus_copy_begins((direction), copy##_bytes, (waits))
#define BUS_COPY_ENDS(copy)                                                        \
    if (__builtin_expect((copy) != NULL, 0))                                       \
        bus_copy_ends(copy)

/* Only this many copies of a batch are summed: the driver has not validated `count` yet. */
#define BUS_SUMMED_MOST 256
static inline uint64_t bus_sharing_sum(const size_t *sizes, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; sizes != NULL && i < count && i < BUS_SUMMED_MOST; i++)
        bytes += sizes[i];
    return bytes;
}

/* Turns reports on or off for the client, and forgets its earlier copies and reports. */
void bus_sharing_watch(const struct client *client, bool watched);
/* Reports changes of the load. Only service_lock may be held. Returns the us to the next call. */
int64_t bus_sharing_step(struct client *client);
/* Records the speed at which the library's own blocks crossed the bus. */
void bus_sharing_measured(enum bus_direction direction, uint64_t bytes, uint64_t microseconds);
