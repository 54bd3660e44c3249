/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of every kind, 1D, 2D and 3D, between all kinds of memory. */
#include <string.h>

#include "actions.h"

#define BATCH 3

static size_t some(size_t most)
{
    return one_in(4) ? most : roll(most + 1);
}

/* Copies to the card, from the card or on the card; copies on the card also use pinned memory. */
static void to_card(struct block *block)
{
    struct place place = place_in(block, 1);
    size_t size = some(place.room), from = roll(SCRATCH - size + 1);
    bool waits;
    struct lane lane = lane_waiting(&waits);
    block_enter(block, lane.stream);
    WAIT_OR_NOT(waits, cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, lane,
                (place.address, pattern + from, size), "%s, p+%zu, %zu", place.text, from, size);
}

static void from_card(struct block *block)
{
    struct place place = place_in(block, 1);
    size_t size = some(place.room);
    bool waits;
    struct lane lane = lane_waiting(&waits);
    block_enter(block, lane.stream);
    memset(scratch, 0, size);
    WAIT_OR_NOT(waits, cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, lane,
                (scratch, place.address, size), "%s, %zu", place.text, size);
    if (!waits)
        wait_for(lane.stream);
    tell_bytes(scratch, size);
}

/* Calls `sync` if `waits`, else `async` with a stream; ABOUT formats the arguments. */
#define COPY(sync, async, ...) \
    (waits ? SYNC(sync, lane, (__VA_ARGS__), ABOUT) \
           : IN_LANE(async, lane, (__VA_ARGS__, lane.handle), ABOUT))

static void on_card(struct block *to, struct block *from)
{
    struct place target = place_in(to, 1), source = place_in(from, 1);
    size_t size = some(target.room < source.room ? target.room : source.room);
    bool waits;
    struct lane lane = lane_waiting(&waits);
    CUdeviceptr a = target.address, b = source.address;
    bool unified = block_on_host(to) || block_on_host(from);
    block_enter(to, lane.stream);
    block_enter(from, lane.stream);
#define ABOUT "%s, %s, %zu, %s", target.text, source.text, size, lane.text
    switch (unified ? roll(2) : roll(6)) {
    case 0: case 1:
        COPY(cuMemcpy, cuMemcpyAsync, a, b, size);
        break;
    WHEN(2, COPY(cuMemcpyPeer, cuMemcpyPeerAsync, a, context, b, context, size))
    default:
        COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, a, b, size);
    }
#undef ABOUT
}

void copy_line(void)
{
    struct block *block = block_any(), *other = block_any();
    if (block == NULL)
        return;
    if (other != block)
        on_card(block, other);
    else if (block_on_host(block))
        read_block();
    else if (one_in(2))
        to_card(block);
    else
        from_card(block);
}

/* A 2D or 3D shape that fits into both blocks; columns and pitch in bytes. */
struct shape { size_t columns, rows, layers, pitch; };

static bool shape_within(size_t room, struct shape *shape)
{
    shape->columns = 1 + roll(100);
    shape->pitch = shape->columns + roll(30);
    shape->rows = 1 + roll(6);
    shape->layers = 1 + roll(4);
    return shape->pitch * shape->rows * shape->layers <= room;
}

static void copy_2d(struct place to, struct place from, const struct shape *shape)
{
    bool waits;
    struct lane lane = lane_waiting(&waits);
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from.address, .srcPitch = shape->pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to.address, .dstPitch = shape->pitch,
        .WidthInBytes = shape->columns, .Height = shape->rows, .srcXInBytes = 0,
    };
    if (one_in(3)) {
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = pattern + 1000;
    }
    wait_for_all();
#define ABOUT "%s, %s, %zu x %zu in %zu, from %d, %s", to.text, from.text, shape->columns, \
              shape->rows, shape->pitch, (int)copy.srcMemoryType, lane.text
    if (!waits)
        IN_LANE(cuMemcpy2DAsync_v2, lane, (&copy, lane.handle), ABOUT);
    else if (one_in(2))
        SYNC(cuMemcpy2D_v2, lane, (&copy), ABOUT);
    else
        SYNC(cuMemcpy2DUnaligned_v2, lane, (&copy), ABOUT);
