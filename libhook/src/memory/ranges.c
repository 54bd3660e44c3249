/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/ranges.h"

#include <stdlib.h>
#include <string.h>

size_t ranges_search(const struct ranges *ranges, CUdeviceptr address)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->sorted[middle]->address + ranges->sorted[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address)
{
    size_t index = ranges_search(ranges, address);
    return index < ranges->count && ranges->sorted[index]->address <= address
        ? ranges->sorted[index] : NULL;
}

bool ranges_reserve(struct ranges *ranges)
{
    if (ranges->count + ranges->reserved == ranges->room) {
        size_t room = ranges->room == 0 ? 64 : ranges->room * 2;
        struct range **larger = realloc(ranges->sorted, room * sizeof *larger);
        if (larger == NULL)
            return false;
        ranges->sorted = larger;
        ranges->room = room;
    }
    ranges->reserved++;
    return true;
}

void ranges_insert(struct ranges *ranges, struct range *range)
{
    size_t index = ranges_search(ranges, range->address);
    memmove(&ranges->sorted[index + 1], &ranges->sorted[index],
            (ranges->count - index) * sizeof *ranges->sorted);
    ranges->sorted[index] = range;
    ranges->count++;
    ranges->reserved--;
}

void ranges_remove(struct ranges *ranges, const struct range *range)
{
    size_t index = ranges_search(ranges, range->address);
    if (index == ranges->count || ranges->sorted[index] != range)
        /* Another range overlaps `range`: the driver has freed one of the two in a call that the
         * library did not see. */
        for (index = 0; ranges->sorted[index] != range; index++)
            ;
    ranges->count--;
    memmove(&ranges->sorted[index], &ranges->sorted[index + 1],
            (ranges->count - index) * sizeof *ranges->sorted);
}
