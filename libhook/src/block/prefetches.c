/* SPDX-License-Identifier: Apache-2.0 */
#include "block/prefetches.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_OF_HOST ((CUdeviceptr)4096)

static CUdeviceptr first_page(CUdeviceptr address)
{
    return address / PAGE_OF_HOST * PAGE_OF_HOST;
}

static CUdeviceptr behind_last_page(CUdeviceptr address, size_t size)
{
    return first_page(address + size + PAGE_OF_HOST - 1);
}

/* The number of ranges that end at or before `address`. */
static size_t runs_before(const struct prefetches *prefetches, CUdeviceptr address)
{
    size_t low = 0, high = prefetches->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (prefetches->runs[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Makes space for two more ranges: one range may be split in two by another. */
static bool grow(struct prefetches *prefetches)
{
    if (prefetches->count + 2 <= prefetches->room)
        return true;
    size_t room = prefetches->room == 0 ? 4 : prefetches->room * 2;
    struct prefetch *larger = realloc(prefetches->runs, room * sizeof *larger);
    if (larger == NULL)
        return false;
    prefetches->runs = larger;
    prefetches->room = room;
    return true;
}

static void insert(struct prefetches *prefetches, size_t at, struct prefetch run)
{
    memmove(&prefetches->runs[at + 1], &prefetches->runs[at],
            (prefetches->count - at) * sizeof run);
    prefetches->runs[at] = run;
    prefetches->count++;
}

static void erase(struct prefetches *prefetches, size_t at)
{
    prefetches->count--;
    memmove(&prefetches->runs[at], &prefetches->runs[at + 1],
            (prefetches->count - at) * sizeof prefetches->runs[0]);
}

/* Forgets all prefetches in [begin, end). */
static void cut_out(struct prefetches *prefetches, CUdeviceptr begin, CUdeviceptr end)
{
    size_t at = runs_before(prefetches, begin);
    if (at < prefetches->count && prefetches->runs[at].begin < begin) {
        struct prefetch behind = prefetches->runs[at];
        prefetches->runs[at++].end = begin;
        if (behind.end > end) {
            behind.begin = end;
            insert(prefetches, at, behind);
            return;
        }
    }
    while (at < prefetches->count && prefetches->runs[at].end <= end)
        erase(prefetches, at);
    if (at < prefetches->count && prefetches->runs[at].begin < end)
        prefetches->runs[at].begin = end;
}

static bool same(CUmemLocation one, CUmemLocation other)
{
    return one.type == other.type && one.id == other.id;
}

void prefetches_note(struct prefetches *prefetches, CUdeviceptr address, size_t size,
                     CUmemLocation place)
{
    struct prefetch run = { first_page(address), behind_last_page(address, size), place };
    if (!grow(prefetches)) {
        prefetches->count = 0;
        return;
    }
    cut_out(prefetches, run.begin, run.end);
    size_t at = runs_before(prefetches, run.begin);
    if (at > 0 && prefetches->runs[at - 1].end == run.begin
        && same(prefetches->runs[at - 1].place, place)) {
        run.begin = prefetches->runs[--at].begin;
        erase(prefetches, at);
    }
    if (at < prefetches->count && prefetches->runs[at].begin == run.end
        && same(prefetches->runs[at].place, place)) {
        run.end = prefetches->runs[at].end;
        erase(prefetches, at);
    }
    insert(prefetches, at, run);
}

CUmemLocation prefetches_last(const struct prefetches *prefetches, CUdeviceptr address,
                              size_t size)
{
    size_t at = runs_before(prefetches, first_page(address));
    if (at < prefetches->count && prefetches->runs[at].begin <= first_page(address)
        && prefetches->runs[at].end >= behind_last_page(address, size))
        return prefetches->runs[at].place;
    return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_INVALID };
}

void prefetches_forget(struct prefetches *prefetches)
{
    free(prefetches->runs);
    *prefetches = (struct prefetches){ NULL, 0, 0 };
}
