/* SPDX-License-Identifier: Apache-2.0 */
/* A program that waits looks as if it hung. With NVSHARE_VERBOSE=1 a message says after two seconds
 * that the program waits and why, and a second message that it goes on. The daemon knows the reason
 * of a wait at the gate, which the library requests once (NVSHARE_WAITING). */
#include "service/waiting.h"

#include "driver/log.h"
#include "gate/client.h"
#include "gate/gate.h"

#define PRINT_AFTER_US 2000000

/* Indexed by client->index; used by the client's service thread only. */
static struct {
    uint64_t since;                  /* us: begin of the wait; 0: no thread waits */
    bool requested, printed;         /* the reason of this wait was requested, was printed */
    uint64_t answered;               /* client->answered_commit at the last step */
} waits[CLIENTS_MAX];

/* Whether a COMMIT that was open at the last step still is. */
static bool waits_for_commit(const struct client *client)
{
    uint64_t before = waits[client->index].answered;
    waits[client->index].answered = client->answered_commit;
    return client->socket >= 0 && client->answered_commit == before
        && client->answered_commit < client->last_commit;
}

int64_t waiting_step(struct client *client)
{
    unsigned i = client->index;
    if (!client->prints_waits)
        return NEVER;
    pthread_mutex_lock(&memory_lock);
    bool for_memory = waits_for_commit(client);
    bool at_gate = (!client->running || client->starved) && gate_has_waiters();
    pthread_mutex_unlock(&memory_lock);
    uint64_t now = now_microseconds();
    if (!for_memory && !at_gate) {
        if (waits[i].printed)
            complain("goes on, after %llu s of waiting for GPU %u",
                     (unsigned long long)(now - waits[i].since) / 1000000, i);
        waits[i].since = 0;
        waits[i].requested = waits[i].printed = false;
        return NEVER;
    }
    if (waits[i].since == 0)
        waits[i].since = now;
    uint64_t waited = now - waits[i].since;
    if (waited < PRINT_AFTER_US)
        return (int64_t)(PRINT_AFTER_US - waited);
    if (for_memory && !waits[i].printed) {
        complain("waits for GPU %u: nvshared has not yet granted the memory that it asked for", i);
        waits[i].printed = true;
    }
    if (!waits[i].requested && !for_memory) {
        LOCKED(memory_lock);
        waits[i].requested = client->socket >= 0;
        if (waits[i].requested)
            client_send(client, (struct nvshare_report){
                .type = NVSHARE_WAITING, .flags = client->running ? 0 : NVSHARE_WANTS });
    }
    waits[i].requested |= for_memory;
    return NEVER;
}

void waiting_for(const struct client *client, const struct nvshare_order *order)
{
    unsigned i = client->index;
    if (!waits[i].requested || waits[i].printed)
        return;
    waits[i].printed = true;
    const char *reason = order->waits_for == NVSHARE_WAITS_ROOM
        ? "programs that do not share it hold too much of its memory"
        : order->waits_for == NVSHARE_WAITS_SHARE ? "it has used its share of the time"
        : order->waits_for == NVSHARE_WAITS_RESUME
        ? "it is suspended; nvsharectl resume ends that" : "memory is being moved";
    if (order->waits_for == NVSHARE_WAITS_TURN)
        complain("waits for its turn on GPU %u: its place in the queue is %llu", i,
                 (unsigned long long)order->number);
    else if (order->waits_for == NVSHARE_WAITS_GANG)
        complain("waits for its turn on GPU %u and others at once", i);
    else
        complain("waits for GPU %u: %s", i, reason);
}
