/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the word of a program (client/telling.c) says that work is under way, this finds out when
 * that is over: nothing has been submitted for a moment, and all that had been is done. A shorter
 * pause is one within a burst, as between the kernels of one request. It looks often at first and
 * more rarely as the burst lasts, so those who wait lose a small part of its length. While a stream
 * is being captured nothing can be asked without breaking that (flight/drain.c), and work counts as
 * under way.
 */
#include "service/settling.h"

#include "client/client.h"
#include "client/gate.h"
#include "client/telling.h"

#define MOMENT_US 50
#define LOOK_LEAST_US 50
#define LOOK_MOST_US 500
#define LOOKS 32

static void forget(struct settling *settling)
{
    if (settling->draining)
        drain_abandon(&settling->drain);
    *settling = (struct settling){ .watching = false };
}

static void restart(struct settling *settling, uint64_t passes, uint64_t now)
{
    uint64_t began = settling->watching ? settling->began : now;
    forget(settling);
    *settling = (struct settling){
        .watching = true, .passes = passes, .began = began, .since = now,
    };
}

/* Nothing has passed since the last look. */
static bool is_over(struct client *client, struct settling *settling, uint64_t now)
{
    if (!settling->draining) {
        drain_begin(&settling->drain);
        settling->draining = true;
    }
    if (!drain_step(&settling->drain)) {
        settling->since = now;       /* the moment counts from the end of the work */
        return false;
    }
    if (!settling->armed) {
        if (now - settling->since < MOMENT_US || !telling_arm(client, settling->passes))
            return false;
        /* Who was inside when the first drain began may have submitted work after that. */
        settling->armed = true;
        drain_begin(&settling->drain);
        if (!drain_step(&settling->drain))
            return false;
    }
    return telling_clear(client);
}

uint64_t settling_look(struct client *client, struct settling *settling)
{
    if (!telling_busy(client)) {
        forget(settling);
        return 0;
    }
    uint64_t now = now_microseconds(), passes = gate_passes();
    if (!settling->watching || passes != settling->passes) {
        telling_goes_on(client);
        restart(settling, passes, now);
    } else if (is_over(client, settling, now)) {
        forget(settling);
        return 0;
    }
    uint64_t next = (now - settling->began) / LOOKS;
    return next < LOOK_LEAST_US ? LOOK_LEAST_US : next > LOOK_MOST_US ? LOOK_MOST_US : next;
}
