/* SPDX-License-Identifier: Apache-2.0 */
/* Fills of every width and shape, with and without a stream; advice for managed memory. */
#include "actions.h"

/* A random number of elements that fit between the place and the end of its block. */
static size_t some(struct place place, size_t element)
{
    size_t most = place.room / element;
    return one_in(4) ? most : roll(most + 1);
}

void fill(void)
{
    struct block *block = block_of_device();
    unsigned value = (unsigned)roll(1u << 31);
    if (block == NULL || block->size < 8)
        return;
    struct place place = place_in(block, 4);
    bool waits;
    struct lane lane = lane_waiting(&waits);
    size_t width = (size_t)1 << roll(3), count = some(place, width);
    block_enter(block, lane.stream);
#define FILL(sync, async, type)                                                             \
    WAIT_OR_NOT(waits, sync, async, lane,                                                   \
                (place.address, (type)value, count), "%s, %u, %zu", place.text,             \
                (unsigned)(type)value, count)
    switch (width) {
    WHEN(1, FILL(cuMemsetD8_v2, cuMemsetD8Async, unsigned char))
    WHEN(2, FILL(cuMemsetD16_v2, cuMemsetD16Async, unsigned short))
    WHEN(4, FILL(cuMemsetD32_v2, cuMemsetD32Async, unsigned))
    }
#undef FILL
}

void fill_shape(void)
{
    struct block *block = block_of_device();
    unsigned value = (unsigned)roll(1u << 31);
    if (block == NULL || block->size < 64)
        return;
    size_t width = (size_t)1 << roll(3), columns = 1 + roll(12);
    size_t pitch = (columns * width + roll(3) * 4 + 3) / 4 * 4;
    struct place place = place_in(block, 4);
    size_t rows = place.room / pitch;
    bool waits;
    struct lane lane = lane_waiting(&waits);
    if (rows == 0)
        return;
    rows = 1 + roll(rows < 50 ? rows : 50);
    block_enter(block, lane.stream);
#define FILL(sync, async, type)                                                             \
    WAIT_OR_NOT(waits, sync, async, lane,                                                   \
                (place.address, pitch, (type)value, columns, rows),                         \
                "%s, %zu, %u, %zu, %zu", place.text, pitch, (unsigned)(type)value, columns, rows)
    switch (width) {
    WHEN(1, FILL(cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char))
    WHEN(2, FILL(cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short))
    WHEN(4, FILL(cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned))
    }
#undef FILL
}

/* Queries the advice for the whole block and its last prefetch location. */
static void ask_range(struct block *block)
{
    CUmem_range_attribute attributes[] = {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
    };
    int values[] = { 77, 77, 77 };
    DO(cuMemRangeGetAttribute, (&values[1], sizeof values[1], attributes[1], block->address,
       block->size), "b%u", block->number);
    tell(" last prefetched=%d", values[1]);
    DO(cuMemRangeGetAttributes, ((void *[]){ &values[0], &values[1], &values[2] },
       (size_t[]){ 4, 4, 4 }, attributes, 3, block->address, block->size), "b%u", block->number);
    tell(" mostly read=%d, last prefetched=%d, preferred=%d", values[0], values[1], values[2]);
}

void managed_advised(void)
{
    struct block *block = block_of_kind(MANAGED);
    struct lane lane = lane_own();
    CUmemLocation place = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
    CUmem_advise advice = (CUmem_advise)(1 + roll(6));
    if (block == NULL || lane.handle == NULL)
        return;
    /* The advice is random, so the location, host or card, is random, too. */
    bool home = advice % 2 == 0;
    size_t size = advice < 5 ? block->size : (block->size + 1) / 2;
    if (home)
        place = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
    block_enter(block, lane.stream);
    switch (roll(7)) {
    WHEN(0, IN_LANE(cuMemPrefetchAsync, lane, (block->address, size, home ? CU_DEVICE_CPU : device,
                                               lane.handle), "b%u, %zu, %d, %s", block->number,
                    size, home, lane.text))
    WHEN(1, IN_LANE(cuMemPrefetchAsync_v2, lane, (block->address, size, place, 0, lane.handle),
                    "b%u, %zu, %d, %s", block->number, size, home, lane.text))
    WHEN(2, DO(cuMemAdvise, (block->address, block->size, advice, device), "b%u, %d", block->number,
               (int)advice))
    WHEN(3, DO(cuMemAdvise_v2, (block->address, block->size, advice, place), "b%u, %d",
               block->number, (int)advice))
    WHEN(4, IN_LANE(cuStreamAttachMemAsync, lane, (lane.handle, block->address, 0,
                                                   CU_MEM_ATTACH_GLOBAL), "%s, b%u", lane.text,
                    block->number))
    WHEN(5, IN_LANE(cuMemPrefetchBatchAsync, lane, (&block->address, &block->size, 1, &place,
                                                    (size_t[]){ 0 }, 1, 0, lane.handle),
                    "b%u, %d, %s", block->number, home, lane.text))
    default:
        /* The processor reads the block and writes to the block. */
        wait_for_all();
        tell(" processor reads b%u", block->number);
        tell_bytes((void *)(uintptr_t)block->address, block->size);
        *(unsigned char *)(uintptr_t)block->address ^= 1;
        ask_range(block);
    }
}
