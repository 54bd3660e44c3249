/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/tier.h"

#define TIER(name) &tier_##name,
const struct tier *const tiers[] = {
#include "tier/tiers.def"
    NULL
};
