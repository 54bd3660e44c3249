/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "gate/client.h"
#include "fuzz.h"

#define STEPS 48

/* A value related to the hook's current state, or an arbitrary one. */
static uint64_t figure(struct input *input)
{
    pthread_mutex_lock(&memory_lock);
    const struct nvshare_memory memory = clients[0]->memory;
    uint64_t last_commit = clients[0]->last_commit;
    pthread_mutex_unlock(&memory_lock);
    uint64_t filled = memory.resident + memory.pinned;
    uint64_t need = memory.allocated + memory.pinned + memory.pending;
    const uint64_t figures[] = {
        0, 1, filled, filled / 2, filled - 1, need, need - 2 * MIB, need + 2 * MIB,
        memory.room, memory.host, 2 * MIB, CARD, 2 * CARD, last_commit, last_commit + 1, UINT64_MAX,
    };
    uint8_t which = (uint8_t)take(input, 1);
    if (which >= 0xf0)
        return take(input, 8);
    return figures[which % 16];
}

static void order(struct input *input)
{
    static const uint8_t types[] = {
        NVSHARE_RUN, NVSHARE_STOP, NVSHARE_EVICT, NVSHARE_LOAD, NVSHARE_LIMITS, NVSHARE_INTRODUCE,
        NVSHARE_STOP, NVSHARE_YIELD, NVSHARE_EVICT, NVSHARE_QUEUED, NVSHARE_REASON,
        NVSHARE_PREALLOCATE, NVSHARE_LEAVE,
    };
    struct nvshare_order order = {
        .type = types[take(input, 1) % sizeof types],
        .number = figure(input), .room = figure(input),
        .host = figure(input),
    };
    uint32_t flags = (uint32_t)take(input, 1);   /* covers all flags of orders, and the version */
    order.version = flags % 16 == 0 ? NVSHARE_PROTOCOL_OLDEST : NVSHARE_PROTOCOL_VERSION;
    order.flags = flags | (order.type == NVSHARE_LIMITS && flags % 2 != 0 ? NVSHARE_GRANTED : 0);
    if (order.type == NVSHARE_LIMITS)
        order.limits = (struct nvshare_limits){
            .commit = figure(input), .most = figure(input), .total = figure(input),
            .host_slab = figure(input),
        };
    else
        order.idle_window = order.writeback = figure(input);
    peer_send_order(&order);
}

/* A packet of an invalid size, version or type. */
static void garbage(struct input *input)
{
    uint8_t packet[2 * NVSHARE_PACKET_LONGEST] = { 0 };
    size_t size = NVSHARE_PACKET_OLDEST;
    uint8_t kind = (uint8_t)take(input, 1);
    if (kind % 2 == 0)
        size = 1 + take(input, 1) % sizeof packet;
    for (size_t i = 0; i < size; i++)
        packet[i] = (uint8_t)take(input, 1);
    peer_send(packet, size);
}

static void step(struct input *input)
{
    uint8_t kind = (uint8_t)take(input, 1);
    if (kind < 100) {
        order(input);
    } else if (kind < 240) {
        uint8_t what = (uint8_t)take(input, 1);
        program_call(what, (uint8_t)take(input, 1));
    } else if (kind < 250) {
        peer_introduce(false);
        state_check();
    } else if (kind < 254) {
        garbage(input);
    } else {
        peer_hang_up();
    }
    peer_read(false, 0);
}

static void begin(void)
{
    peer_listen();
    program_start();
    peer_accept();
    peer_read(true, PATIENCE_MS);
    program_finish();
    /* The first eviction and load allocate what the service thread itself needs. */
    program_call(0, 4);
    peer_put_right();
    program_finish();
    peer_evict_all();
    peer_put_right();
    program_call(7, 1);
    program_finish();
    peer_introduce(true);
    state_begin();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool begun;
    if (!begun)
        begin();
    begun = true;
    struct input input = { data, size };
    for (int steps = 0; steps < STEPS && input.size > 0; steps++)
        step(&input);
    peer_put_right();
    program_finish();
    program_call(7, 1);              /* call 7 compares and frees all memory */
    program_finish();
    peer_introduce(true);
    state_check();
    return 0;
}
