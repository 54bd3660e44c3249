/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays live for one action: created, written, copied, read and destroyed. */
#include <string.h>

#include "actions.h"

#define SIDE 64
#define BYTES (SIDE * SIDE)

#define SQUARE                                                                              \
    .Width = SIDE, .Height = SIDE, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1
static const CUDA_ARRAY_DESCRIPTOR plane = { SQUARE };
static const CUDA_ARRAY3D_DESCRIPTOR plane_by_3d = { SQUARE };

static CUresult make_array(CUarray *array)
{
    return one_in(2) ? DO(cuArrayCreate_v2, (array, &plane), "plane")
                     : DO(cuArray3DCreate_v2, (array, &plane_by_3d), "plane by 3D");
}

/* A copy of a line to a 2D array starts at the begin of a row and stays in that row. */
static void write_line(CUarray array, struct lane lane, bool waits)
{
    size_t from = roll(SCRATCH - SIDE);
    WAIT_OR_NOT(waits, cuMemcpyHtoA_v2, cuMemcpyHtoAAsync_v2, lane,
                (array, 0, pattern + from, SIDE), "p+%zu", from);
}

static void read_line(CUarray array, struct lane lane, bool waits)
{
    memset(scratch, 0, SIDE);
    if (waits) {
        SYNC(cuMemcpyAtoH_v2, lane, (scratch, array, 0, SIDE), "%d", SIDE);
    } else {
        IN_LANE(cuMemcpyAtoHAsync_v2, lane, (scratch, array, 0, SIDE, lane.handle), "%s",
                lane.text);
        wait_for(lane.stream);
    }
    tell_bytes(scratch, SIDE);
}

static void through_memory(CUarray array, CUarray other)
{
    struct block *block = block_of_device();
    struct lane lane = lane_sync(one_in(2));
    if (block == NULL || block->size < SIDE)
        return;
    struct place place = place_at(block, 0);
    block_enter(block, lane.stream);
    switch (roll(3)) {
    WHEN(0, SYNC(cuMemcpyAtoD_v2, lane, (place.address, array, 0, SIDE), "%s", place.text))
    WHEN(1, SYNC(cuMemcpyDtoA_v2, lane, (array, 0, place.address, SIDE), "%s", place.text))
    default:
        SYNC(cuMemcpyAtoA_v2, lane, (other, 0, array, 0, SIDE), "%d", SIDE);
    }
    wait_for_all();
}

static void copy_plane(CUarray array, bool there)
{
    const CUDA_MEMCPY2D to = {
        .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pattern, .srcPitch = SIDE,
        .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = array,
        .WidthInBytes = SIDE, .Height = SIDE,
    };
    const CUDA_MEMCPY2D from = {
        .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = array,
        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = scratch, .dstPitch = SIDE,
        .WidthInBytes = SIDE, .Height = SIDE,
    };
    memset(scratch, 0, BYTES);
    DO(cuMemcpy2D_v2, (there ? &to : &from), "array, %s", there ? "filled" : "read");
    if (!there)
        tell_bytes(scratch, BYTES);
}

static void mipmapped(void)
{
    CUmipmappedArray array;
    if (DO(cuMipmappedArrayCreate, (&array, &plane_by_3d, 3), "3 levels") == CUDA_SUCCESS)
        DO(cuMipmappedArrayDestroy, (array), "array");
}

void copy_array(void)
{
    CUarray array, other;
    struct lane lane = lane_any();
    bool waits = one_in(2);
    if (one_in(8)) {
        mipmapped();
        return;
    }
    if (make_array(&array) != CUDA_SUCCESS)
        return;
    if (make_array(&other) == CUDA_SUCCESS) {
        if (waits)
            lane = lane_sync(lane.per_thread);
        copy_plane(array, true);
        copy_plane(other, true);
        write_line(array, lane, waits);
        wait_for_all();
        through_memory(array, other);
        read_line(other, lane, waits);
        wait_for_all();
        copy_plane(array, false);
        DO(cuArrayDestroy, (other), "other");
    }
    DO(cuArrayDestroy, (array), "array");
}
