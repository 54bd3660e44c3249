/* SPDX-License-Identifier: Apache-2.0 */
#include "client/reclaim.h"

#include <stddef.h>

static reclaimer *const nobody = NULL;
static reclaimer *const *reclaimers = &nobody;

void reclaim_from(reclaimer *const *all)
{
    reclaimers = all;
}

bool reclaim(struct client *client, uint64_t bytes, bool wait)
{
    for (reclaimer *const *one = reclaimers; *one != NULL; one++)
        if ((*one)(client, bytes, wait))
            return true;
    return false;
}
