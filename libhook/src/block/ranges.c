/* SPDX-License-Identifier: Apache-2.0 */
#include "block/ranges.h"

#include <stdlib.h>
#include <string.h>

/* The index of the first range that ends after `address`. */
static size_t search(const struct ranges *ranges, CUdeviceptr address)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (range_end(ranges->sorted[middle]) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *ranges_between(const struct ranges *ranges, CUdeviceptr address, CUdeviceptr end)
{
    size_t index = search(ranges, address);
    return index < ranges->count && ranges->sorted[index]->address < end
        ? ranges->sorted[index] : NULL;
}

struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address)
{
    return ranges_between(ranges, address, address + 1);
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
    size_t index = search(ranges, range->address);
    memmove(&ranges->sorted[index + 1], &ranges->sorted[index],
            (ranges->count - index) * sizeof *ranges->sorted);
    ranges->sorted[index] = range;
    ranges->count++;
    ranges->reserved--;
}

void ranges_remove(struct ranges *ranges, const struct range *range)
{
    size_t index = search(ranges, range->address);
    if (index == ranges->count || ranges->sorted[index] != range)
        /* Another range overlaps: the driver has freed one of them in a call that was not seen. */
        for (index = 0; ranges->sorted[index] != range; index++)
            ;
    ranges->count--;
    memmove(&ranges->sorted[index], &ranges->sorted[index + 1],
            (ranges->count - index) * sizeof *ranges->sorted);
}
