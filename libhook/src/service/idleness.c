/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out that a program which has the card does not use it. While others wait, or
 * may come for its memory, it is looked at every few milliseconds: nothing submitted
 * since the last look, nobody at the gate, and all that had been submitted done, for as
 * long as the daemon's window says. A pause within a burst is shorter than that.
 *
 * Every pause that is seen is added up, long enough or not: nobody is billed for it.
 */
#include "service/idleness.h"

#include "client/client.h"
#include "client/gate.h"
#include "service/caches.h"

void idleness_forget(struct idleness *idle)
{
    if (idle->draining)
        drain_abandon(&idle->drain);
    *idle = (struct idleness){ .watching = false };
}

/* Nothing has been in flight since the look before this one. */
static void count(struct client *client, struct idleness *idle, uint64_t now)
{
    LOCKED(memory_lock);
    client->idled += now - idle->counted;
    idle->counted = now;
}

void idleness_look(struct client *client, struct idleness *idle)
{
    uint64_t passes = gate_passes(), now = now_microseconds();
    if (!idle->watching || idle->passes != passes || gate_has_waiters()) {
        idleness_forget(idle);
        idle->watching = true;
        idle->passes = passes;
        idle->since = now;
        return;
    }
    if (idle->reported) {
        count(client, idle, now);
        return;
    }
    if (!idle->draining) {
        drain_begin(&idle->drain);
        idle->draining = true;
        idle->counted = now;         /* it may have ended just now */
    }
    if (!drain_step(&idle->drain)) {
        /* The window counts from the end of the work. */
        idle->since = idle->counted = now;
        return;
    }
    count(client, idle, now);
    if (client->paced && now - idle->since >= client->idle_window / 2)
        caches_ask(client, CACHES_IDLE);
    if (now - idle->since < client->idle_window)
        return;
    idle->reported = true;
    LOCKED(memory_lock);
    client_send(client, (struct nvshare_report){ .type = NVSHARE_IDLE });
}
