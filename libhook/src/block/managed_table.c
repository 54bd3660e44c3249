/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of managed memory by address, with room for those that have reserved a place. */
#include "block/managed_table.h"

#include <stdlib.h>
#include <string.h>

static struct managed **table;
static size_t table_count, table_reserved, table_room;

/* The place of the first that begins behind `address`. */
static size_t place_behind(CUdeviceptr address)
{
    size_t low = 0, high = table_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct managed *managed_find(CUdeviceptr address)
{
    size_t behind = place_behind(address);
    struct managed *managed = behind == 0 ? NULL : table[behind - 1];
    return managed != NULL && address - managed->base < managed->size ? managed : NULL;
}

bool managed_reserve(void)
{
    if (table_count + table_reserved == table_room) {
        size_t room = table_room == 0 ? 64 : table_room * 2;
        struct managed **larger = realloc(table, room * sizeof *table);
        if (larger == NULL)
            return false;
        table = larger;
        table_room = room;
    }
    table_reserved++;
    return true;
}

void managed_enter(struct managed *managed)
{
    size_t place = place_behind(managed->base);
    memmove(&table[place + 1], &table[place], (table_count - place) * sizeof *table);
    table[place] = managed;
    table_count++;
}

void managed_strike(struct managed *managed)
{
    size_t place = place_behind(managed->base) - 1;
    table_count--;
    memmove(&table[place], &table[place + 1], (table_count - place) * sizeof *table);
}

void managed_withdraw(struct managed *managed)
{
    managed_strike(managed);
    table_reserved++;
}

struct managed *managed_strike_of(CUcontext context)
{
    for (size_t i = table_count; i > 0; i--)
        if (table[i - 1]->context == context) {
            struct managed *managed = table[i - 1];
            managed_strike(managed);
            return managed;
        }
    return NULL;
}

void managed_unreserve(void)
{
    table_reserved--;
}
