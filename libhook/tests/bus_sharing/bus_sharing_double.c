/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated environment for bus_sharing.c: one client and a clock that the test sets; it counts
 * reports. */
#include "gate/client.h"
#include "flight/bus_sharing.h"
#include "flight/capture.h"

SEEN _Atomic uint64_t clock_us = 1000000;
SEEN bool capturing;
SEEN unsigned sent = 0, flags, woken; /* number of reports; flags of the last one; wake-ups */
static struct client one = { .index = 3 };

/* Bytes that another thread copies right after the next call of now_microseconds(). */
SEEN _Atomic uint64_t meanwhile;

uint64_t now_microseconds(void)
{
    uint64_t now = atomic_load(&clock_us), bytes = atomic_exchange(&meanwhile, 0);
    if (bytes != 0) {
        atomic_store(&clock_us, now + 1);
        bus_copy_begins(BUS_IN, bytes, true);
    }
    return now;
}

struct client *client_current(void) { return &one; }
bool capture_going_on(void) { return capturing; }
void client_wake(struct client *client) { __atomic_add_fetch(&woken, 1, __ATOMIC_RELAXED); }

void client_send(struct client *client, struct nvshare_report report)
{
    sent += report.type == NVSHARE_COPIES;
    flags = report.flags;
}

SEEN void watch(bool watched) { bus_sharing_watch(&one, watched); }
SEEN void look(void) { bus_sharing_step(&one); }
SEEN bool is_watched(void) { return bus_sharing_is_watched(); }

SEEN void measured(int way, uint64_t bytes, uint64_t microseconds)
{
    bus_sharing_measured((enum bus_direction)way, bytes, microseconds);
}

/* Copies in progress, by number. */
static struct flow *calls[8];

SEEN void begin(unsigned call, int way, uint64_t bytes, bool waits)
{
    calls[call] = bus_copy_begins((enum bus_direction)way, bytes, waits);
}

SEEN void end(unsigned call)
{
    if (calls[call] != NULL)
        bus_copy_ends(calls[call]);
}
