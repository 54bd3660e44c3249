/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/ranges.h"

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
        /* Two ranges overlap: the driver freed the older in a call that the library did not see. */
        for (index = 0; ranges->sorted[index] != range; index++)
            ;
    ranges->count--;
    memmove(&ranges->sorted[index], &ranges->sorted[index + 1],
            (ranges->count - index) * sizeof *ranges->sorted);
}

bool ranges_take(struct ranges *space, size_t size, CUdeviceptr end, CUdeviceptr *address)
{
    size_t index = 0;
    while (index < space->count && space->sorted[index]->size < size)
        index++;
    if (index == space->count || space->sorted[index]->address + size > end)
        return false;
    struct range *range = space->sorted[index];
    *address = range->address;
    if (range->size > size) {
        range->address += size;
        range->size -= size;
    } else {
        ranges_remove(space, range);
        free(range);
    }
    return true;
}

bool ranges_give(struct ranges *space, CUdeviceptr address, size_t size, CUdeviceptr low,
                 CUdeviceptr high)
{
    CUdeviceptr end = address + size;
    struct range *range = NULL, *neighbour;
    /* A neighbour contains the byte before or the byte behind the given range. */
    while ((neighbour = ranges_between(space, address - (address > low), end + (end < high)))
           != NULL) {
        address = neighbour->address < address ? neighbour->address : address;
        end = range_end(neighbour) > end ? range_end(neighbour) : end;
        ranges_remove(space, neighbour);
        free(range);
        range = neighbour;
    }
    if (range == NULL)
        range = malloc(sizeof *range);
    if (range == NULL || !ranges_reserve(space)) {
        free(range);
        return false;
    }
    *range = (struct range){ address, end - address };
    ranges_insert(space, range);
    return true;
}

void ranges_clear(struct ranges *space)
{
    for (size_t i = 0; i < space->count; i++)
        free(space->sorted[i]);
    free(space->sorted);
}
