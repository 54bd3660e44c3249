/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block blocks[BLOCKS];
CUcontext context, primary;
CUdevice device;
unsigned char scratch[SCRATCH];
static unsigned made;

void blocks_begin(void)
{
    made = 0;
}

static struct block *choose(bool device_only)
{
    struct block *found[BLOCKS];
    size_t count = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].kind != NOTHING && !(device_only && block_on_host(&blocks[i])))
            found[count++] = &blocks[i];
    return count == 0 ? NULL : found[roll(count)];
}

struct block *block_any(void)
{
    return choose(false);
}

struct block *block_of_device(void)
{
    return choose(true);
}

struct block *block_of_kind(enum kind kind)
{
    struct block *block;
    for (int tries = 0; tries < BLOCKS; tries++)
        if ((block = block_any()) != NULL && block->kind == kind)
            return block;
    return NULL;
}

struct block *block_new(enum kind kind, size_t size, CUdeviceptr address)
{
    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].kind == NOTHING) {
            blocks[i] = (struct block){ .kind = kind, .number = ++made, .size = size,
                                        .context = context, .address = address };
            tell(" b%u", made);
            return &blocks[i];
        }
    return NULL;
}

void block_gone(struct block *block)
{
    block->kind = NOTHING;
}

size_t blocks_held(void)
{
    size_t held = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        held += blocks[i].kind == NOTHING ? 0 : blocks[i].size;
    return held;
}

size_t block_size(void)
{
    static const size_t sizes[] = {
        1, 8, 100, 512, 1000, 4096, 65528, 100000, MIB - 8, MIB, MIB + 24, GRAIN, 3 * MIB,
    };
    size_t size = one_in(2) ? 1 + roll(MIB / 16) : one_in(8) ? 1 + roll(SCRATCH) : PICK(sizes);
    bool slot = false;
    for (size_t i = 0; i < BLOCKS; i++)
        slot |= blocks[i].kind == NOTHING;
    return !slot || blocks_held() + size > HELD_MOST ? 0 : size;
}

bool block_on_host(const struct block *block)
{
    return block->kind == PINNED || block->kind == REGISTERED;
}

struct place place_at(const struct block *block, size_t offset)
{
    struct place place = { .address = block->address + offset, .room = block->size - offset };
    snprintf(place.text, sizeof place.text, "b%u+%zu", block->number, offset);
    return place;
}

struct place place_in(const struct block *block, size_t grain)
{
    size_t offset = one_in(3) ? 0 : roll(block->size);
    return place_at(block, offset / grain * grain);
}

void wait_for(CUstream stream)
{
    EITHER(cuStreamSynchronize, cuStreamSynchronize_ptsz, (stream),
           stream == CU_STREAM_LEGACY ? "legacy" : stream == CU_STREAM_PER_THREAD ? "per-thread"
                                                                               : "own");
    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].stream == stream)
            blocks[i].busy = false;
}

void wait_for_all(void)
{
    DO(cuCtxSynchronize, (), "%s", "");
    for (size_t i = 0; i < BLOCKS; i++)
        blocks[i].busy = false;
}

static void wait_by_event(CUstream before, CUstream behind)
{
    CUevent event;
    if (EITHER(cuEventCreate, cuEventCreate, (&event, CU_EVENT_DISABLE_TIMING), "no timing")
        != CUDA_SUCCESS)
        return;
    DO(cuEventRecord, (event, before), "event, before");
    DO(cuStreamWaitEvent, (behind, event, 0), "behind, event");
    DO(cuEventDestroy_v2, (event), "event");
}

void block_enter(struct block *block, CUstream stream)
{
    if (block->busy && block->stream != stream) {
        if (block->stream == NULL)
            wait_for_all();          /* the stream of its last work was destroyed */
        else if (one_in(2))
            wait_by_event(block->stream, stream);
        else
            wait_for(block->stream);
    }
    block->stream = stream;
    block->busy = true;
}

void block_fill(struct block *block)
{
    unsigned char value = (unsigned char)roll(256);
    if (block_on_host(block)) {
        memset((void *)(uintptr_t)block->address, (int)block->number, block->size);
        return;
    }
    struct lane lane = one_in(2) ? lane_any() : lane_sync(one_in(2));
    /* Pool memory may be used only behind its allocation in the order of its stream. */
    block_enter(block, lane.stream);
    IN_LANE(cuMemsetD8Async, lane, (block->address, value, block->size, lane.handle),
            "b%u, %u, %zu, %s", block->number, value, block->size, lane.text);
}

void block_read(struct block *block)
{
    struct place place = place_at(block, 0);
    if (block_on_host(block)) {
        wait_for_all();
        tell(" of host %s", place.text);
        tell_bytes((void *)(uintptr_t)block->address, block->size);
        return;
    }
    struct lane lane = lane_sync(one_in(2));
    block_enter(block, lane.stream);
    memset(scratch, 0, block->size);
    SYNC(cuMemcpyDtoH_v2, lane, (scratch, place.address, block->size), "%s, %zu", place.text,
         block->size);
    tell_bytes(scratch, block->size);
    block->busy = false;
}