#undef ABOUT
    wait_for_all();
}

static void copy_3d(struct place to, struct place from, const struct shape *shape)
{
    bool waits;
    struct lane lane = lane_waiting(&waits);
#define EXTENT\
    .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from.address,                       \
    .srcPitch = shape->pitch, .srcHeight = shape->rows,                                     \
    .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to.address,                         \
    .dstPitch = shape->pitch, .dstHeight = shape->rows,                                     \
    .WidthInBytes = shape->columns, .Height = shape->rows, .Depth = shape->layers
    const CUDA_MEMCPY3D copy = { EXTENT };
    const CUDA_MEMCPY3D_PEER peer = { EXTENT, .srcContext = context, .dstContext = context };
#undef EXTENT
    wait_for_all();
#define ABOUT "%s, %s, %zu x %zu x %zu in %zu, %s", to.text, from.text, shape->columns, \
              shape->rows, shape->layers, shape->pitch, lane.text
    if (one_in(3) && waits)
        SYNC(cuMemcpy3DPeer, lane, (&peer), ABOUT);
    else if (one_in(3) && !waits)
        IN_LANE(cuMemcpy3DPeerAsync, lane, (&peer, lane.handle), ABOUT);
    else if (waits)
        SYNC(cuMemcpy3D_v2, lane, (&copy), ABOUT);
    else
        IN_LANE(cuMemcpy3DAsync_v2, lane, (&copy, lane.handle), ABOUT);
#undef ABOUT
    wait_for_all();
}

void copy_shape(void)
{
    struct block *to = block_of_device(), *from = block_of_device();
    struct shape shape;
    if (to == NULL || to == from)
        return;
    struct place target = place_in(to, 1), source = place_in(from, 1);
    if (!shape_within(target.room < source.room ? target.room : source.room, &shape))
        return;
    if (one_in(2))
        copy_2d(target, source, &shape);
    else
        copy_3d(target, source, &shape);
}

static void copy_shapes(struct place to, struct place from, struct lane lane)
{
    const CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
    size_t width = (to.room < from.room ? to.room : from.room) % 500 + 1, failed = 77;
    if (width > to.room || width > from.room)
        return;
    CUDA_MEMCPY3D_BATCH_OP operation = {
        .src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                 .op.ptr = { .ptr = from.address, .locHint = here } },
        .dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                 .op.ptr = { .ptr = to.address, .locHint = here } },
        .extent = { width, 1, 1 },
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    };
    if (one_in(2))
        IN_LANE(cuMemcpy3DBatchAsync, lane, (1, &operation, &failed, 0, lane.handle),
                "%s, %s, %zu, %s", to.text, from.text, width, lane.text);
    else
        IN_LANE(cuMemcpy3DBatchAsync_v2, lane, (1, &operation, 0, lane.handle), "%s, %s, %zu, %s",
                to.text, from.text, width, lane.text);
}

void copy_batch(void)
{
    struct block *to = block_of_device(), *from = block_of_device();
    struct lane lane = lane_own();
    CUdeviceptr targets[BATCH], sources[BATCH];
    size_t sizes[BATCH], count = 0, indices[] = { 0 }, failed = 77;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    if (to == NULL || to == from || lane.handle == NULL || to->size < 4096 || from->size < 4096)
        return;
    wait_for_all();
    if (one_in(3)) {
        copy_shapes(place_in(to, 1), place_in(from, 1), lane);
    } else {
        /* The targets do not overlap, because the copies of a batch have no fixed order. */
        for (; count < BATCH; count++) {
            targets[count] = to->address + count * 1000;
            sources[count] = from->address + roll(3000);
            sizes[count] = 1 + roll(1000);
        }
        if (one_in(2))
            IN_LANE(cuMemcpyBatchAsync, lane, (targets, sources, sizes, count, &attributes,
                    indices, 1, &failed, lane.handle), "b%u, b%u, %s", to->number, from->number,
                    lane.text);
        else
            IN_LANE(cuMemcpyBatchAsync_v2, lane, (targets, sources, sizes, count, &attributes,
                    indices, 1, lane.handle), "b%u, b%u, %s", to->number, from->number, lane.text);
    }
    wait_for_all();
}
