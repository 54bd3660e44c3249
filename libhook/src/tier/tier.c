/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/tier.h"

#include "gate/client.h"

#define TIER(name) NUMBER_OF_##name,
enum {
#include "tier/tiers.def"
    TIERS,
};
#undef TIER

/* By client index. */
static struct {
    uint64_t blocks;                 /* bytes of blocks that are not managed */
    struct tier_use tiers[TIERS];
} uses[CLIENTS_MAX];

struct tier_use *tier_use(const struct client *client, const struct tier *tier)
{
    unsigned index = 0;
    while (tiers[index] != tier)
        index++;
    return &uses[client->index].tiers[index];
}

const struct tier *tier_lent(void)
{
    EACH_TIER(tier)
        if (tier->lend != NULL)
            return tier;
    return NULL;
}

const struct tier *tier_storing(void)
{
    EACH_TIER(tier)
        if (tier->store != NULL)
            return tier;
    return NULL;
}

bool tier_take(struct client *client, const struct tier *tier, size_t size, uint64_t allowance,
               bool patient, struct place *place)
{
    struct place taken = *place;
    if (!tier->take(client, size, allowance, patient, &taken))
        return false;
    taken.tier = tier;
    *place = taken;
    tier_use(client, tier)->bytes += size;
    if (tier->cost == COSTS_PLACES)
        client->memory.host += size;
    EACH_TIER(other)
        if (other->placed != NULL)
            other->placed(client, size);
    return true;
}

void tier_keep(struct client *client, const struct tier *tier, struct tier_write *write,
               struct place *place)
{
    tier->store->keep(write, place);
    place->tier = tier;
    tier_use(client, tier)->bytes += write->size;
}

void tier_give(struct client *client, size_t size, struct place *place)
{
    const struct tier *tier = place->tier;
    if (tier == NULL)
        return;
    tier->give(client, size, place);
    place->tier = NULL;
    tier_use(client, tier)->bytes -= size;
    if (tier->cost != COSTS_PLACES)
        return;
    uint64_t uncounted = tier->lend == NULL ? 0
        : size < client->uncounted ? size : client->uncounted;
    client->uncounted -= uncounted;
    client->memory.host -= size - uncounted;
}

void tiers_attach(struct client *client)
{
    EACH_TIER(tier)
        if (tier->attach != NULL)
            tier->attach(client);
}

void tiers_order(struct client *client, const struct nvshare_order *order)
{
    EACH_TIER(tier)
        if (tier->order != NULL)
            tier->order(client, order);
}

void tiers_expect(struct client *client, uint64_t bytes)
{
    EACH_TIER(tier)
        if (tier->expect != NULL)
            tier->expect(client, bytes);
}

void tiers_trim(struct client *client, uint64_t allowance)
{
    EACH_TIER(tier)
        if (tier->trim != NULL)
            tier->trim(client, allowance);
}

bool tiers_have_spare(const struct client *client)
{
    EACH_TIER(tier)
        if (tier->has_spare != NULL && tier->has_spare(client))
            return true;
    return false;
}

void tiers_loaded(struct client *client)
{
    EACH_TIER(tier)
        if (tier->loaded != NULL)
            tier->loaded(client);
}

void tiers_leave_context(struct client *client, bool drained)
{
    EACH_TIER(tier)
        if (tier->leave_context != NULL)
            tier->leave_context(client, drained);
}

bool tiers_make_room(struct client *client, size_t size, uint64_t allowance)
{
    if (size > allowance)
        return false;
    tiers_trim(client, allowance - size);
    return client->memory.host <= allowance - size;
}

void tiers_count_blocks(struct client *client, uint64_t bytes, bool more)
{
    uses[client->index].blocks += more ? bytes : -bytes;
}

uint64_t tiers_useful(const struct client *client)
{
    uint64_t useful = uses[client->index].blocks;
    EACH_TIER(tier) {
        uint64_t bytes = tier_use(client, tier)->bytes;
        if (tier->cost != COSTS_MEMORY)
            useful += tier->cost == COSTS_PLACES ? bytes : -bytes;
    }
    return useful;
}

bool tiers_hold_driver_memory(const struct client *client)
{
    EACH_TIER(tier)
        if (tier->of_driver && tier_use(client, tier)->bytes > 0)
            return true;
    return false;
}
